"""Edge-aware upsampling of a matte: He and Sun's fast guided filter with a colour guide (arXiv:1505.00996).

In every small window the matte is taken to be a linear function of the picture's colour. The functions are found at a
small size, where that is cheap, and evaluated on the colours of the full picture, only where the matte is not settled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import cv2
import numpy as np
import numpy.typing as npt

from blurfleet.quality.sentinel import Matte
from blurfleet_preprocess.compositing.light import Light, Picture
from blurfleet_preprocess.compositing.scales import Check, strips, unasked

RADIUS = 3  # pixels of the small size; wider windows take up the texture around the edge (measured on composites)
EPSILON = 1e-4  # variance of the guide (in [0,1]) below which it counts as flat; less lets JPEG noise dot the edge
SETTLED = 0.02  # a matte this near to 0 or 1 is taken as 0 or 1
_LEVEL = np.float32(1 / 255)
_SUM = np.ones(4, np.float32)
_TILE = 1 << 16  # pixels that the filter is worked out for at a time: a tenth of a second, and in a core's cache

Mask = npt.NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True)
class Edge:
    """A matte refined at the small size, and how to find it at any other.

    `matte` is [h,w]; `planes` [h,w,4] give alpha = p . (red, green, blue, 255), colours in levels; `unsettled` is 1
    where that is to be worked out pixel by pixel, `subject` is 1 where the matte is settled at 1.
    """

    matte: Matte
    planes: Light
    unsettled: Mask
    subject: Mask


def refine(matte: Matte, guide: Picture | None, check: Check = unasked) -> Edge:
    """Return the matte [h,w] (float32 in [0,1]) refined along the edges of `guide` [h,w,3] (uint8, same size).

    Without a guide it is taken as it is: a picture no larger than its matte has no edges to add.
    """
    around = np.ones((2 * RADIUS + 1, 2 * RADIUS + 1), np.uint8)
    low: Any = cv2.erode(matte, around)
    high: Any = cv2.dilate(matte, around)
    unsettled = ((high > SETTLED) & (low < 1 - SETTLED)).view(np.uint8)
    planes, refined = np.zeros((*matte.shape, 4), np.float32), matte.copy()
    planes[..., 3] = matte * _LEVEL
    if guide is not None and unsettled.any():
        part = _window(unsettled, 2 * RADIUS)
        planes[part] = _tiled(matte[part], guide[part], unsettled[part], check)
        there = np.flatnonzero(unsettled.view(bool))
        refined.reshape(-1)[there] = alpha_of(
            np.take(planes.reshape(-1, 4), there, axis=0), np.take(guide.reshape(-1, 3), there, axis=0)
        )
    return Edge(matte=refined, planes=planes, unsettled=unsettled, subject=(low >= 1 - SETTLED).view(np.uint8))


def alpha_of(planes: Light, colours: Picture) -> Light:
    """Return alpha [N] in [0,1] of pixels from their planes [N,4] and colours [N,3]."""
    levels: Any = cv2.cvtColor(colours[None], cv2.COLOR_RGB2RGBA)[0]
    terms: Any = cv2.multiply(planes, levels, dtype=cv2.CV_32F)
    return np.asarray(np.clip(terms @ _SUM, 0.0, 1.0), np.float32)


def settled_planes(planes: Light) -> Light:
    """Return planes [h,w,4] by which `alpha_of` gives what `settled` makes of it."""
    stretched = planes * np.float32(1 / (1 - 2 * SETTLED))
    stretched[..., 3] -= np.float32(SETTLED / (1 - 2 * SETTLED)) * _LEVEL
    return stretched


def settled(alpha: Light) -> Light:
    """Return alpha stretched so that what is within SETTLED of 0 or 1 is exactly that."""
    stretched = (alpha - np.float32(SETTLED)) * np.float32(1 / (1 - 2 * SETTLED))
    return np.asarray(np.clip(stretched, 0.0, 1.0), np.float32)


def _window(mask: Mask, margin: int) -> tuple[slice, slice]:
    left, top, width, height = cv2.boundingRect(mask)
    return slice(max(0, top - margin), top + height + margin), slice(max(0, left - margin), left + width + margin)


def _mean(array: Any) -> Any:
    return cv2.boxFilter(array, -1, (2 * RADIUS + 1, 2 * RADIUS + 1))


def _tiled(matte: Matte, guide: Picture, wanted: Mask, check: Check) -> Light:
    """Return what `_planes` gives, some rows at a time: a row depends on those within twice the filter's radius."""
    made = np.empty((*matte.shape, 4), np.float32)
    step = max(8 * RADIUS, _TILE // matte.shape[1])
    for rows, here, within in strips(len(matte), step, 2 * RADIUS):
        check()
        made[here] = _planes(matte[rows], guide[rows], wanted[rows])[within]
    return made


def _planes(matte: Matte, guide: Picture, wanted: Mask) -> Light:
    """Return the linear functions [h,w,4] of the windows around `wanted`, averaged over those a pixel lies in.

    Other windows are settled: there the function is the matte itself.
    """
    colour = np.multiply(guide, _LEVEL)
    r, g, b = cv2.split(colour)
    where = np.flatnonzero(cv2.dilate(wanted, np.ones((2 * RADIUS + 1, 2 * RADIUS + 1), np.uint8)).view(bool))

    def mean(array: Any) -> Any:
        return np.take(_mean(array), where)

    mr, mg, mb, mm = mean(r), mean(g), mean(b), mean(matte)
    ridge = np.float32(EPSILON)
    same = mean(r * r) - mr * mr + ridge, mean(g * g) - mg * mg + ridge, mean(b * b) - mb * mb + ridge
    cross = mean(r * g) - mr * mg, mean(r * b) - mr * mb, mean(g * b) - mg * mb
    right = mean(r * matte) - mr * mm, mean(g * matte) - mg * mm, mean(b * matte) - mb * mm
    x, y, z = _solved(same, cross, right)
    planes = np.zeros((*matte.shape, 4), np.float32)
    planes[..., 3] = matte
    planes.reshape(-1, 4)[where] = np.stack((x, y, z, mm - x * mr - y * mg - z * mb), axis=1)
    return cast("Light", np.multiply(_mean(planes), _LEVEL))


def _solved(same: Any, cross: Any, right: Any) -> tuple[Any, Any, Any]:
    """Solve [[s0,c0,c1],[c0,s1,c2],[c1,c2,s2]] x = right for each pixel, by cofactors."""
    (s0, s1, s2), (c0, c1, c2), (r0, r1, r2) = same, cross, right
    i00, i01, i02 = s1 * s2 - c2 * c2, c1 * c2 - c0 * s2, c0 * c2 - c1 * s1
    i11, i12, i22 = s0 * s2 - c1 * c1, c0 * c1 - s0 * c2, s0 * s1 - c0 * c0
    scale = 1 / (s0 * i00 + c0 * i01 + c1 * i02)
    return (
        (i00 * r0 + i01 * r1 + i02 * r2) * scale,
        (i01 * r0 + i11 * r1 + i12 * r2) * scale,
        (i02 * r0 + i12 * r1 + i22 * r2) * scale,
    )
