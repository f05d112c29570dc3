"""From a JPEG to a network's tensor by the usual recipes, each as its users write it: float32 [1,3,size,size] RGB."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import cv2
import numpy as np
from PIL import Image

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
Stage = Callable[[bytes, int], Any]


def pillow(data: bytes, size: int) -> Any:
    """Pillow and numpy, with Pillow's antialiased BILINEAR."""
    image = Image.open(io.BytesIO(data)).convert("RGB").resize((size, size), Image.Resampling.BILINEAR)
    scaled = np.asarray(image, dtype=np.float32) / 255.0
    normal = (scaled - np.array(MEAN, np.float32)) / np.array(STD, np.float32)
    return np.ascontiguousarray(normal.transpose(2, 0, 1)[None])


def opencv(data: bytes, size: int) -> Any:
    """OpenCV with its default INTER_LINEAR, which skips pixels when shrinking."""
    decoded: Any = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    image = cv2.cvtColor(decoded, cv2.COLOR_BGR2RGB)
    scaled = cv2.resize(image, (size, size)).astype(np.float32) / 255.0
    normal = (scaled - np.array(MEAN, np.float32)) / np.array(STD, np.float32)
    return np.ascontiguousarray(normal.transpose(2, 0, 1)[None])


# Runs in the rivals' environment: a picture's path a line in; seconds of processor time out.
ALBUMENTATIONS = """
import sys, time
import albumentations as A
import cv2
import numpy as np

cv2.setNumThreads(1)
size = int(sys.argv[1])
transform = A.Compose([A.Resize(size, size), A.Normalize(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))])
print("ready", flush=True)
for line in sys.stdin:
    with open(line.strip(), "rb") as handle:
        data = handle.read()
    started = time.process_time()
    image = cv2.cvtColor(cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)
    tensor = np.ascontiguousarray(transform(image=image)["image"].transpose(2, 0, 1)[None])
    print(time.process_time() - started, flush=True)
"""
