"""What can be told from one matte alone, cheap enough for every response, and how mattes enter the quality rules."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from blurfleet.errors import InvalidInput
from blurfleet.reasons import Reason

Matte = npt.NDArray[np.float32]

RANGE_TOLERANCE = 1e-4
"""How far outside [0, 1] a matte value may lie: well above FP32 rounding of a sigmoid, far below what is visible."""
CONSTANT_SPAN = 0.02
"""A matte whose max - min is at most this is near-constant: below DEER's edge threshold it holds no edge at all."""
VARIED_SPAN = 0.2
"""A reference must span this much before a near-constant candidate is collapsed: a faint scene does not."""


@dataclass(frozen=True, kw_only=True)
class SentinelResult:
    """Counts of non-finite and out-of-range pixels, and max - min over the finite ones (0.0 where there are none)."""

    non_finite: int
    out_of_range: int
    span: float

    @property
    def near_constant(self) -> bool:
        """Tell whether the matte holds no edge. Only a suspicion: an empty scene is rightly all zero."""
        return self.span <= CONSTANT_SPAN

    @property
    def withhold(self) -> bool:
        """Tell whether the matte must not reach a client."""
        return self.non_finite > 0 or self.out_of_range > 0


def as_matte(array: object, name: str) -> Matte:
    """Return `array` as a contiguous float32 matte [H,W].

    Takes float16, float32 or float64 of shape [H,W] or with further axes of length 1 around it ([1,1,H,W], [H,W,1]).
    Values are not changed; a float64 too large for float32 becomes infinite and is counted as non-finite.
    Raises InvalidInput (WrongDtype, WrongShape) with `name` as the place.
    """
    if not isinstance(array, np.ndarray) or array.dtype.kind != "f" or array.dtype.itemsize > 8:
        kind = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
        fix = "give a float16, float32 or float64 array"
        raise InvalidInput(Reason.WRONG_DTYPE, f"{kind} is not a float array", where=name, fix=fix)
    shape = array.shape
    while len(shape) > 2 and shape[0] == 1:
        shape = shape[1:]
    while len(shape) > 2 and shape[-1] == 1:
        shape = shape[:-1]
    if len(shape) != 2 or min(shape) < 2:
        message = f"shape {list(array.shape)} is not one matte [H,W] of at least 2x2"
        raise InvalidInput(Reason.WRONG_SHAPE, message, where=name)
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(array.reshape(shape), dtype=np.float32)


def sentinel(matte: npt.NDArray[np.floating]) -> SentinelResult:
    """Return the sentinel figures of `matte`, a float array meant to lie in [0,1]. Raises InvalidInput.

    Some 0.03 ms for 320x320 where the matte is sound.
    """
    values = as_matte(matte, "matte")
    low, high = float(values.min()), float(values.max())
    # min and max carry every NaN and Inf, so the sound case costs two passes and no temporary array.
    if np.isfinite(low) and np.isfinite(high):
        if low >= -RANGE_TOLERANCE and high <= 1 + RANGE_TOLERANCE:
            return SentinelResult(non_finite=0, out_of_range=0, span=high - low)
        non_finite, finite = 0, values
    else:
        mask = np.isfinite(values)
        non_finite, finite = int(mask.size - np.count_nonzero(mask)), values[mask]
    outside = int(np.count_nonzero((finite < -RANGE_TOLERANCE) | (finite > 1 + RANGE_TOLERANCE)))
    span = float(finite.max()) - float(finite.min()) if finite.size else 0.0
    return SentinelResult(non_finite=non_finite, out_of_range=outside, span=span)
