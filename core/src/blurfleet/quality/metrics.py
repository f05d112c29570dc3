"""The figures of DESIGN section 6 between a reference matte and a candidate's: each is a breach-ready number, or None.

None means "not measurable on this pair" (an invalid sample), never zero. NaN means a NaN in the pixels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import cv2
import numpy as np
import numpy.typing as npt

from blurfleet.api.policy import MetricName
from blurfleet.errors import InvalidInput
from blurfleet.quality.sentinel import CONSTANT_SPAN, RANGE_TOLERANCE, VARIED_SPAN, Matte, as_matte
from blurfleet.quality.ssim import similarity
from blurfleet.reasons import Reason

EDGE_THRESHOLD = 0.02
"""Sobel magnitude (3x3, divided by 8) from which a pixel is an edge: a 2 % step of alpha per pixel."""
MIN_EDGE_PIXELS = 64
"""Fewer edge pixels than this make DEER a ratio of noise."""
Figures = dict[MetricName, float | None]


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """All figures of one pair. Errors are in matte units (0..1; on depth in shares of the reference's range).

    `deer` is None below 64 edge pixels and +Inf where only the candidate has edges; `ssim` is None where not asked
    for or below 7x7; `psnr` is in dB. `non_finite` and `out_of_range` count the candidate's pixels.
    """

    max_abs_error: float
    p999_error: float
    deer: float | None
    edge_pixels: int
    ssim: float | None
    psnr: float
    non_finite: int
    reference_non_finite: int
    out_of_range: int
    collapsed: bool

    @property
    def judgeable(self) -> bool:
        """Tell whether the figures speak of the candidate: false where only the reference holds NaN or Inf."""
        return self.reference_non_finite == 0 or self.non_finite > 0

    @property
    def deer_valid(self) -> bool:
        """Tell whether DEER was measurable."""
        return self.deer is not None

    def figures(self) -> Figures:
        """Return every figure under the name a rule uses; sentinels are counts (0 is sound)."""
        return {
            MetricName.NON_FINITE: float(self.non_finite),
            MetricName.OUT_OF_RANGE: float(self.out_of_range),
            MetricName.COLLAPSED: float(self.collapsed),
            MetricName.MAX_ABS_ERROR: self.max_abs_error,
            MetricName.P999_ERROR: self.p999_error,
            MetricName.DEER: self.deer,
            MetricName.SSIM: self.ssim,
        }


def measure(
    reference: npt.NDArray[np.floating],
    candidate: npt.NDArray[np.floating],
    *,
    ssim: bool = True,
    kind: Literal["matte", "depth"] = "matte",
) -> Measurement:
    """Return the figures of `candidate` against `reference`: float arrays of one shape, see `as_matte`.

    `kind` depth scales both by the reference's minimum and range first; a flat depth reference is refused
    (InvalidSample). Finiteness is tested before anything else. Raises InvalidInput (WrongDtype, WrongShape).
    """
    ref, cand = as_matte(reference, "ref"), as_matte(candidate, "cand")
    if ref.shape != cand.shape:
        raise InvalidInput(Reason.WRONG_SHAPE, f"ref is {list(ref.shape)} but cand is {list(cand.shape)}", where="cand")
    broken = (_non_finite(cand), _non_finite(ref))
    if any(broken):
        return _broken(ref, cand, *broken)
    if kind == "depth":
        ref, cand = _scaled(ref, cand)
    difference = np.asarray(cv2.absdiff(cand, ref), dtype=np.float32)
    deer, edge_pixels = _deer(ref, cand)
    span, ref_span = (float(a.max()) - float(a.min()) for a in (cand, ref))
    outside = 0
    if kind == "matte" and (cand.min() < -RANGE_TOLERANCE or cand.max() > 1 + RANGE_TOLERANCE):
        outside = int(np.count_nonzero((cand < -RANGE_TOLERANCE) | (cand > 1 + RANGE_TOLERANCE)))
    return Measurement(
        max_abs_error=float(difference.max()),
        p999_error=_p999(difference),
        deer=deer,
        edge_pixels=edge_pixels,
        ssim=similarity(ref, cand) if ssim else None,
        psnr=_psnr(difference),
        non_finite=0,
        reference_non_finite=0,
        out_of_range=outside,
        collapsed=span <= CONSTANT_SPAN and ref_span >= VARIED_SPAN,
    )


def _non_finite(values: Matte) -> int:
    # A sum that is finite proves every term finite; only a suspect array pays for the mask.
    if math.isfinite(float(values.sum(dtype=np.float64))):
        return 0
    return int(values.size - np.count_nonzero(np.isfinite(values)))


def _broken(ref: Matte, cand: Matte, non_finite: int, reference_non_finite: int) -> Measurement:
    has_nan = bool(np.isnan(ref).any() or np.isnan(cand).any())
    finite = cand[np.isfinite(cand)]
    return Measurement(
        max_abs_error=math.nan if has_nan else math.inf,
        p999_error=math.nan,
        deer=math.nan,
        edge_pixels=0,
        ssim=math.nan,
        psnr=math.nan,
        non_finite=non_finite,
        reference_non_finite=reference_non_finite,
        out_of_range=int(np.count_nonzero((finite < -RANGE_TOLERANCE) | (finite > 1 + RANGE_TOLERANCE))),
        collapsed=False,
    )


def _scaled(ref: Matte, cand: Matte) -> tuple[Matte, Matte]:
    low, high = float(ref.min()), float(ref.max())
    if not (high > low):
        raise InvalidInput(Reason.INVALID_SAMPLE, "a flat depth reference has no range to scale by", where="ref")
    scale = 1.0 / (high - low)

    def scaled(matte: Matte) -> Matte:
        return np.asarray((matte.astype(np.float64) - low) * scale, dtype=np.float32)

    return scaled(ref), scaled(cand)


def _p999(difference: Matte) -> float:
    flat = difference.ravel()
    position = 0.999 * (flat.size - 1)
    low = int(position)
    # One pivot and the minimum above it cost a tenth of partitioning at both neighbours.
    part = np.partition(flat, low)
    below = float(part[low])
    above = float(part[low + 1 :].min()) if low + 1 < flat.size else below
    return below + (above - below) * (position - low)


def _gradient(values: Matte) -> Matte:
    dx = np.asarray(cv2.Sobel(values, cv2.CV_32F, 1, 0, ksize=3, scale=0.125), dtype=np.float32)
    dy = np.asarray(cv2.Sobel(values, cv2.CV_32F, 0, 1, ksize=3, scale=0.125), dtype=np.float32)
    # Not cv2.magnitude: its last bit depends on how the arrays happen to be aligned.
    dx *= dx
    dy *= dy
    dx += dy
    return np.sqrt(dx, out=dx)


def _deer(ref: Matte, cand: Matte) -> tuple[float | None, int]:
    g_ref, g_cand = _gradient(ref), _gradient(cand)
    mask = (np.maximum(g_ref, g_cand) >= np.float32(EDGE_THRESHOLD)).view(np.uint8)
    edge_pixels = int(cv2.countNonZero(mask))
    if edge_pixels < MIN_EDGE_PIXELS:
        return None, edge_pixels
    wrong = cv2.norm(g_ref, g_cand, cv2.NORM_L1, mask)
    whole = cv2.norm(g_ref, cv2.NORM_L1, mask)
    return (wrong / whole if whole > 0 else math.inf), edge_pixels


def _psnr(difference: Matte) -> float:
    mse = float(cv2.norm(difference, cv2.NORM_L2SQR)) / difference.size
    return math.inf if mse == 0 else -10.0 * math.log10(mse)
