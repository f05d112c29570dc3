"""The 117 frames on which error rates of tensor admission are measured: photographs, haze, low contrast, flat."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from blurfleet.api.contract import DEFAULT_CONTRACT
from blurfleet.pixels import Pixels, decode

PHOTOS = ("astronaut.png", "camera.png", "chelsea.png", "coffee.png", "rocket.jpg", "china.jpg", "flower.jpg")
COLOURFUL = ("astronaut.png", "chelsea.png", "coffee.png", "china.jpg", "flower.jpg")
Frame = tuple[str, str, Pixels]


def picture_file(name: str) -> Path:
    for package, folder in (("skimage", "data"), ("sklearn", "datasets/images")):
        spec = find_spec(package)
        assert spec is not None
        assert spec.origin is not None
        path = Path(spec.origin).parent / folder / name
        if path.is_file():
            return path
    raise AssertionError(f"no picture {name}")


def photo(name: str) -> Pixels:
    """The picture, [H,W,3] uint8."""
    return decode(picture_file(name).read_bytes(), DEFAULT_CONTRACT).rgb.astype(np.uint8)


def _shipped() -> list[str]:
    homes = [picture_file("astronaut.png").parent, picture_file("china.jpg").parent]
    return sorted(p.name for home in homes for p in home.iterdir() if p.suffix in (".png", ".jpg"))


def _levels(rgb: Pixels, gain: float, lift: float = 0.0) -> Pixels:
    return np.clip(np.rint(rgb.astype(np.float64) * gain + lift), 0, 255).astype(np.uint8)


def frames() -> Iterator[Frame]:
    """Yield (kind, name, [H,W,3] uint8): 67 normal (28 pictures, 11 crops, 14 dark, 14 bright), 14 dull, 36 flat."""
    shipped = _shipped()
    for name in shipped:
        yield "normal", name, photo(name)
    for name in shipped[:11]:
        rgb = photo(name)
        yield "normal", f"{name} crop", rgb[rgb.shape[0] // 4 :, : rgb.shape[1] * 3 // 4]
    for name in PHOTOS:
        rgb = photo(name)
        for gain in (0.25, 0.5, 1.5, 2.0):
            yield "normal", f"{name} x{gain}", _levels(rgb, gain)
        yield "haze", name, _levels(rgb, 0.35, 140)
        yield "low contrast", name, _levels(rgb, 0.25, 115)
    for level in range(0, 256, 17):
        yield "flat", f"grey {level}", np.full((320, 320, 3), level, np.uint8)
    for index in range(20):
        colour = np.random.default_rng(index).integers(0, 256, 3, dtype=np.uint8)
        yield "flat", f"colour {index}", np.broadcast_to(colour, (320, 320, 3)).copy()
