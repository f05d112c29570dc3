"""What the subject and what lies behind it look like on their own, on either side of the edge between them.

Near a pixel both are averages of what is surely one or the other; where the two are mixed, the pixel then says how they
differ from that (Forte, arXiv:2006.14970).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import cv2
import numpy as np

from blurfleet_preprocess.compositing.defocus import spread, weighed
from blurfleet_preprocess.compositing.edges import Edge, settled
from blurfleet_preprocess.compositing.light import Light
from blurfleet_preprocess.compositing.scales import Scales, grown, halved

_REACH = 3  # pixels of half the refining size that are averaged


@dataclass(frozen=True, kw_only=True)
class Sides:
    """Light of the subject alone and of what is behind it alone, [h,w,3] each at half the refining size."""

    front: Light
    back: Light


def sides(scales: Scales, edge: Edge) -> Sides | None:
    """Estimate both sides of the edge, None where there is none; a pixel counts by the fourth power of its share."""
    if not edge.unsettled.any():
        return None
    light, share = scales.light(scales.work), settled(edge.matte)
    front, back = (spread(halved(weighed(light, np.square(np.square(side)))), _near) for side in (share, 1 - share))
    return Sides(front=front, back=back)


def without_subject(light: Light, matte: Light, known: Sides | None, doublings: int) -> Light:
    """Return what of `light` [h,w,4] is not the subject's, weighed by the square of its share, [h,w,4].

    `matte` is [h,w]; the sides are `doublings` smaller than both.
    """
    if known is None:
        return weighed(light, np.square(1 - matte))
    share: Any = cv2.merge((matte, matte, matte, matte))
    rest: Any = cv2.cvtColor(grown(known.front, doublings, matte.shape), cv2.COLOR_RGB2RGBA)
    rest *= share
    np.subtract(light, rest, out=rest)
    np.maximum(rest, 0, out=rest)
    np.subtract(1, share, out=share)
    rest *= share
    return cast("Light", rest)


def _near(array: Any) -> Any:
    return cv2.blur(array, (_REACH, _REACH))
