"""The places of a picture where its matte is not settled: whole cells, picked out of it and put back, a heap at a time.

A cell is one pixel of the refining size, a block of 2**n x 2**n pixels of the picture. Copying rows of whole blocks is
many times as fast as copying pixels, and a heap stays in a core's cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import cv2
import numpy as np
import numpy.typing as npt

from blurfleet_preprocess.compositing.edges import Mask
from blurfleet_preprocess.compositing.light import Light

_HEAP = 1 << 14  # pixels; OpenCV's remap takes no side over 32767


@dataclass(frozen=True, kw_only=True)
class Cells:
    """K cells: `rows` [K*b] says where each row of each block is, `x` and `y` [K*b*b] where each pixel is, in cells."""

    rows: npt.NDArray[np.intp]
    x: Light
    y: Light
    block: int

    def of(self, picture: Any) -> Any:
        """Return the pixels [K*b*b,C] of a picture [H,W,C], block by block."""
        return np.take(self._items(picture), self.rows).view(picture.dtype).reshape(-1, picture.shape[2])

    def put(self, picture: Any, pixels: Any) -> None:
        """Write pixels [K*b*b,C] back into a picture [H,W,C]."""
        items = self._items(picture)
        np.put(items, self.rows, np.ascontiguousarray(pixels).reshape(-1).view(items.dtype))

    def sampled(self, array: Light) -> Light:
        """Return `array` [h,w,C], of the cells' size, at every pixel, linearly interpolated: [K*b*b,C]."""
        return _remapped(array, self.x, self.y)

    def sampled_coarser(self, arrays: tuple[Light, ...], only: npt.NDArray[np.intp]) -> tuple[Light, ...]:
        """Return arrays [h,w,C], of half the cells' size, at the pixels `only` [N], linearly interpolated: [N,C]."""
        x, y = (np.take(points, only) * np.float32(0.5) - np.float32(0.25) for points in (self.x, self.y))
        return tuple(_remapped(array, x, y) for array in arrays)

    def _items(self, picture: Any) -> Any:
        return picture.reshape(-1).view(f"V{self.block * picture.shape[2] * picture.itemsize}")


def cells(mask: Mask, halvings: int) -> Iterator[Cells]:
    """Yield heaps that together hold every cell of `mask` [h,w]; the picture is [h << halvings, w << halvings]."""
    block, across = 1 << halvings, mask.shape[1]
    inner = np.arange(block, dtype=np.int32)
    offset = ((inner + 0.5) / block - 0.5).astype(np.float32)
    everywhere = np.flatnonzero(mask.view(bool)).astype(np.int32)
    many = max(1, _HEAP >> (2 * halvings))
    for first in range(0, len(everywhere), many):
        row, column = np.divmod(everywhere[first : first + many], np.int32(across))
        rows = (row[:, None] * np.int32(block) + inner) * np.int32(across) + column[:, None]
        # Repeated and tiled, not broadcast: NumPy's loops are as long as the last axis, which is a block's few pixels.
        x = np.repeat(column.astype(np.float32), block * block) + np.tile(offset, len(row) * block)
        y = np.repeat(row.astype(np.float32), block * block) + np.tile(np.repeat(offset, block), len(row))
        yield Cells(rows=rows.reshape(-1).astype(np.intp), x=x, y=y, block=block)


def written(pixels: Any, where: npt.NDArray[np.intp], colours: Any) -> None:
    """Write colours [N,C] over some of `pixels` [M,C]: whole pixels at once, four times as fast as by channel."""
    pixel = f"V{pixels.shape[1] * pixels.itemsize}"
    np.put(pixels.reshape(-1).view(pixel), where, np.ascontiguousarray(colours).reshape(-1).view(pixel))


def _remapped(array: Light, x: Light, y: Light) -> Light:
    made: Any = cv2.remap(array, x[None], y[None], cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    return cast("Light", made[0])
