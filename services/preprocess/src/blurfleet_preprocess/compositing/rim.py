"""The pixels in which the subject is mixed with what lies behind it, picked out of the picture and put back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import cv2
import numpy as np
import numpy.typing as npt

from blurfleet_preprocess.compositing.light import Light, Picture

Places = npt.NDArray[np.intp]

_HEAP = 1 << 14  # pixels at a time: what is worked out for them stays in a core's cache
_ROW = 256  # OpenCV's remap takes no side over 32767


@dataclass(frozen=True, kw_only=True)
class Rim:
    """Some pixels of a picture of `size`: `where` [N] counts along its rows, `alpha` [N] in [0,1]."""

    where: Places
    alpha: Light
    size: tuple[int, int]

    def heaps(self) -> Iterator[Rim]:
        """Yield the same pixels, a heap at a time."""
        for first in range(0, len(self.where), _HEAP):
            part = slice(first, first + _HEAP)
            yield Rim(where=self.where[part], alpha=self.alpha[part], size=self.size)

    def of(self, picture: Picture) -> Picture:
        """Return the pixels [N,C] of a picture [H,W,C]."""
        return np.take(picture.reshape(-1, picture.shape[2]), self.where, axis=0)

    def put(self, picture: Picture, colours: Picture) -> None:
        """Write pixels [N,C] into a picture [H,W,C]; whole pixels at once, four times as fast as by channel."""
        pixel = f"V{picture.shape[2]}"
        np.put(picture.reshape(-1).view(pixel), self.where, np.ascontiguousarray(colours).reshape(-1).view(pixel))

    def sampled(self, arrays: tuple[Light, ...], halvings: int) -> list[Light]:
        """Return arrays [h,w,C] of a level of the picture at these pixels, linearly interpolated: [N,C] each."""
        row, column = np.divmod(self.where.astype(np.int32), np.int32(self.size[1]))
        x, y = _grid(column, halvings), _grid(row, halvings)
        made: list[Any] = [cv2.remap(a, x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE) for a in arrays]
        return [cast("Light", m.reshape(-1, m.shape[2])[: len(self.where)]) for m in made]


def gathered(found: list[tuple[Places, Light]], size: tuple[int, int]) -> Rim:
    """Return one rim of all the (places, alpha) found in a picture of `size`."""
    where = np.concatenate([one for one, _ in found]) if found else np.empty(0, np.intp)
    alpha = np.concatenate([one for _, one in found]) if found else np.empty(0, np.float32)
    return Rim(where=where, alpha=alpha, size=size)


def _grid(index: npt.NDArray[np.int32], halvings: int) -> Light:
    """Return pixel numbers of the picture in pixels of a level (centres are half a pixel in), in rows for remap."""
    scale = np.float32(1 / (1 << halvings))
    points = np.zeros(-(-len(index) // _ROW) * _ROW, np.float32)
    np.multiply(index, scale, out=points[: len(index)], dtype=np.float32)
    points += (scale - 1) / 2
    return points.reshape(-1, _ROW)
