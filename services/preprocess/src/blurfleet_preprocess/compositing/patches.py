"""The parts of the whole picture where the matte is not settled: rectangles, small enough for a core's cache."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import cv2
import numpy as np

from blurfleet_preprocess.compositing.edges import Mask
from blurfleet_preprocess.compositing.light import Light

_ROWS, _COLUMNS = 8, 48  # cells of the refining size
_GAP = 4  # settled cells that are rather worked on than begun anew after


@dataclass(frozen=True, kw_only=True)
class Patch:
    """A rectangle, in cells of the refining size (rows, columns) and in pixels of the picture."""

    cells: tuple[slice, slice]
    pixels: tuple[slice, slice]
    halvings: int

    def enlarged(self, array: Light) -> Light:
        """Return what `array` [h,w,C] of the refining size has here, for each pixel [rows,columns,C], linear."""
        (top, above), (left, before) = (_with_margin(cells.start) for cells in self.cells)
        part = array[top : self.cells[0].stop + 1, left : self.cells[1].stop + 1]
        height, width = part.shape[:2]
        made: Any = cv2.resize(part, (width << self.halvings, height << self.halvings), interpolation=cv2.INTER_LINEAR)
        rows, columns = (pixels.stop - pixels.start for pixels in self.pixels)
        above, before = above << self.halvings, before << self.halvings
        return cast("Light", made[above : above + rows, before : before + columns])


def patches(unsettled: Mask, halvings: int, size: tuple[int, int]) -> Iterator[Patch]:
    """Yield patches that hold every cell of `unsettled` [h,w]; `size` is the picture's (height, width)."""
    for top in range(0, unsettled.shape[0], _ROWS):
        rows = slice(top, min(top + _ROWS, unsettled.shape[0]))
        for left, right in _runs(np.flatnonzero(unsettled[rows].any(axis=0)).tolist()):
            columns = slice(left, right)
            pixels = (_scaled(rows, halvings, size[0]), _scaled(columns, halvings, size[1]))
            yield Patch(cells=(rows, columns), pixels=pixels, halvings=halvings)


def _runs(columns: list[int]) -> Iterator[tuple[int, int]]:
    """Yield (first, end) of runs that hold all columns, which come in order; each of bounded length."""
    first = end = -1
    for column in columns:
        if first >= 0 and (column - end > _GAP or column - first >= _COLUMNS):
            yield first, end
            first = -1
        first, end = (column if first < 0 else first), column + 1
    if first >= 0:
        yield first, end


def _scaled(cells: slice, halvings: int, length: int) -> slice:
    return slice(cells.start << halvings, min(cells.stop << halvings, length))


def _with_margin(start: int) -> tuple[int, int]:
    """Return where a part begins that has one cell more before it, if there is one, and how many it has."""
    first = max(0, start - 1)
    return first, start - first
