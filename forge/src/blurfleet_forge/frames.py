"""Pictures for building, from photographs shipped in scikit-image and scikit-learn: golden, calibration, held-out.

Calibration and held-out share no frame: they are different views (crop, flip, brightness) of the golden photographs,
plus pictures that only one of them sees.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from blurfleet.api.contract import DEFAULT_CONTRACT, ContractSpec
from blurfleet.errors import InvalidInput
from blurfleet.pixels import Decoded, Pixels, decode, to_tensor
from blurfleet.reasons import Reason
from blurfleet_forge.recipe import FrameSets

Tensor = NDArray[np.float32]

# (package, folder inside it): where the wheels keep their pictures.
_HOMES = (("skimage", "data"), ("sklearn", "datasets/images"))


@dataclass(frozen=True, kw_only=True)
class Frame:
    """One named picture: as the contract decodes the file, or a view of it, RGB [H, W, 3] (uint8, float32 0..255)."""

    name: str
    picture: Decoded | Pixels


@dataclass(frozen=True, kw_only=True)
class View:
    """A crop (fractions of height and width: top, left, bottom, right), an optional mirror, and a brightness gain."""

    name: str
    box: tuple[float, float, float, float] = (0.0, 0.0, 1.0, 1.0)
    mirror: bool = False
    gain: float = 1.0


CALIBRATION_VIEWS = (
    View(name="whole"),
    View(name="mirror", mirror=True),
    View(name="top-left", box=(0.0, 0.0, 0.7, 0.7)),
    View(name="middle", box=(0.15, 0.15, 0.85, 0.85), mirror=True),
    View(name="dark", gain=0.6),
    View(name="bright", gain=1.4),
)
HELD_OUT_VIEWS = (
    View(name="bottom-right", box=(0.25, 0.25, 1.0, 1.0)),
    View(name="top-right", box=(0.0, 0.3, 0.8, 1.0), mirror=True),
    View(name="close", box=(0.2, 0.1, 0.75, 0.65)),
    View(name="dim-mirror", mirror=True, gain=0.75),
    View(name="light", box=(0.05, 0.0, 1.0, 0.9), gain=1.2),
)
LONE_HELD_OUT_VIEWS = (View(name="whole"), View(name="crop", box=(0.1, 0.2, 0.8, 0.9), mirror=True))


def picture_path(name: str) -> Path:
    """Return where the wheel keeps picture `name`. Raises InvalidInput (NotFound)."""
    for package, folder in _HOMES:
        spec = importlib.util.find_spec(package)
        if spec is None or spec.origin is None:
            continue
        path = Path(spec.origin).parent / folder / name
        if path.is_file():
            return path
    fix = "pip install scikit-image scikit-learn"
    raise InvalidInput(Reason.NOT_FOUND, f"no picture {name!r} in scikit-image or scikit-learn", fix=fix)


def read_rgb(name: str, spec: ContractSpec = DEFAULT_CONTRACT) -> Pixels:
    """Return picture `name` as `spec` decodes it, at full size, [H, W, 3]. Raises InvalidInput."""
    return decode(picture_path(name).read_bytes(), spec, whole=True).rgb


def read_whole(name: str, spec: ContractSpec = DEFAULT_CONTRACT) -> Decoded:
    """Return picture `name` as a gateway that serves `spec` decodes it. Raises InvalidInput."""
    return decode(picture_path(name).read_bytes(), spec)


def apply_view(rgb: Pixels, view: View) -> Pixels:
    """Return the crop, mirrored and scaled in brightness (clipped to 0..255); by 1, every level stays."""
    height, width = rgb.shape[:2]
    top, left, bottom, right = view.box
    part = rgb[int(top * height) : int(bottom * height), int(left * width) : int(right * width)]
    part = part[:, ::-1] if view.mirror else part
    if view.gain != 1.0:
        part = np.clip(np.rint(part.astype(np.float32) * view.gain), 0, 255).astype(rgb.dtype)
    return cast("Pixels", np.ascontiguousarray(part))


def _views(pictures: tuple[str, ...], views: tuple[View, ...], spec: ContractSpec) -> list[Frame]:
    """A view that leaves the picture whole is the file itself: only from it is a JPEG decoded at a reduced size."""
    full = {p: read_rgb(p, spec) for p in pictures}
    return [
        Frame(
            name=f"{p}:{v.name}",
            picture=read_whole(p, spec) if v == View(name=v.name) else apply_view(full[p], v),
        )
        for p in pictures
        for v in views
    ]


def golden(sets: FrameSets, spec: ContractSpec = DEFAULT_CONTRACT) -> tuple[Frame, ...]:
    """Return the golden photographs, whole, as `spec` decodes them."""
    return tuple(Frame(name=Path(p).stem, picture=read_whole(p, spec)) for p in sets.golden)


def calibration(sets: FrameSets, spec: ContractSpec = DEFAULT_CONTRACT) -> tuple[Frame, ...]:
    """Return the frames a search may look at: views of the golden photographs and the calibration-only pictures."""
    lone = _views(sets.calibration, CALIBRATION_VIEWS[:2], spec)
    return tuple(_views(sets.golden, CALIBRATION_VIEWS, spec) + lone)


def held_out(sets: FrameSets, spec: ContractSpec = DEFAULT_CONTRACT) -> tuple[Frame, ...]:
    """Return the frames no search may look at: other views of the golden photographs and pictures of their own."""
    lone = _views(sets.held_out, LONE_HELD_OUT_VIEWS, spec)
    return tuple(_views(sets.golden, HELD_OUT_VIEWS, spec) + lone)


def tensors(frames: tuple[Frame, ...], spec: ContractSpec) -> list[Tensor]:
    """Return one contract tensor per frame."""
    return [to_tensor(f.picture, spec) for f in frames]
