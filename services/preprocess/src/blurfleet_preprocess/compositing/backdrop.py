"""What the subject is laid over: the background out of focus, or one colour."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import cv2
import numpy as np

from blurfleet_preprocess.compositing.defocus import Kernel, disc, gaussian, halvings_for, spread, weighed
from blurfleet_preprocess.compositing.edges import Edge, settled
from blurfleet_preprocess.compositing.light import Light, Picture, to_levels, to_light
from blurfleet_preprocess.compositing.scales import Scales, fitted, halved

Style = Literal["gaussian", "disc"]
KERNELS: dict[Style, Callable[[float], Kernel]] = {"gaussian": gaussian, "disc": disc}

_GLOW = 12.0  # how much more than its light the brightest spot weighs in a disc
_GLOW_FROM = 0.6  # linear light at which that begins
_SMOOTH = 2  # halvings from which linear interpolation of what was blurred shows nothing


def blurred(scales: Scales, edge: Edge, radius: float, style: Style) -> Picture:
    """Return the background alone, blurred by `radius` pixels, at the whole size; the subject leaves no glow in it."""
    halvings = halvings_for(radius)
    at = min(halvings, scales.work())
    light = to_light(scales.at(at))
    weight = np.square(1 - fitted(settled(edge.matte), light.shape[:2]))
    if style == "disc":
        weight = weight * glow(light)
    carried = weighed(light, weight)
    for _ in range(halvings - at):
        carried = halved(carried)
    kernel = KERNELS[style](radius / 2**halvings)
    levels: Any = to_levels(spread(carried, kernel))
    if halvings > _SMOOTH:
        levels = cv2.resize(levels, scales.at(_SMOOTH).shape[1::-1], interpolation=cv2.INTER_CUBIC)
    return np.asarray(fitted(levels, scales.size))


def glow(light: Light) -> Light:
    """Return the weight [h,w] by which bright spots count more: they were clipped when the picture was taken."""
    peak = light.max(axis=2)
    over = np.clip((peak - _GLOW_FROM) / (1 - _GLOW_FROM), 0.0, 1.0)
    return np.asarray(1 + _GLOW * over * over, np.float32)


def plain(size: tuple[int, int], colour: tuple[int, int, int]) -> Picture:
    """Return a picture of (height, width) in one colour, levels 0 to 255."""
    return np.full((*size, 3), colour, np.uint8)
