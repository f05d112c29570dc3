"""The subject over something else, in its own colours where it is mixed with what lies behind it."""

from __future__ import annotations

from typing import Any, cast

import cv2
import numpy as np
import numpy.typing as npt

from blurfleet.quality.sentinel import Matte
from blurfleet_preprocess.compositing.cells import Cells, cells, written
from blurfleet_preprocess.compositing.edges import Edge, alpha_of, settled_planes
from blurfleet_preprocess.compositing.light import Light, Picture, to_levels, to_light
from blurfleet_preprocess.compositing.scales import Scales
from blurfleet_preprocess.compositing.sides import Sides


def over(scales: Scales, edge: Edge, known: Sides | None, base: Picture) -> Picture:
    """Lay the subject over `base` [H,W,3] uint8, which is written to; what is settled as subject is copied."""
    picture, planes = scales.at(0), settled_planes(edge.planes)
    cv2.copyTo(picture, _whole(edge.subject, scales.work), base)
    for heap in cells(edge.unsettled, scales.work):
        scales.check()
        colours, behind = heap.of(picture), heap.of(base)
        alpha = alpha_of(heap.sampled(planes), colours)
        cv2.copyTo(colours[None], _solid(alpha), behind[None])
        mixed = _mixed(alpha)
        if mixed.size and known is not None:
            cover, far = _threefold(alpha, mixed), to_light(np.take(behind, mixed, axis=0))
            light = _own_light(heap, mixed, colours, cover, known)
            light -= far
            light *= cover
            light += far
            written(behind, mixed, to_levels(light))
        heap.put(base, behind)
    return base


def cut_out(scales: Scales, edge: Edge, known: Sides | None) -> Picture:
    """Return [H,W,4]: the subject in its own colours and its alpha. Where alpha is 0 nothing of the picture is left."""
    picture, planes = scales.at(0), settled_planes(edge.planes)
    made = np.zeros((*scales.size, 4), np.uint8)
    cv2.copyTo(cv2.cvtColor(picture, cv2.COLOR_RGB2RGBA), _whole(edge.subject, scales.work), made)
    for heap in cells(edge.unsettled, scales.work):
        scales.check()
        colours = heap.of(picture)
        alpha = alpha_of(heap.sampled(planes), colours)
        mixed = _mixed(alpha)
        if mixed.size and known is not None:
            light = _own_light(heap, mixed, colours, _threefold(alpha, mixed), known)
            written(colours, mixed, to_levels(light))
        cover = np.rint(255 * alpha).astype(np.uint8)[:, None]
        heap.put(made, np.concatenate((np.where(cover > 0, colours, np.uint8(0)), cover), axis=1))
    return made


def fine(scales: Scales, edge: Edge, whole: Matte) -> Matte:
    """Refine the unsettled parts of the matte `whole` [H,W] of the picture, which is written to and returned."""
    for heap in cells(edge.unsettled, scales.work):
        scales.check()
        heap.put(whole[..., None], alpha_of(heap.sampled(edge.planes), heap.of(scales.at(0))))
    return whole


def _own_light(heap: Cells, mixed: npt.NDArray[np.intp], colours: Picture, cover: Light, known: Sides) -> Light:
    """Return the subject's own light [N,3], of no sure range, in the `mixed` pixels; `cover` [N,3] is their alpha.

    What is known of both sides is corrected by what the pixel leaves over (Forte, arXiv:2006.14970).
    """
    front, back = heap.sampled_coarser((known.front, known.back), mixed)
    light: Any = to_light(np.take(colours, mixed, axis=0))
    front -= back
    light -= back
    light -= cover * front
    light *= cover
    light += back
    light += front
    return cast("Light", light)


def _solid(alpha: Light) -> Any:
    return np.greater_equal(alpha, 1).view(np.uint8)[None]


def _mixed(alpha: Light) -> npt.NDArray[np.intp]:
    return np.flatnonzero((alpha > 0) & (alpha < 1))


def _whole(mask: Any, halvings: int) -> Any:
    height, width = mask.shape
    wide: Any = cv2.resize(mask, (width << halvings, height), interpolation=cv2.INTER_NEAREST)
    return np.repeat(wide, 1 << halvings, axis=0)


def _threefold(alpha: Light, where: npt.NDArray[np.intp]) -> Light:
    return np.repeat(np.take(alpha, where)[:, None], 3, axis=1)
