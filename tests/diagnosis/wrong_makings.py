"""What clients do wrong on their way from a picture to a tensor, as their own code does it: numpy, OpenCV, Pillow."""

from collections.abc import Callable
from dataclasses import dataclass

import cv2
import numpy as np
from PIL import Image

from blurfleet.api.contract import DEFAULT_CONTRACT
from blurfleet.pixels import Tensor

MEAN = np.array([float(m) for m in DEFAULT_CONTRACT.mean])
STD = np.array([float(s) for s in DEFAULT_CONTRACT.std])
Array = np.ndarray
SIZE = (320, 320)


def by_contract(pixels: Array) -> Array:
    return (pixels / 255 - MEAN) / STD


def pillow(rgb: Array) -> Array:
    return np.asarray(Image.fromarray(rgb).resize(SIZE, Image.Resampling.BILINEAR))


def opencv(flag: int) -> Callable[[Array], Array]:
    return lambda rgb: cv2.resize(rgb, SIZE, interpolation=flag)


def asymmetric(rgb: Array) -> Array:
    """Bilinear without half-pixel centres, as old exporters do it."""
    grid = np.array([[rgb.shape[1] / SIZE[0], 0, 0], [0, rgb.shape[0] / SIZE[1], 0]])
    return cv2.warpAffine(
        rgb, grid, SIZE, flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP, borderMode=cv2.BORDER_REPLICATE
    )


def shifted(down: float, right: float) -> Callable[[Array], Array]:
    """The contract's resize, then moved by fractions of a pixel of the tensor."""
    by = np.array([[1, 0, right], [0, 1, down]])
    return lambda rgb: cv2.warpAffine(
        pillow(rgb).astype(np.float32), by, SIZE, flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE
    )


def channels_first(array: Array) -> Array:
    return array.transpose(2, 0, 1)[None]


def reversed_channels(array: Array) -> Array:
    return array[..., ::-1]


def as_it_is(array: Array) -> Array:
    return array


@dataclass(frozen=True)
class Client:
    """Turns a picture [H,W,3] uint8 into a tensor; each step may be wrong. All but the last work on [H,W,3]."""

    before: Callable[[Array], Array] = as_it_is
    resize: Callable[[Array], Array] = pillow
    normalise: Callable[[Array], Array] = by_contract
    after: Callable[[Array], Array] = as_it_is
    pack: Callable[[Array], Array] = channels_first

    def tensor(self, rgb: Array) -> Tensor:
        made = self.after(self.normalise(self.resize(np.ascontiguousarray(self.before(rgb)))))
        return np.ascontiguousarray(self.pack(made), dtype=np.float32)
