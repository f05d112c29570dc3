"""From matte to picture: laid back over the upright picture, background blurred, encoded."""

from __future__ import annotations

from typing import Any, Literal, cast

import cv2
import numpy as np
import numpy.typing as npt

from blurfleet.api.contract import ContractSpec
from blurfleet.errors import InvalidInput
from blurfleet.pixels import Pixels, placement
from blurfleet.quality.sentinel import Matte
from blurfleet.reasons import Reason

Picture = npt.NDArray[np.uint8]
ImageFormat = Literal["jpeg", "png", "webp"]
MEDIA_TYPES: dict[ImageFormat, str] = {"jpeg": "image/jpeg", "png": "image/png", "webp": "image/webp"}
MIN_RADIUS, MAX_RADIUS = 1.0, 200.0
_AUTO_SHARE, _AUTO_MIN, _AUTO_MAX = 0.042, 4.0, 65.0  # 45 pixels on a 1080p picture
_JPEG_QUALITY = 92
_PNG_LEVEL = 1  # zlib's fastest: mattes and blurred pictures gain a few per cent above it, for three times the time


def matte_on_picture(matte: Matte, spec: ContractSpec, decoded_size: tuple[int, int]) -> Matte:
    """Return the matte [h,w] float32 in [0,1] at the size of the upright picture.

    What a letterbox added is cut off; what a crop left out counts as background. `matte` is [H,W] at any size.
    """
    place = placement(decoded_size, spec)
    rows, columns = matte.shape[0] / spec.height.opt, matte.shape[1] / spec.width.opt
    top, left, height, width = place.tensor
    inner = matte[
        round(top * rows) : round((top + height) * rows), round(left * columns) : round((left + width) * columns)
    ]
    top, left, height, width = place.picture
    drawn: Any = cv2.resize(inner, (width, height), interpolation=cv2.INTER_LINEAR)
    if (height, width) == decoded_size:
        return np.asarray(np.clip(drawn, 0.0, 1.0), dtype=np.float32)
    whole = np.zeros(decoded_size, dtype=np.float32)
    whole[top : top + height, left : left + width] = np.clip(drawn, 0.0, 1.0)
    return whole


def auto_radius(size: tuple[int, int]) -> float:
    """Return the blur radius in pixels for a picture of (height, width): 4.2 % of its shorter side, 4 to 65."""
    return min(max(_AUTO_SHARE * min(size), _AUTO_MIN), _AUTO_MAX)


def blur_background(rgb: Pixels, matte: Matte, radius: float) -> Picture:
    """Return `rgb` [H,W,3] (0..255) with the background Gaussian-blurred (sigma = radius / 2), as uint8."""
    sharp = rgb if rgb.dtype == np.uint8 else np.rint(rgb).astype(np.uint8)
    blurred = cv2.GaussianBlur(sharp, (0, 0), radius / 2)
    return cast("Picture", cv2.blendLinear(sharp, blurred, matte, np.float32(1.0) - matte))


def as_levels(matte: Matte) -> Picture:
    """Return a matte as 8-bit grey, rounded to nearest."""
    return np.rint(np.clip(matte, 0.0, 1.0) * 255).astype(np.uint8)


def encode(picture: Picture, form: ImageFormat) -> bytes:
    """Return the encoded picture: RGB [H,W,3] or grey [H,W] uint8, upright, without any orientation tag.

    Raises InvalidInput ImageTooLarge where the format cannot hold a picture of that size.
    """
    stored: Any = cv2.cvtColor(picture, cv2.COLOR_RGB2BGR) if picture.ndim == 3 else picture
    options = {
        "jpeg": [cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY],
        "png": [cv2.IMWRITE_PNG_COMPRESSION, _PNG_LEVEL],
        "webp": [cv2.IMWRITE_WEBP_QUALITY, _JPEG_QUALITY],
    }[form]
    try:
        written, data = cv2.imencode(f".{form}", stored, options)
    except cv2.error:
        written, data = False, np.empty(0, np.uint8)
    if not written:
        message = f"{stored.shape[1]}x{stored.shape[0]} cannot be written as {form}"
        raise InvalidInput(Reason.IMAGE_TOO_LARGE, message, where="format", fix="ask for png")
    return bytes(data)
