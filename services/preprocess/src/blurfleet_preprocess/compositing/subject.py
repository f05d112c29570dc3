"""The subject's own colours where it is mixed with what lies behind it, and the subject over something else.

Front and back near a pixel are estimated first, then corrected by what the pixel says they leave over (Forte,
arXiv:2006.14970).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np

from blurfleet_preprocess.compositing.defocus import spread, weighed
from blurfleet_preprocess.compositing.edges import Edge, settled
from blurfleet_preprocess.compositing.light import Light, Picture, to_levels, to_light
from blurfleet_preprocess.compositing.rim import Rim, put, rims, sampled, taken
from blurfleet_preprocess.compositing.scales import Scales, halved

_REACH = 3  # pixels of half the refining size that are averaged


@dataclass(frozen=True, kw_only=True)
class Sides:
    """Light of the subject alone and of what is behind it alone, [h,w,3] each, where both come near each other."""

    front: Light
    back: Light


def sides(scales: Scales, edge: Edge) -> Sides:
    """Estimate both sides of the edge at half the refining size; a pixel counts by the fourth power of its share."""
    light, front = to_light(scales.at(scales.work())), settled(edge.matte)
    made = [spread(halved(weighed(light, np.square(np.square(side)))), _near) for side in (front, 1 - front)]
    return Sides(front=made[0], back=made[1])


def over(scales: Scales, edge: Edge, base: Picture) -> Picture:
    """Lay the subject over `base` [H,W,3] uint8, which is written to; what is settled as subject is copied."""
    picture, known = scales.at(0), None
    cv2.copyTo(picture, _whole(edge.subject, scales.size), base)
    for rim in rims(edge, picture):
        alpha = settled(rim.alpha)
        solid = rim.of(alpha >= 1)
        put(base, solid.where, solid.colours)
        soft = rim.of((alpha > 0) & (alpha < 1))
        if soft.where.size:
            known = known or sides(scales, edge)
            cover = _threefold(settled(soft.alpha))
            behind = to_light(taken(base, soft.where))
            put(base, soft.where, to_levels(behind + cover * (own_light(soft, cover, known) - behind)))
    return base


def cut_out(scales: Scales, edge: Edge) -> Picture:
    """Return [H,W,4]: the subject in its own colours and its alpha. Where alpha is 0 nothing of the picture is left."""
    picture, known = scales.at(0), None
    made = np.zeros((*scales.size, 4), np.uint8)
    cv2.copyTo(cv2.cvtColor(picture, cv2.COLOR_RGB2RGBA), _whole(edge.subject, scales.size), made)
    for rim in rims(edge, picture):
        some = rim.of(settled(rim.alpha) > 0)
        if not some.where.size:
            continue
        known = known or sides(scales, edge)
        alpha = settled(some.alpha)
        colours = to_levels(own_light(some, _threefold(alpha), known))
        cover = np.rint(255 * alpha).astype(np.uint8)
        put(made, some.where, np.where(cover[:, None] > 0, np.column_stack((colours, cover)), np.uint8(0)))
    return made


def own_light(rim: Rim, cover: Light, known: Sides) -> Light:
    """Return the subject's own light [N,3]; `cover` is alpha for each channel. The pixel itself where alpha is 1."""
    front, back = sampled(known.front, rim.where, rim.size), sampled(known.back, rim.where, rim.size)
    mixed = to_light(rim.colours)
    return np.clip(front + cover * (mixed - back - cover * (front - back)), 0.0, 1.0)


def _whole(mask: Any, size: tuple[int, int]) -> Any:
    return cv2.resize(mask, size[::-1], interpolation=cv2.INTER_NEAREST)


def _threefold(alpha: Light) -> Light:
    return np.repeat(alpha[:, None], 3, axis=1)


def _near(array: Any) -> Any:
    return cv2.blur(array, (_REACH, _REACH))
