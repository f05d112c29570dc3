"""Photographs at 1920x1080: what shipped data sets hold, cut to 16:9 and enlarged, since none of them is that large."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import skimage.data
from sklearn.datasets import load_sample_images

from blurfleet_preprocess.picture import encode

WIDTH, HEIGHT = 1920, 1080


def photographs() -> dict[str, Any]:
    """Return RGB uint8 [1080,1920,3] by name: two of people and things, two of scenes."""
    china, flower = load_sample_images().images
    stored: Any = skimage.data
    found = {"astronaut": stored.astronaut(), "coffee": stored.coffee(), "china": china, "flower": flower}
    return {name: enlarged(picture) for name, picture in found.items()}


def enlarged(picture: Any) -> Any:
    """Return the upper middle of `picture` [H,W,3] in 16:9, at 1920x1080."""
    height, width = picture.shape[:2]
    rows = min(height, round(width * HEIGHT / WIDTH))
    top = (height - rows) // 4  # faces are in the upper half
    part = np.ascontiguousarray(picture[top : top + rows])
    return cv2.resize(part, (WIDTH, HEIGHT), interpolation=cv2.INTER_CUBIC)


def as_jpeg(picture: Any) -> bytes:
    """Return the picture as the JPEG that clients send."""
    return encode(picture, "jpeg")
