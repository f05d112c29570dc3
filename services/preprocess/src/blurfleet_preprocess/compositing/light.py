"""sRGB levels <-> linear light (IEC 61966-2-1). Light mixes in linear light: out of focus, a lamp stays bright."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, cast

import cv2
import numpy as np
import numpy.typing as npt

Picture = npt.NDArray[np.uint8]
Light = npt.NDArray[np.float32]

_TOP = 65535  # linear light is looked up in 16 bits: the darkest sRGB level is 20 of them wide


def to_light(picture: Picture) -> Light:
    """Return linear light in [0,1], float32, of sRGB levels; any shape of two or more dimensions."""
    return cast("Light", _flat(cv2.LUT(_plane(picture), _light_of_level()), picture.shape))


def to_levels(light: Light) -> Picture:
    """Return the sRGB levels of linear light, rounded to nearest; what lies outside [0,1] is clipped."""
    deep: Any = cv2.multiply(_plane(light), cast("Any", float(_TOP)), dtype=cv2.CV_16U)  # rounds and clips
    return cast("Picture", _flat(cv2.LUT(deep, _level_of_light()), light.shape))


def _plane(array: Any) -> Any:
    """View as one channel, so that OpenCV's scalars and tables mean every channel."""
    return np.ascontiguousarray(array).reshape(array.shape[0], -1)


def _flat(array: Any, shape: tuple[int, ...]) -> Any:
    return array.reshape(shape)


@lru_cache(maxsize=1)
def _light_of_level() -> Light:
    level = np.arange(256) / 255
    table = np.where(level <= 0.04045, level / 12.92, ((level + 0.055) / 1.055) ** 2.4).astype(np.float32)
    table.flags.writeable = False
    return table


@lru_cache(maxsize=1)
def _level_of_light() -> Picture:
    light = np.arange(_TOP + 1) / _TOP
    level = np.where(light <= 0.0031308, light * 12.92, 1.055 * light ** (1 / 2.4) - 0.055)
    table: Picture = np.rint(255 * level).astype(np.uint8)
    table.flags.writeable = False
    return table
