"""Edge-aware upsampling of a matte: He and Sun's fast guided filter with a colour guide (arXiv:1505.00996).

In every small window the matte is taken to be a linear function of the picture's colour. The functions are found at a
small size, where that is cheap, and evaluated on the colours of the full picture, only where the matte is not settled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from blurfleet.quality.sentinel import Matte
from blurfleet_preprocess.compositing.light import Light, Picture

RADIUS = 3  # pixels of the small size; wider windows take up the texture around the edge (measured on composites)
EPSILON = 1e-5  # variance of the guide (in [0,1]) below which it counts as flat
SETTLED = 0.02  # a matte this near to 0 or 1 is taken as 0 or 1
_LEVEL = np.float32(1 / 255)

Mask = npt.NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True)
class Edge:
    """A matte refined at the small size, and how to find it at any other.

    `matte` is [h,w]; `planes` [h,w,4] give alpha = p[0:3] . rgb/255 + p[3]; `unsettled` is 1 where that is to be worked
    out pixel by pixel, `subject` is 1 where the matte is settled at 1.
    """

    matte: Matte
    planes: Light
    unsettled: Mask
    subject: Mask


def refine(matte: Matte, guide: Picture) -> Edge:
    """Return the matte [h,w] (float32 in [0,1]) refined along the edges of `guide` [h,w,3] (uint8, same size)."""
    around = np.ones((2 * RADIUS + 1, 2 * RADIUS + 1), np.uint8)
    low: Any = cv2.erode(matte, around)
    high: Any = cv2.dilate(matte, around)
    unsettled = ((high > SETTLED) & (low < 1 - SETTLED)).view(np.uint8)
    planes, refined = np.zeros((*matte.shape, 4), np.float32), matte.copy()
    planes[..., 3] = matte
    if unsettled.any():
        part = _window(unsettled, 2 * RADIUS)
        planes[part] = _planes(matte[part], guide[part])
        there = unsettled[part].view(bool)
        refined[part][there] = alpha_of(planes[part][there], guide[part][there])
    return Edge(matte=refined, planes=planes, unsettled=unsettled, subject=(low >= 1 - SETTLED).view(np.uint8))


def alpha_of(planes: Light, colours: Picture) -> Light:
    """Return alpha [N] in [0,1] of N pixels from their planes [N,4] and colours [N,3]."""
    alpha: Any = planes[:, 3].copy()
    for channel in range(3):
        alpha += planes[:, channel] * (colours[:, channel] * _LEVEL)
    return np.asarray(np.clip(alpha, 0.0, 1.0), np.float32)


def settled(alpha: Light) -> Light:
    """Return alpha stretched so that what is within SETTLED of 0 or 1 is exactly that."""
    return np.clip((alpha - np.float32(SETTLED)) * np.float32(1 / (1 - 2 * SETTLED)), 0.0, 1.0)


def _window(mask: Mask, margin: int) -> tuple[slice, slice]:
    left, top, width, height = cv2.boundingRect(mask)
    return slice(max(0, top - margin), top + height + margin), slice(max(0, left - margin), left + width + margin)


def _mean(array: Any) -> Any:
    return cv2.boxFilter(array, -1, (2 * RADIUS + 1, 2 * RADIUS + 1))


def _planes(matte: Matte, guide: Picture) -> Light:
    """Return the linear functions [h,w,4] of all windows, averaged over the windows that a pixel lies in."""
    colour = np.multiply(guide, _LEVEL)
    means = [*cv2.split(_mean(colour)), _mean(matte)]
    mr, mg, mb, mm = means
    r, g, b = cv2.split(colour)
    rr, gg, bb = cv2.split(_mean(cv2.multiply(colour, colour)))
    rg, rb, gb = (_mean(x * y) - mx * my for x, y, mx, my in ((r, g, mr, mg), (r, b, mr, mb), (g, b, mg, mb)))
    right = [_mean(x * matte) - mx * mm for x, mx in ((r, mr), (g, mg), (b, mb))]
    ridge = np.float32(EPSILON)
    x, y, z = _solved((rr - mr * mr + ridge, gg - mg * mg + ridge, bb - mb * mb + ridge), (rg, rb, gb), right)
    return np.asarray(_mean(cv2.merge((x, y, z, mm - x * mr - y * mg - z * mb))), dtype=np.float32)


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
