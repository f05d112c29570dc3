"""Live frames: real photographs shipped in scikit-image and scikit-learn, panned, cropped and changed in brightness."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt

from blurfleet.api.contract import ContractSpec
from blurfleet.errors import InvalidInput
from blurfleet.pixels import decode, to_tensor
from blurfleet.reasons import Reason

PHOTOS = (
    ("skimage", "data/astronaut.png"),
    ("skimage", "data/camera.png"),
    ("skimage", "data/chelsea.png"),
    ("skimage", "data/coffee.png"),
    ("skimage", "data/rocket.jpg"),
    ("sklearn", "datasets/images/china.jpg"),
    ("sklearn", "datasets/images/flower.jpg"),
)
# The rmsnorm stem sums mean squares of the normalised picture in FP16: above 65504 the sum is infinite. Frames closer
# than 5 % to the brink are used for neither side, since FP16 rounding of the terms decides there.
_FP16_MAX = 65504.0
_MARGIN = 0.05


@dataclass(frozen=True, kw_only=True)
class LiveFrame:
    """One picture as a client sends it (JPEG), and the tensor that the contract makes of it, [1,3,S,S] float32."""

    name: str
    jpeg: bytes
    tensor: npt.NDArray[np.float32]

    @property
    def square_sum(self) -> float:
        """Return the sum over pixels of the channel mean of squares: what the rmsnorm stem adds up in FP16."""
        return float(np.square(self.tensor, dtype=np.float64).mean(axis=1).sum())


@dataclass(frozen=True, kw_only=True)
class Playlist:
    """Frames by what they do to the live-only engine: `calm` never overflows its stem, `glaring` always does."""

    calm: tuple[LiveFrame, ...]
    glaring: tuple[LiveFrame, ...]


def load_playlist(contract: ContractSpec) -> Playlist:
    """Return all live frames as `contract` sees them, sorted into calm and glaring ones. Raises InvalidInput."""
    frames = [_frame(name, rgb, contract) for name, rgb in _views()]
    calm = tuple(f for f in frames if f.square_sum < _FP16_MAX * (1 - _MARGIN))
    glaring = tuple(f for f in frames if f.square_sum > _FP16_MAX * (1 + _MARGIN) and "bright" in f.name)
    return Playlist(calm=calm, glaring=glaring)


def _views() -> Iterator[tuple[str, npt.NDArray[np.uint8]]]:
    for package, inside in PHOTOS:
        photo = _read(package, inside)
        name = Path(inside).stem
        height, width = photo.shape[:2]
        yield f"{name} whole", photo
        for step in range(3):
            left = step * width // 10
            yield f"{name} pan {step}", photo[height // 20 : height * 19 // 20, left : left + width * 4 // 5]
        yield f"{name} crop", photo[height // 8 : height * 7 // 8, width // 8 : width * 7 // 8]
        for gain, word in ((0.85, "dim"), (1.1, "light"), (1.5, "bright"), (1.9, "very bright")):
            yield f"{name} {word}", np.clip(photo * gain, 0, 255).astype(np.uint8)


def _frame(name: str, rgb: npt.NDArray[np.uint8], contract: ContractSpec) -> LiveFrame:
    encoded, jpeg = cv2.imencode(".jpg", rgb[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, 92])
    assert encoded
    data = jpeg.tobytes()
    return LiveFrame(name=name, jpeg=data, tensor=to_tensor(decode(data, contract), contract))


def _read(package: str, inside: str) -> npt.NDArray[np.uint8]:
    spec = importlib.util.find_spec(package)
    path = Path(spec.origin).parent / inside if spec and spec.origin else Path(inside)
    picture = cv2.imread(str(path), cv2.IMREAD_COLOR)
    if picture is None:
        fix = "install the `cli` extra"
        raise InvalidInput(Reason.MISSING_FILE, f"photograph {inside} of {package} is missing", where=package, fix=fix)
    return picture[..., ::-1].astype(np.uint8)
