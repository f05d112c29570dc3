"""Smaller copies of a picture, each half the one before, made when first asked for."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np

from blurfleet_preprocess.compositing.light import Picture

_WORK_SIDE = 270  # the shorter side that mattes are refined at: a quarter of 1080p, near the networks' own 320


class Scales:
    """The picture [H,W,3] and its halves; `at(n)` is 2**n times smaller, sizes rounded up. One per request."""

    def __init__(self, picture: Picture) -> None:
        self._made = [picture]

    @property
    def size(self) -> tuple[int, int]:
        """Return (height, width) of the whole picture."""
        return self._made[0].shape[0], self._made[0].shape[1]

    def at(self, halvings: int) -> Picture:
        """Return the picture halved `halvings` times: each pixel the mean of what it covers."""
        while len(self._made) <= halvings:
            self._made.append(halved(self._made[-1]))
        return self._made[halvings]

    def work(self) -> int:
        """Return the halvings at which the shorter side comes nearest to, but not under, the refining size."""
        halvings, side = 0, min(self.size)
        while side // 2 >= _WORK_SIDE:
            halvings, side = halvings + 1, side // 2
        return halvings


def halved(array: Any) -> Any:
    """Return `array` [H,W] or [H,W,C] at half its size, rounded up; area means."""
    return fitted(array, ((array.shape[0] + 1) // 2, (array.shape[1] + 1) // 2))


def fitted(array: Any, size: tuple[int, int]) -> Any:
    """Return `array` at (height, width): area means when it shrinks, linear when it grows; itself where it fits."""
    if array.shape[:2] == size:
        return array
    shrinks = size[0] <= array.shape[0] and size[1] <= array.shape[1]
    made: Any = cv2.resize(array, size[::-1], interpolation=cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR)
    return np.ascontiguousarray(made)
