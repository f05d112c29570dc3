"""The pixels of the whole picture whose alpha is not settled: found, and worked on in small heaps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import cv2
import numpy as np
import numpy.typing as npt

from blurfleet_preprocess.compositing.edges import Edge, alpha_of
from blurfleet_preprocess.compositing.light import Light, Picture

Places = npt.NDArray[np.intp]

_HEAP = 1 << 16  # pixels at a time: what is worked out for them stays in a core's cache, and memory stays small
_ROW = 256  # OpenCV's remap takes no side over 32767


@dataclass(frozen=True, kw_only=True)
class Rim:
    """Some pixels of a picture [H,W]: `where` [N] counts along its rows, `alpha` [N] in [0,1], `colours` [N,3]."""

    where: Places
    alpha: Light
    colours: Picture
    size: tuple[int, int]

    def of(self, chosen: npt.NDArray[np.bool_]) -> Rim:
        """Return those that are `chosen` [N]."""
        there = np.flatnonzero(chosen)
        return Rim(
            where=self.where[there],
            alpha=self.alpha[there],
            colours=np.take(self.colours, there, axis=0),
            size=self.size,
        )


def rims(edge: Edge, picture: Picture) -> Iterator[Rim]:
    """Yield every pixel of `picture` [H,W,3] that the matte leaves open, a heap at a time."""
    if not edge.unsettled.any():
        return
    size = picture.shape[0], picture.shape[1]
    mask: Any = cv2.resize(edge.unsettled, size[::-1], interpolation=cv2.INTER_NEAREST)
    everywhere = np.flatnonzero(mask.view(bool))
    for first in range(0, len(everywhere), _HEAP):
        where = everywhere[first : first + _HEAP]
        colours = taken(picture, where)
        yield Rim(where=where, alpha=alpha_of(sampled(edge.planes, where, size), colours), colours=colours, size=size)


def sampled(array: Light, where: Places, size: tuple[int, int]) -> Light:
    """Return a smaller `array` [h,w,C] at those pixels of a picture of `size`, linearly interpolated: [N,C]."""
    row, column = np.divmod(where.astype(np.int32), np.int32(size[1]))
    count = len(where)
    points = [_grid(column, array.shape[1] / size[1]), _grid(row, array.shape[0] / size[0])]
    made = cv2.remap(array, points[0], points[1], cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    return cast("Light", made.reshape(-1, array.shape[2])[:count])


def _grid(index: npt.NDArray[np.int32], scale: float) -> Light:
    """Return pixel numbers of the whole picture in pixels of a smaller one (centres are half a pixel in), in rows."""
    points = np.zeros(-(-len(index) // _ROW) * _ROW, np.float32)
    np.multiply(index, np.float32(scale), out=points[: len(index)], dtype=np.float32)
    points += np.float32(0.5 * scale - 0.5)
    return points.reshape(-1, _ROW)


def taken(picture: Picture, where: Places) -> Picture:
    """Return the pixels [N,C] of a picture [H,W,C]."""
    return np.take(picture.reshape(-1, picture.shape[2]), where, axis=0)


def put(picture: Picture, where: Places, colours: Picture) -> None:
    """Write pixels [N,C] into a picture [H,W,C]; whole pixels at once, which is four times as fast as by channel."""
    pixel = f"V{picture.shape[2]}"
    np.put(picture.reshape(-1).view(pixel), where, np.ascontiguousarray(colours).reshape(-1).view(pixel))
