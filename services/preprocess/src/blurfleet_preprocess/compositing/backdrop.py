"""What the subject is laid over: the background out of focus, or one colour."""

from __future__ import annotations

import math
from typing import Any

import cv2
import numpy as np

from blurfleet.quality.sentinel import Matte
from blurfleet_preprocess.compositing.defocus import Style, halvings_for, kernel, spread, weighed
from blurfleet_preprocess.compositing.edges import Edge, settled
from blurfleet_preprocess.compositing.light import Light, Picture, to_levels
from blurfleet_preprocess.compositing.scales import Scales, grown, halved, strips
from blurfleet_preprocess.compositing.sides import Sides, without_subject

_GLOW = 12.0  # how much more than its light the brightest spot weighs in a disc
_GLOW_FROM = 0.6  # linear light at which that begins
_STRIP_PIXELS = 1 << 21  # of the level that is blurred, at a time: a hundred bytes of working memory for each
_REACH = 64  # pixels of that level from which light comes at the most, besides the blur's: see `spread`
_SMOOTH = 2  # doublings that linear interpolation may do on its own; those before are cubic


def blurred(scales: Scales, edge: Edge, known: Sides | None, radius: float, style: Style) -> Picture:
    """Return the background alone, blurred by `radius` pixels, at the whole size; the subject leaves no glow in it."""
    at = min(halvings_for(radius), scales.work)
    height, width = scales.size
    if height * width >> (2 * at) <= _STRIP_PIXELS:
        return _blurred(scales, edge.matte, known, radius, style)
    block = 2 << scales.work  # what the sides are made of
    step, margin = (
        block * math.ceil(rows / block) for rows in ((_STRIP_PIXELS << (2 * at)) / width, 2 * radius + (_REACH << at))
    )
    out = np.empty((height, width, 3), np.uint8)
    for rows, here, within in strips(height, step, margin):
        part = Scales(scales.at(0)[rows], scales.check, work=scales.work)
        small, halves = (slice(rows.start // side, -(-rows.stop // side)) for side in (block // 2, block))
        beside = None if known is None else Sides(front=known.front[halves], back=known.back[halves])
        out[here] = _blurred(part, edge.matte[small], beside, radius, style)[within]
    return out


def _blurred(scales: Scales, alone: Matte, known: Sides | None, radius: float, style: Style) -> Picture:
    halvings = halvings_for(radius)
    at = min(halvings, scales.work)
    light = scales.light(at)
    matte = grown(settled(alone), scales.work - at, light.shape[:2])
    scales.check()
    carried = without_subject(light, matte, known, scales.work - at + 1)
    if style == "disc":
        carried = weighed(carried, glow(light))
    for _ in range(halvings - at):
        carried = halved(carried)
    scales.check()
    levels: Any = to_levels(spread(carried, kernel(style, radius / 2**halvings)))
    if halvings > _SMOOTH:
        height, width = levels.shape[:2]
        times = halvings - _SMOOTH
        levels = cv2.resize(levels, (width << times, height << times), interpolation=cv2.INTER_CUBIC)
    return np.asarray(grown(levels, min(halvings, _SMOOTH), scales.size))


def glow(light: Light) -> Light:
    """Return the weight [h,w] by which bright spots count more: they were clipped when the picture was taken."""
    red, green, blue, _ = cv2.split(light)
    peak: Any = cv2.max(cv2.max(red, green), blue)
    over = np.clip((peak - _GLOW_FROM) / (1 - _GLOW_FROM), 0.0, 1.0)
    return np.asarray(1 + _GLOW * over * over, np.float32)


def plain(size: tuple[int, int], colour: tuple[int, int, int]) -> Picture:
    """Return a picture of (height, width) in one colour, levels 0 to 255."""
    return np.full((*size, 3), colour, np.uint8)
