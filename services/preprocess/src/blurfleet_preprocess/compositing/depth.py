"""Blur by distance: sharp in a focus plane, softer the further from it, in layers laid over each other from the back.

Each layer is blurred alone, so that nothing sharp glows into what is blurred behind it, and what is blurred in front
spreads over what it stands before. Between two layers a pixel belongs to both.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from blurfleet.quality.sentinel import Matte
from blurfleet_preprocess.compositing.backdrop import glow
from blurfleet_preprocess.compositing.defocus import Style, halvings_for, kernel, weighed
from blurfleet_preprocess.compositing.light import Light, Picture, to_levels
from blurfleet_preprocess.compositing.scales import Check, Scales, grown, halved, strips, unasked

_LEAST_RADIUS = 1.0  # pixels; below it nobody sees a blur
_MOST_LAYERS = 5  # on either side of the focus, each twice as soft as the one before
_STRIP_ROWS = 1024  # rows worked on at a time: 40 bytes of working memory for each of their pixels
_NEAREST = 98.0  # percentile of the map that counts as the nearest thing


def focus_of(near: Matte) -> float:
    """Return the value of the nearest thing in a map [h,w] of nearness: where automatic focus goes."""
    return float(np.percentile(near, _NEAREST))


def layered(
    picture: Picture, near: Matte, *, focus: float, radius: float, style: Style, check: Check = unasked
) -> Picture:
    """Return `picture` [H,W,3] blurred by the distance of `near` [H,W] (1 nearest, 0 farthest) from `focus`.

    A pixel's radius is `radius` * |near - focus| / max(focus, 1 - focus): `near` is inverse distance, like a disparity,
    to which a lens's circle of confusion is proportional. `radius` is in pixels.
    """
    out = np.empty_like(picture)
    margin = 64 * math.ceil(2 * radius / 64)
    for rows, here, within in strips(len(picture), _STRIP_ROWS, margin):
        scales = Scales(picture[rows], check)
        made = _strip(scales, scales.padded(_signed(near[rows], focus) * np.float32(radius)), radius, style)
        out[here] = scales.cut(made)[within]
    return out


def _signed(near: Matte, focus: float) -> Light:
    return np.asarray((near - np.float32(focus)) / np.float32(max(focus, 1 - focus)), np.float32)


def _strip(scales: Scales, distance: Light, radius: float, style: Style) -> Picture:
    """Lay the layers over each other; `distance` [H,W] is the radius of each pixel, negative behind the focus."""
    total = np.zeros((*scales.size, 4), np.float32)
    for low, middle, high in _ladder(radius):
        if not ((distance > low) & (distance < high)).any():
            continue
        scales.check()
        layer = _layer(scales, distance, (low, middle, high), style)
        scales.check()
        total *= 1 - layer[..., 3:]
        total += layer
    return to_levels(np.asarray(total[..., :3] / np.maximum(total[..., 3:], np.float32(1e-6)), np.float32))


def _ladder(radius: float) -> Iterator[tuple[float, float, float]]:
    """Yield each layer's radius between its neighbours', from the farthest to the nearest; negative is behind."""
    steps = [radius / 2**n for n in range(_MOST_LAYERS)]
    positive = [step for step in steps if step >= _LEAST_RADIUS]
    rungs = [-step for step in positive] + [0.0] + positive[::-1]
    around = [-math.inf, *rungs, math.inf]
    yield from zip(around, rungs, around[2:], strict=False)


def _share(distance: Light, rungs: tuple[float, float, float]) -> Light:
    """Return how much [h,w] of each pixel belongs to the layer at the middle rung: 1 there, 0 at its neighbours."""
    low, middle, high = rungs
    share: Any = np.ones_like(distance)
    if math.isfinite(low):
        share = np.minimum(share, (distance - np.float32(low)) / np.float32(middle - low))
    if math.isfinite(high):
        share = np.minimum(share, (np.float32(high) - distance) / np.float32(high - middle))
    return np.asarray(np.maximum(share, 0), np.float32)


def _layer(scales: Scales, distance: Light, rungs: tuple[float, float, float], style: Style) -> Light:
    """Return one blurred layer [H,W,4]: light times cover, and cover."""
    radius = abs(rungs[1])
    if radius == 0:
        return weighed(scales.light(0), _share(distance, rungs))
    halvings = halvings_for(radius)
    at = max(0, halvings - 1)
    light = scales.light(at)
    for _ in range(at):
        distance = halved(distance)
    share = _share(distance, rungs)
    carried, cover = weighed(light, share * glow(light) if style == "disc" else share), share
    for _ in range(halvings - at):
        carried, cover = halved(carried), halved(cover)
    blur = kernel(style, radius / 2**halvings)
    scales.check()
    carried = blur(carried)
    if style == "disc":
        carried *= blur(cover)[..., None] / np.maximum(carried[..., 3:], np.float32(1e-6))
    scales.check()
    return np.asarray(grown(carried, halvings, scales.size), np.float32)
