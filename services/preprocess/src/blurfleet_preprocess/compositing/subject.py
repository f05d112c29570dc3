"""The subject over something else, in its own colours where it is mixed with what lies behind it."""

from __future__ import annotations

from typing import Any, cast

import cv2
import numpy as np

from blurfleet.quality.sentinel import Matte
from blurfleet_preprocess.compositing.edges import Edge, alpha_of, settled_planes
from blurfleet_preprocess.compositing.light import Light, Picture, to_levels, to_light
from blurfleet_preprocess.compositing.patches import patches
from blurfleet_preprocess.compositing.rim import Places, Rim, gathered
from blurfleet_preprocess.compositing.scales import Scales
from blurfleet_preprocess.compositing.sides import Sides


def over(scales: Scales, edge: Edge, known: Sides | None, base: Picture) -> Picture:
    """Lay the subject over `base` [H,W,3] uint8, which is written to; what is settled as subject is copied."""
    rim = _copied(scales, edge, scales.at(0), base)
    if known is not None:
        for heap in rim.heaps():
            cover, behind = _threefold(heap.alpha), to_light(heap.of(base))
            light = _own_light(scales, heap, cover, known)
            light -= behind
            light *= cover
            light += behind
            heap.put(base, to_levels(light))
    return base


def cut_out(scales: Scales, edge: Edge, known: Sides | None) -> Picture:
    """Return [H,W,4]: the subject in its own colours and its alpha. Where alpha is 0 nothing of the picture is left."""
    made = np.zeros((*scales.size, 4), np.uint8)
    rim = _copied(scales, edge, cv2.cvtColor(scales.at(0), cv2.COLOR_RGB2RGBA), made)
    if known is not None:
        for heap in rim.heaps():
            colours = to_levels(_own_light(scales, heap, _threefold(heap.alpha), known))
            alpha = np.rint(255 * heap.alpha[:, None]).astype(np.uint8)
            heap.put(made, np.concatenate((np.where(alpha > 0, colours, np.uint8(0)), alpha), axis=1))
    return made


def fine(scales: Scales, edge: Edge, whole: Matte) -> Matte:
    """Return the matte `whole` [H,W] of the picture with its unsettled parts refined."""
    made = whole.copy()
    for patch in patches(edge.unsettled, scales.work, scales.size):
        made[patch.pixels] = alpha_of(patch.enlarged(edge.planes), scales.at(0)[patch.pixels])
    return made


def _copied(scales: Scales, edge: Edge, source: Any, target: Picture) -> Rim:
    """Copy every pixel that is all subject; return those that are partly."""
    height, width = edge.subject.shape
    mask: Any = cv2.resize(edge.subject, (width << scales.work, height << scales.work), interpolation=cv2.INTER_NEAREST)
    cv2.copyTo(source, np.ascontiguousarray(mask[: scales.size[0], : scales.size[1]]), target)
    found, planes = list[tuple[Places, Light]](), settled_planes(edge.planes)
    for patch in patches(edge.unsettled, scales.work, scales.size):
        alpha = alpha_of(patch.enlarged(planes), scales.at(0)[patch.pixels])
        cv2.copyTo(source[patch.pixels], np.greater_equal(alpha, 1).view(np.uint8), target[patch.pixels])
        there = np.flatnonzero((alpha > 0) & (alpha < 1))
        width, (top, left) = alpha.shape[1], (pixels.start for pixels in patch.pixels)
        rows = there.astype(np.int32) // np.int32(width)
        where = there + rows * np.int32(scales.size[1] - width) + (top * scales.size[1] + left)
        found.append((where, np.take(alpha, there)))
    return gathered(found, scales.size)


def _own_light(scales: Scales, rim: Rim, cover: Light, known: Sides) -> Light:
    """Return the subject's own light [N,3], of no sure range; `cover` [N,3] is alpha for each channel."""
    front, back = rim.sampled((known.front, known.back), scales.work + 1)
    contrast = front - back
    light: Light = to_light(rim.of(scales.at(0)))
    light -= back
    light -= cover * contrast
    light *= cover
    light += back
    light += contrast
    return light


def _threefold(alpha: Light) -> Light:
    return cast("Light", cv2.cvtColor(alpha[None], cv2.COLOR_GRAY2RGB)[0])
