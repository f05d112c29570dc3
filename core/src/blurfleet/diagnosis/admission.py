"""Can this tensor come from the contract? Decided from its values alone, one frame at a time and over a stream. Pure.

The rule: a value that is no number, or that no pixel level maps to, refuses the frame. A channel that reaches below (or
above) everything that another common scale can give proves the scale. So does the pixel lattice: a client that resizes
in 8 bit leaves values that are whole pixel levels once the constants are undone; too few of them to prove it (a flat
scene) still rule out suspicion. What is left and would fit another scale is suspect; the rest is unproved, which is no
blame.

One frame is refused only for the impossible. A stream is refused where `WINDOW` frames in a row, in the order of their
arrival, are suspect: flat and hazy scenes end, a client's wrong scale does not.

Told nowhere here: channels exchanged before the constants are applied. Every such tensor is one that the contract makes
of another picture. The declared hash, golden pictures and the self-test catch it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from blurfleet.api.contract import ContractSpec
from blurfleet.diagnosis.constants import Normalisation, Three, normalisations
from blurfleet.pixels import Tensor
from blurfleet.reasons import Reason

WINDOW = 30
"""Frames: one second of a camera. Of 117 correct frames resized in float, 20 are suspect: flat, or of low contrast."""
TOLERANCE = 0.02
"""Beyond the contract's range in normalised units: above one grey level (0.0175), as other libraries round."""
MARGIN = 0.05
"""Beyond every other scale's range before that counts as proof, normalised units (three grey levels)."""
_LATTICE_LEVELS = 0.01  # how near a whole level counts; float32 leaves 0.0001
_LATTICE_SHARE = 0.99  # correct 8-bit tensors have 1.00, the nearest fault 0.53
_LATTICE_DISTINCT = 12  # levels seen: fewer may be whole by chance
_LATTICE_SAMPLES = 4096  # pixels looked at


class Standing(StrEnum):
    """What one tensor says of the way it was made."""

    REFUSED = "Refused"
    PROVED = "Proved"
    SUSPECT = "Suspect"
    UNPROVED = "Unproved"


@dataclass(frozen=True, kw_only=True)
class InputVerdict:
    """One tensor's standing; `reason` and `message` say why where it is Refused or Suspect."""

    standing: Standing
    reason: Reason | None = None
    message: str = ""


@dataclass(frozen=True, kw_only=True)
class InputWindow:
    """The last `WINDOW` frames of one stream: (frame id, whether it was suspect), sorted by frame id."""

    frames: tuple[tuple[int, bool], ...] = ()

    def after(self, frame_id: int, verdict: InputVerdict) -> tuple[InputWindow, bool]:
        """Return the window with one more frame, and whether that frame is to be refused.

        Frames are judged in the order of their ids, whenever their figures come. A frame that is not itself suspect is
        never refused for its stream.
        """
        suspect = verdict.standing is Standing.SUSPECT
        others = tuple(frame for frame in self.frames if frame[0] != frame_id)
        frames = tuple(sorted((*others, (frame_id, suspect)))[-WINDOW:])
        whole = len(frames) == WINDOW and all(doubted for _, doubted in frames)
        return InputWindow(frames=frames), verdict.standing is Standing.REFUSED or (suspect and whole)


def judge_tensor(tensor: Tensor, spec: ContractSpec) -> InputVerdict:
    """Return the standing of a float32 tensor of the contract's layout, [1,3,H,W] or [1,H,W,3]. 0.4 ms at 320x320."""
    planes = _planes(tensor, spec)
    low, high = planes.min(axis=1).astype(np.float64), planes.max(axis=1).astype(np.float64)
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        bad = int(planes.size - np.count_nonzero(np.isfinite(planes)))
        return _refused(Reason.NON_FINITE_INPUT, f"{bad} values are NaN or infinite")
    own, *wrong = normalisations(spec)
    floor, ceiling = _range(own)
    for channel in range(3):
        if not (floor[channel] - TOLERANCE <= low[channel] and high[channel] <= ceiling[channel] + TOLERANCE):
            seen, right = (
                f"{low[channel]:.3f} to {high[channel]:.3f}",
                f"{floor[channel]:.3f} to {ceiling[channel]:.3f}",
            )
            return _refused(Reason.IMPOSSIBLE_INPUT, f"channel {channel} holds {seen}, pixels become {right}")
    sample = _sampled(planes)
    levels = _levels_seen(sample, own)
    if levels >= _LATTICE_DISTINCT:
        return InputVerdict(standing=Standing.PROVED)
    for way in wrong:
        if _levels_seen(sample, way) >= _LATTICE_DISTINCT:
            return _refused(
                Reason.IMPOSSIBLE_INPUT, f"every value is a whole pixel level of another making: {way.name}"
            )
    verdict = _by_range(low, high, _confusable(spec))
    flat = levels > 0 and verdict.standing is Standing.SUSPECT
    return InputVerdict(standing=Standing.UNPROVED) if flat else verdict


def _by_range(low: Three, high: Three, others: tuple[Normalisation, ...]) -> InputVerdict:
    ranges = [_range(way) for way in others]
    if ranges:
        below = low < np.min([floor for floor, _ in ranges], axis=0) - MARGIN
        above = high > np.max([ceiling for _, ceiling in ranges], axis=0) + MARGIN
        if below.any() or above.any():
            return InputVerdict(standing=Standing.PROVED)
    fitting = [
        way.name
        for way, (floor, ceiling) in zip(others, ranges, strict=True)
        if (low >= floor - TOLERANCE).all() and (high <= ceiling + TOLERANCE).all()
    ]
    if fitting:
        message = f"all of it fits another making: {', or '.join(fitting)}"
        return InputVerdict(standing=Standing.SUSPECT, reason=Reason.SUSPECT_INPUT, message=message)
    return InputVerdict(standing=Standing.UNPROVED)


def _refused(reason: Reason, message: str) -> InputVerdict:
    return InputVerdict(standing=Standing.REFUSED, reason=reason, message=message)


def _planes(tensor: Tensor, spec: ContractSpec) -> npt.NDArray[np.float32]:
    """Return [3, pixels], a view where the layout allows."""
    if spec.layout == "NHWC":
        return np.ascontiguousarray(tensor.reshape(-1, 3).T)
    return tensor.reshape(3, -1)


def _range(way: Normalisation) -> tuple[Three, Three]:
    """Return the least and the greatest value of each slot."""
    return way.offset, way.gain + way.offset


@lru_cache(maxsize=32)
def _confusable(spec: ContractSpec) -> tuple[Normalisation, ...]:
    """Return the wrong ways whose whole range lies within the contract's own, and above its floor.

    Another that reaches out of the contract's range is refused by that.
    """
    own, *wrong = normalisations(spec)
    floor, ceiling = _range(own)
    return tuple(
        way
        for way in wrong
        if (floor < _range(way)[0] - 2 * MARGIN).all() and (ceiling >= _range(way)[1] - TOLERANCE).all()
    )


def _sampled(planes: npt.NDArray[np.float32]) -> Three:
    """Return [3, n] of the pixels, evenly spread, as float64."""
    return planes[:, :: max(1, planes.shape[1] // _LATTICE_SAMPLES)].astype(np.float64)


def _levels_seen(sample: Three, way: Normalisation) -> int:
    """Return how many levels of 0..255 undoing `way` gives, summed over channels; 0 where they are not whole ones."""
    levels = 255.0 * (sample - way.offset[:, None])
    levels /= way.gain[:, None]
    whole = np.rint(levels)
    levels -= whole
    near = np.count_nonzero(np.abs(levels, out=levels) <= _LATTICE_LEVELS)
    if not (near >= _LATTICE_SHARE * levels.size):
        return 0
    if whole.min() < 0 or whole.max() > 255:
        return 0
    whole += np.arange(0, 256 * len(whole), 256)[:, None]  # a range of bins for each channel
    return int(np.count_nonzero(np.bincount(whole.astype(np.intp).ravel())))
