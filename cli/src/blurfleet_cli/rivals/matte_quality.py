"""How good the mattes of either side are, over the whole 1920x1080 picture.

Against two references: the FP32 network's own matte of the contract's tensor, enlarged linearly; and a known matte,
that of a subject laid over another scene.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cv2
import numpy as np

from blurfleet.api.contract import contract_at
from blurfleet.pixels import decode, to_tensor
from blurfleet_cli.network_bench import SIZE, network
from blurfleet_cli.rivals.photographs import HEIGHT, WIDTH, as_jpeg
from blurfleet_forge.backends.onnxruntime import Session

SUBJECTS = ("astronaut", "flower")
SCENES = ("china", "coffee")
_EDGE_SIGMA = 1.5  # pixels: how soft a lens draws the subject's outline
Matte = Callable[[bytes], Any]  # of a JPEG, over the whole picture: float32 [1080,1920] in [0,1]


def matte_quality(sides: dict[str, Matte], photos: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Return mean absolute error and IoU (at 0.5) of each side's mattes; `sides` are asked with JPEGs."""
    session = Session(network())

    def reference(rgb: Any) -> Any:
        return enlarged_matte(session.run(to_tensor(rgb, contract_at(SIZE)))[0, 0])

    cases: dict[str, list[tuple[bytes, Any]]] = {"network": [], "known": []}
    for picture in photos.values():
        data = as_jpeg(picture)
        cases["network"].append((data, reference(decode(data, contract_at(SIZE)).rgb)))
    for subject, scene in zip(SUBJECTS, SCENES, strict=True):
        outline = (reference(photos[subject]) > 0.5).astype(np.float32)
        known = cv2.GaussianBlur(outline, (0, 0), _EDGE_SIGMA)
        behind = cv2.GaussianBlur(photos[scene], (0, 0), 8)  # out of focus: the subject is the only subject
        mixed = photos[subject] * known[..., None] + behind * (1 - known[..., None])
        cases["known"].append((as_jpeg(np.rint(mixed).astype(np.uint8)), known))
    return {
        name: {
            f"{against}_{figure}": round(value, 5)
            for against, made in cases.items()
            for figure, value in _errors(matte, made).items()
        }
        for name, matte in sides.items()
    }


def enlarged_matte(matte: Any) -> Any:
    """Return a network's own matte over the whole picture, by linear interpolation."""
    return cv2.resize(matte, (WIDTH, HEIGHT), interpolation=cv2.INTER_LINEAR)


def matte_of(grey_picture: bytes) -> Any:
    """Return the matte that an encoded 8-bit grey picture holds."""
    grey: Any = cv2.imdecode(np.frombuffer(grey_picture, np.uint8), cv2.IMREAD_GRAYSCALE)
    return grey.astype(np.float32) / 255


def _errors(matte: Matte, cases: list[tuple[bytes, Any]]) -> dict[str, float]:
    errors, overlaps = [], []
    for data, wanted in cases:
        got = matte(data)
        errors.append(float(np.abs(got - wanted).mean()))
        one, other = got > 0.5, wanted > 0.5
        overlaps.append(float((one & other).sum() / max(1, (one | other).sum())))
    return {"mae": float(np.mean(errors)), "iou": float(np.mean(overlaps))}
