"""May this matte reach the client? Decided from the matte and, where that is in doubt, the fallback's answer. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import cv2

from blurfleet.quality.sentinel import Matte, sentinel
from blurfleet.reasons import Reason
from blurfleet.serving.frames import FrameKind

AGREEMENT = 0.05
"""Two mattes that differ by more than this somewhere tell different stories (the per-frame MaxAbsError limit)."""


@dataclass(frozen=True, kw_only=True)
class Settled:
    """Whose matte is served, what the agent is told, and why; `reason` is None where nothing was wrong."""

    use: Literal["Engine", "Fallback", "Neither"]
    kind: FrameKind
    reason: Reason | None
    message: str = ""


SOUND = Settled(use="Engine", kind=FrameKind.SAMPLE, reason=None)
"""What becomes of a matte that is not in doubt."""


def doubt(matte: Matte) -> Reason | None:
    """Return NonFiniteOutput, OutOfRangeOutput or (only a suspicion) CollapsedOutput; None for a sound [H,W] matte."""
    result = sentinel(matte)
    if result.non_finite:
        return Reason.NON_FINITE_OUTPUT
    if result.out_of_range:
        return Reason.OUT_OF_RANGE_OUTPUT
    return Reason.COLLAPSED_OUTPUT if result.near_constant else None


def settle(matte: Matte, fallback: Matte | None) -> Settled:
    """Return what becomes of `matte`, given the fallback's answer on the same tensor (None: there is none).

    Non-finite and out of range are never served. Collapsed is served unless the fallback sees a picture there.
    """
    reason = doubt(matte)
    if reason is None:
        return SOUND
    usable = fallback is not None and doubt(fallback) in (None, Reason.COLLAPSED_OUTPUT)
    if reason is not Reason.COLLAPSED_OUTPUT:
        use: Literal["Fallback", "Neither"] = "Fallback" if usable else "Neither"
        message = "answered by the fallback" if usable else "the fallback has no good answer either"
        return Settled(use=use, kind=FrameKind.WITHHELD, reason=reason, message=message)
    if fallback is None or not usable:
        message = "near-constant, and no fallback to ask"
        return Settled(use="Engine", kind=FrameKind.SUSPECT, reason=reason, message=message)
    difference = float(cv2.norm(matte, fallback, cv2.NORM_INF))
    if difference <= AGREEMENT:
        return SOUND
    message = f"near-constant, the fallback differs by {difference:.3g}"
    return Settled(use="Fallback", kind=FrameKind.SUSPECT, reason=reason, message=message)
