"""Smaller copies of a picture. Each pixel of one is a 2x2 block of the one before, counted from the top left.

Where a side is odd its last row or column counts twice, so a level never drifts against the picture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import cv2
import numpy as np

from blurfleet_preprocess.compositing.light import Light, Picture, to_light

_WORK_SIDE = 270  # the shorter side that mattes are refined at: a quarter of 1080p, near the networks' own 320
_WORK_PIXELS = 1 << 20  # more than twice what 16:9 comes to; without it a strip of 271x32766 is refined as it is
Check = Callable[[], object]
"""Raises where nobody waits for the picture any more. Called between steps of some hundredths of a second."""


def unasked() -> None:
    """Let work go on, whoever waits for it."""


class Scales:
    """The picture [H,W,3] and its halves, made when first asked for. One per request.

    The picture is padded to whole blocks of the level `work`, at which mattes are refined; `cut` takes that off again.
    """

    def __init__(self, picture: Picture, check: Check = unasked, *, work: int | None = None) -> None:
        """Begin with the whole picture; `work` halvings are what a larger one, of which it is a part, is refined at."""
        height, width = picture.shape[:2]
        self.asked = height, width
        self.check = check
        self.work = work_level(self.asked) if work is None else work
        self._made = [np.asarray(self.padded(picture), np.uint8)]
        self._light = dict[int, Light]()

    def padded(self, array: Any) -> Any:
        """Return `array`, [H,W] or [H,W,C] of the given size, its last row and column repeated up to the padded one."""
        below, beside = (-side % (1 << self.work) for side in self.asked)
        return cv2.copyMakeBorder(array, 0, below, 0, beside, cv2.BORDER_REPLICATE) if below or beside else array

    def cut(self, made: Any) -> Any:
        """Return what was made of the padded picture, [H,W] or [H,W,C], at the size of the one that was given."""
        return np.ascontiguousarray(made[: self.asked[0], : self.asked[1]])

    @property
    def size(self) -> tuple[int, int]:
        """Return (height, width) of the padded picture."""
        return self._made[0].shape[0], self._made[0].shape[1]

    def at(self, halvings: int) -> Picture:
        """Return the picture halved `halvings` times: each pixel the mean of its block."""
        while len(self._made) <= halvings:
            self.check()
            self._made.append(halved(self._made[-1]))
        return self._made[halvings]

    def light(self, halvings: int) -> Light:
        """Return the linear light of that level, [h,w,4] with a last channel of ones: light, and how much of it."""
        if halvings not in self._light:
            self.check()
            self._light[halvings] = to_light(np.asarray(cv2.cvtColor(self.at(halvings), cv2.COLOR_RGB2RGBA), np.uint8))
        return self._light[halvings]


def work_level(size: tuple[int, int]) -> int:
    """Return the halvings at which the matte of a picture of (height, width) is refined: at most 2**20 pixels then."""
    level = max(0, (min(size) // _WORK_SIDE).bit_length() - 1)
    while size[0] * size[1] >> (2 * level) > _WORK_PIXELS:
        level += 1
    return level


def strips(height: int, step: int, margin: int) -> Iterator[tuple[slice, slice, slice]]:
    """Yield the rows to look at, `margin` around the `step` rows to write, those, and where they lie in the first."""
    for top in range(0, height, step):
        first = max(0, top - margin)
        yield (
            slice(first, min(height, top + step + margin)),
            slice(top, top + step),
            slice(top - first, top - first + step),
        )


def halved(array: Any) -> Any:
    """Return `array` [H,W] or [H,W,C] at half its size, rounded up: means of 2x2 blocks."""
    height, width = array.shape[:2]
    if height % 2 or width % 2:
        array = cv2.copyMakeBorder(array, 0, height % 2, 0, width % 2, cv2.BORDER_REPLICATE)
    return cv2.resize(array, ((width + 1) // 2, (height + 1) // 2), interpolation=cv2.INTER_AREA)


def grown(array: Any, doublings: int, size: tuple[int, int]) -> Any:
    """Return `array` doubled so many times, linearly, and cut to (height, width): the way back from `halved`."""
    if doublings:
        height, width = array.shape[:2]
        array = cv2.resize(array, (width << doublings, height << doublings), interpolation=cv2.INTER_LINEAR)
    return np.ascontiguousarray(array[: size[0], : size[1]])


def fitted(array: Any, size: tuple[int, int]) -> Any:
    """Return `array` at (height, width): area means when it shrinks, linear when it grows; itself where it fits."""
    if array.shape[:2] == size:
        return array
    shrinks = size[0] <= array.shape[0] and size[1] <= array.shape[1]
    made: Any = cv2.resize(array, size[::-1], interpolation=cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR)
    return np.ascontiguousarray(made)


def gridded(array: Any, size: tuple[int, int], halvings: int) -> Any:
    """Return an `array` that covers a picture of (height, width) as that picture's level `halvings` has it."""
    block = 1 << halvings
    if size[0] % block == 0 == size[1] % block:
        return fitted(array, (size[0] // block, size[1] // block))
    scale_y, scale_x = array.shape[0] / size[0], array.shape[1] / size[1]
    centres = np.array(
        [[block * scale_x, 0, 0.5 * block * scale_x - 0.5], [0, block * scale_y, 0.5 * block * scale_y - 0.5]]
    )
    return cv2.warpAffine(
        array,
        centres,
        (-(-size[1] // block), -(-size[0] // block)),
        flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP,
        borderMode=cv2.BORDER_REPLICATE,
    )
