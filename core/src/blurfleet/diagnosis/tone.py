"""A curve over the levels: gamma, a colour profile, an exposure that clips. It leaves every pixel where it is."""

from __future__ import annotations

import numpy as np

from blurfleet.diagnosis.arrangements import Planes

_DEGREE = 3
EXPLAINS = 0.5
"""Of the distance: another kernel leaves nearly all of it when a curve is fitted, gamma next to nothing."""
_STEP_POINTS = 1 << 14
_OF_SPREAD = 0.25  # of what varies at all: a curve that leaves more has found no picture in it


def by_a_curve(undone: Planes, pixels: Planes, distance: float) -> float | None:
    """Return what a curve leaves, in grey levels, where it explains a `distance`; None where it does not."""
    left = toned_distance(undone, pixels)
    spread = 255.0 * float(np.sqrt(undone.reshape(3, -1).var(axis=1).mean()))
    return left if left <= EXPLAINS * distance and left <= _OF_SPREAD * spread else None


def toned_distance(undone: Planes, pixels: Planes) -> float:
    """Return what is left, in grey levels, once a cubic curve per channel is fitted from `pixels` to `undone`.

    Both are pixels of 0..1, [3,H,W]. Colour profiles mix channels too, which a curve per channel only comes near to.
    """
    left = []
    for seen, real in zip(undone.reshape(3, -1), pixels.reshape(3, -1), strict=True):
        step = max(1, real.size // _STEP_POINTS)
        x, y = real[::step].astype(np.float64), seen[::step].astype(np.float64)
        powers = np.vander(x, _DEGREE + 1)
        curve, *_ = np.linalg.lstsq(powers, y, rcond=None)
        left.append(np.mean((y - powers @ curve) ** 2))
    return 255.0 * float(np.sqrt(np.mean(left)))
