"""Blur that knows whose light it spreads: normalised convolution, blur(light * weight) / blur(weight).

What has no weight (the subject) leaves no glow in what is blurred. Where no weight is near, the answer comes from
further away, at last from the mean of all that has weight. Light comes as [h,w,4]: light, and how much of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, cast

import cv2
import numpy as np

from blurfleet_preprocess.compositing.light import Light
from blurfleet_preprocess.compositing.scales import grown, halved

Kernel = Callable[[Any], Any]
Style = Literal["gaussian", "disc"]

SIGMA_PER_RADIUS = 0.5  # a Gaussian of this sigma spreads as far (in variance) as a disc of that radius
_COARSEST = 2.5  # sigma, in pixels, below which a picture is not shrunk further before it is blurred
_FAINT = 1e-3  # how much the next coarser answer weighs against this one
_COARSER = (2, 2)  # halvings of the answers from further away
_NOTHING = 1e-30


def weighed(light: Light, weight: Light) -> Light:
    """Return [h,w,4]: light [h,w,4] times weight [h,w]."""
    return cast("Light", cv2.multiply(light, cv2.merge((weight, weight, weight, weight))))


def spread(carried: Light, blur: Kernel) -> Light:
    """Return the light [h,w,3] of what is `carried`, blurred; black only if nothing at all has weight."""
    total: Any = blur(carried)
    further: Any = carried
    faintness, doublings = 1.0, 0
    for halvings in _COARSER:
        for _ in range(halvings):
            further = halved(further)
        further = cv2.blur(further, (5, 5))
        faintness, doublings = faintness * _FAINT, doublings + halvings
        total = cv2.addWeighted(total, 1.0, grown(further, doublings, total.shape[:2]), faintness, 0.0)
    rest = np.array(cv2.mean(carried), np.float32) * np.float32(faintness * _FAINT)
    red, green, blue, weight = cv2.split(total)
    weight = weight + np.float32(rest[3] + _NOTHING)
    return cast(
        "Light", cv2.merge([(plane + one) / weight for plane, one in zip((red, green, blue), rest, strict=False)])
    )


def halvings_for(radius: float) -> int:
    """Return how often a picture is halved before it is blurred with `radius` (pixels of the whole picture)."""
    return max(0, math.floor(math.log2(max(radius * SIGMA_PER_RADIUS / _COARSEST, 1.0))))


def kernel(style: Style, radius: float) -> Kernel:
    """Return the blur of `radius` pixels of the array it is given: a Gaussian, or a disc as a round aperture draws."""
    return _gaussian(radius) if style == "gaussian" else _disc(radius)


def _gaussian(radius: float) -> Kernel:
    sigma = radius * SIGMA_PER_RADIUS
    width = 2 * max(1, round(3 * sigma)) + 1
    return lambda array: cv2.GaussianBlur(array, (width, width), sigma)


def _disc(radius: float) -> Kernel:
    reach = math.ceil(radius)
    y, x = np.mgrid[-reach : reach + 1, -reach : reach + 1]
    weights = np.clip(radius + 0.5 - np.hypot(x, y), 0.0, 1.0).astype(np.float32)
    weights /= weights.sum()
    return lambda array: cv2.filter2D(array, -1, weights)
