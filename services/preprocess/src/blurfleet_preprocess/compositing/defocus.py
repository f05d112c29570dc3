"""Blur that knows whose light it spreads: normalised convolution, blur(light * weight) / blur(weight).

What has no weight (the subject) leaves no glow in what is blurred. Where no weight is near, the answer comes from
further away, at last from the mean of all that has weight.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cv2
import numpy as np

from blurfleet_preprocess.compositing.light import Light
from blurfleet_preprocess.compositing.scales import fitted, halved

Kernel = Callable[[Any], Any]

SIGMA_PER_RADIUS = 0.5  # a Gaussian of this sigma spreads as far (in variance) as a disc of that radius
_COARSEST = 2.5  # sigma, in pixels, below which a picture is not shrunk further before it is blurred
_FAINT = np.float32(1e-3)  # how much the next coarser answer weighs against this one


def weighed(light: Light, weight: Light) -> Light:
    """Return [h,w,4]: light [h,w,3] times weight [h,w], and the weight."""
    planes = [cv2.multiply(plane, weight) for plane in cv2.split(light)]
    return np.asarray(cv2.merge((*planes, weight)))


def spread(carried: Light, blur: Kernel) -> Light:
    """Return the light [h,w,3] of what `weighed` carries, blurred; zero only if nothing at all has weight."""
    total: Any = blur(carried)
    further: Any = carried
    for faintness in (_FAINT, _FAINT * _FAINT):
        for _ in range(2):
            further = halved(further)
        further = cv2.blur(further, (5, 5))
        total = total + faintness * fitted(further, total.shape[:2])
    rest = np.asarray(cv2.mean(carried), np.float32) * _FAINT**3
    total = total + rest
    colour, weight = total[..., :3], total[..., 3:]
    return np.asarray(np.divide(colour, weight, out=np.zeros_like(colour), where=weight > 0), np.float32)


def halvings_for(radius: float) -> int:
    """Return how often a picture is halved before it is blurred with `radius` (pixels of the whole picture)."""
    return max(0, int(np.floor(np.log2(max(radius * SIGMA_PER_RADIUS / _COARSEST, 1.0)))))


def gaussian(radius: float) -> Kernel:
    """Return a Gaussian blur of `radius` pixels of the picture it is given, cut at three sigma."""
    sigma = radius * SIGMA_PER_RADIUS
    width = 2 * max(1, round(3 * sigma)) + 1
    return lambda array: cv2.GaussianBlur(array, (width, width), sigma)


def disc(radius: float) -> Kernel:
    """Return a mean over a disc of `radius` pixels with a smooth rim, what a round aperture does."""
    reach = int(np.ceil(radius))
    y, x = np.mgrid[-reach : reach + 1, -reach : reach + 1]
    kernel = np.clip(radius + 0.5 - np.hypot(x, y), 0.0, 1.0).astype(np.float32)
    kernel /= kernel.sum()
    return lambda array: cv2.filter2D(array, -1, kernel)
