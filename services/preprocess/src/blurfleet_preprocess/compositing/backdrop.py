"""What the subject is laid over: the background out of focus, or one colour."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np

from blurfleet_preprocess.compositing.defocus import Style, halvings_for, kernel, spread, weighed
from blurfleet_preprocess.compositing.edges import Edge, settled
from blurfleet_preprocess.compositing.light import Light, Picture, to_levels
from blurfleet_preprocess.compositing.scales import Scales, grown, halved
from blurfleet_preprocess.compositing.sides import Sides, without_subject

_GLOW = 12.0  # how much more than its light the brightest spot weighs in a disc
_GLOW_FROM = 0.6  # linear light at which that begins
_SMOOTH = 2  # doublings that linear interpolation may do on its own; those before are cubic


def blurred(scales: Scales, edge: Edge, known: Sides | None, radius: float, style: Style) -> Picture:
    """Return the background alone, blurred by `radius` pixels, at the whole size; the subject leaves no glow in it."""
    halvings = halvings_for(radius)
    at = min(halvings, scales.work)
    light = scales.light(at)
    matte = grown(settled(edge.matte), scales.work - at, light.shape[:2])
    carried = without_subject(light, matte, known, scales.work - at + 1)
    if style == "disc":
        carried = weighed(carried, glow(light))
    for _ in range(halvings - at):
        carried = halved(carried)
    levels: Any = to_levels(spread(carried, kernel(style, radius / 2**halvings)))
    if halvings > _SMOOTH:
        height, width = levels.shape[:2]
        times = halvings - _SMOOTH
        levels = cv2.resize(levels, (width << times, height << times), interpolation=cv2.INTER_CUBIC)
    return np.asarray(grown(levels, min(halvings, _SMOOTH), scales.size))


def glow(light: Light) -> Light:
    """Return the weight [h,w] by which bright spots count more: they were clipped when the picture was taken."""
    peak: Any = light[..., :3].max(axis=2)
    over = np.clip((peak - _GLOW_FROM) / (1 - _GLOW_FROM), 0.0, 1.0)
    return np.asarray(1 + _GLOW * over * over, np.float32)


def plain(size: tuple[int, int], colour: tuple[int, int, int]) -> Picture:
    """Return a picture of (height, width) in one colour, levels 0 to 255."""
    return np.full((*size, 3), colour, np.uint8)
