"""How a finished picture is to look."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from blurfleet_preprocess.compositing.defocus import Style

Mode = Literal["matte", "depth"]
Background = Literal["blur", "color", "transparent"]

MIN_RADIUS, MAX_RADIUS = 1.0, 200.0
_SMALLEST, _LARGEST = 15.0, 65.0  # pixels at 1080p, for a subject that is a speck and one that fills the picture
_NOMINAL_SIDE = 1080
_LARGEST_PART = 0.25  # of the shorter side: more would be one even colour


@dataclass(frozen=True, kw_only=True)
class Look:
    """What a person asked for.

    `radius` is in pixels of the picture, None for automatic. `focus` in [0,1] is the value of the network's output that
    is sharp in mode depth, None for the nearest thing. `colour` is RGB, for background color.
    """

    radius: float | None = None
    style: Style = "gaussian"
    mode: Mode = "matte"
    focus: float | None = None
    background: Background = "blur"
    colour: tuple[int, int, int] = (255, 255, 255)

    def radius_on(self, size: tuple[int, int], share: float) -> float:
        """Return the radius to use on a picture of (height, width): no more than a quarter of its shorter side."""
        asked = auto_radius(size, share) if self.radius is None else self.radius
        return max(MIN_RADIUS, min(asked, _LARGEST_PART * min(size)))


def auto_radius(size: tuple[int, int], share: float) -> float:
    """Return the blur radius in pixels for a picture of (height, width) whose subject covers `share` of it, 0 to 1.

    It grows evenly with the subject's height, 15 to 65 pixels at 1080p, and with the picture's shorter side: a near
    subject stands further from its background, and a larger picture is looked at at the same size. At most MAX_RADIUS.
    """
    height = math.sqrt(max(0.0, min(share, 1.0)))
    at_1080 = _SMALLEST + (_LARGEST - _SMALLEST) * height
    return min(max(at_1080 * min(size) / _NOMINAL_SIDE, MIN_RADIUS), MAX_RADIUS)
