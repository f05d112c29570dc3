"""Image bytes -> upright RGB -> the tensor that an engine expects. The one implementation of the contract.

Resize kernels are those of a named library, because "bilinear" alone means two different pictures:

* `area`             OpenCV INTER_AREA (the mean over the covered area when shrinking)
* `linear`           OpenCV INTER_LINEAR_EXACT on 8 bit, INTER_LINEAR on float: no antialiasing, half-pixel centres
* `linear-antialias` Pillow BILINEAR (triangle filter, widened when shrinking; what torchvision's antialias=True does)
* `cubic-antialias`  Pillow BICUBIC (a = -0.5, widened when shrinking)
* `lanczos`          Pillow LANCZOS (three lobes, widened when shrinking)
* `linear-antialias-reduced` the same as `linear-antialias`, but that a JPEG is halved by its decoder first, as often as
  `blurfleet.reduced` allows; whatever is no JPEG, or one with faults or in CMYK, is resized from full size

8-bit pictures are resized in 8 bit (each library's own rounding), 16-bit ones in float32. Colour profiles and gamma are
not applied: the networks were trained on stored values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

import cv2
import numpy as np
import numpy.typing as npt
import simplejpeg
from PIL import Image

from blurfleet.api.contract import ContractSpec
from blurfleet.errors import ContractRefused
from blurfleet.imageheader import ImageHeader, read_header, truncated, unsupported
from blurfleet.reasons import Reason
from blurfleet.reduced import KERNEL as REDUCED
from blurfleet.reduced import covering, reduced_size, reduction

Pixels = npt.NDArray[np.uint8] | npt.NDArray[np.float32]
Tensor = npt.NDArray[np.float32]

_PILLOW = {
    "linear-antialias": Image.Resampling.BILINEAR,
    REDUCED: Image.Resampling.BILINEAR,
    "cubic-antialias": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}
_BAND_ROWS = 256
# EXIF orientation -> what makes the stored picture upright.
_UPRIGHT: dict[int, Callable[[Any], Any]] = {
    2: lambda p: cv2.flip(p, 1),
    3: lambda p: cv2.rotate(p, cv2.ROTATE_180),
    4: lambda p: cv2.flip(p, 0),
    5: cv2.transpose,
    6: lambda p: cv2.rotate(p, cv2.ROTATE_90_CLOCKWISE),
    7: lambda p: cv2.rotate(cv2.transpose(p), cv2.ROTATE_180),
    8: lambda p: cv2.rotate(p, cv2.ROTATE_90_COUNTERCLOCKWISE),
}


@dataclass(frozen=True, kw_only=True)
class Decoded:
    """An upright picture without alpha.

    `rgb` is [H,W,3], uint8 0..255, or float32 0..255 where the source had 16 bits (value / 257, all levels kept).
    `orientation_applied` is the EXIF value acted on (1: nothing was done), `decoded_size` (height, width) after it, at
    full size. Where `reduced_by` is 2, 4 or 8, the decoder divided both sides of `rgb` by it, rounded up.
    """

    rgb: Pixels
    source_mode: str
    orientation_applied: int
    decoded_size: tuple[int, int]
    reduced_by: int = 1


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Which rectangle of the picture fills which rectangle of the tensor; each is (top, left, height, width)."""

    picture: tuple[int, int, int, int]
    tensor: tuple[int, int, int, int]


def decode(
    data: bytes, spec: ContractSpec, *, before: Callable[[ImageHeader], None] | None = None, whole: bool = False
) -> Decoded:
    """Return the picture in `data` as the contract sees it; `whole`: at full size whatever the contract's kernel is.

    `before` hears what the picture is once it is admitted, and may wait. Raises ContractRefused: EmptyImage,
    TruncatedImage, UnsupportedImage (not decodable, or refused by a rule of the contract), ImageTooLarge (more than
    `max_pixels`, told from the header before anything is decoded).
    """
    header = read_header(data)
    _admit(header, spec)
    if before is not None:
        before(header)
    orientation = header.orientation if spec.orientation == "apply" else 1
    turned = orientation >= 5
    size = (header.width, header.height) if turned else (header.height, header.width)
    by = 1 if whole else _reduction(header, size, spec)
    reduced = _sound_jpeg(data, header, by) if by > 1 else None
    by = 1 if reduced is None else by
    stored, alpha = _stored(data, header) if reduced is None else (reduced, None)
    if alpha is not None:
        stored = _composite(stored, alpha, spec.background)
    if stored.dtype == np.uint16:
        stored = stored.astype(np.float32) / np.float32(257)
    rgb = _UPRIGHT[orientation](stored) if orientation in _UPRIGHT else stored
    return Decoded(
        rgb=np.ascontiguousarray(rgb),
        source_mode=header.mode,
        orientation_applied=orientation,
        decoded_size=size,
        reduced_by=by,
    )


def _reduction(header: ImageHeader, size: tuple[int, int], spec: ContractSpec) -> int:
    if spec.resize != REDUCED or header.format != "JPEG" or header.mode == "CMYK":
        return 1
    place = placement(size, spec)
    return reduction(place.picture[2:], place.tensor[2:])


def _admit(header: ImageHeader, spec: ContractSpec) -> None:
    if header.width * header.height > spec.max_pixels:
        raise ContractRefused(
            Reason.IMAGE_TOO_LARGE,
            f"{header.width}x{header.height} is more than the contract's {spec.max_pixels} pixels",
            where="image",
            fix="send a smaller picture",
        )
    if not header.plausible:
        raise truncated()
    rules = (
        (spec.orientation == "refuse" and header.orientation != 1, f"orientation tag {header.orientation}"),
        (spec.alpha == "refuse" and header.alpha, "transparency"),
        (spec.sixteen_bit == "refuse" and header.mode.endswith(";16"), "16-bit pictures"),
        (spec.grey == "refuse" and header.mode.startswith("L"), "grey pictures"),
        (spec.palette == "refuse" and header.mode == "P", "palette pictures"),
        (spec.cmyk == "refuse" and header.mode == "CMYK", "CMYK pictures"),
    )
    for broken, what in rules:
        if broken:
            raise ContractRefused(
                Reason.UNSUPPORTED_IMAGE, f"the contract refuses {what}", where="image", fix="convert it first"
            )


def _stored(data: bytes, header: ImageHeader) -> tuple[Any, Any]:
    """Return (RGB [H,W,3] uint8 or uint16 as stored, alpha [H,W] of the same type or None)."""
    plain = header.format == "JPEG"
    if plain and (whole := _sound_jpeg(data, header)) is not None:
        return whole, None
    mode = (cv2.IMREAD_COLOR_RGB if plain else cv2.IMREAD_UNCHANGED) | cv2.IMREAD_IGNORE_ORIENTATION
    try:
        image: Any = cv2.imdecode(np.frombuffer(data, dtype=np.uint8), mode)
    except cv2.error as error:
        raise unsupported(f"the picture cannot be decoded: {error.err}") from None
    if image is None:
        # The frame of the file is whole (read_header saw its end), so what is missing is inside it.
        raise truncated() if plain else unsupported(f"the {header.format} data is damaged")
    if image.shape[:2] != (header.height, header.width) or image.dtype not in (np.uint8, np.uint16):
        raise unsupported(f"the {header.format} decodes to {image.shape} {image.dtype}, not what its header says")
    if image.ndim == 2:
        key = header.grey_key
        alpha = None if key is None else np.where(image == key, 0, np.iinfo(image.dtype).max).astype(image.dtype)
        return cv2.merge((image, image, image)), alpha
    if image.shape[2] == 4:
        return cv2.cvtColor(image, cv2.COLOR_BGRA2RGB), image[..., 3]
    return (image if plain else cv2.cvtColor(image, cv2.COLOR_BGR2RGB)), None


def _sound_jpeg(data: bytes, header: ImageHeader, by: int = 1) -> Any:
    """Return the pixels of a JPEG without any fault, None where OpenCV has to say what becomes of it.

    Both sides are divided by `by` while decoding, rounded up.

    The very bytes that OpenCV decodes to (both are libjpeg-turbo with the accurate DCT and smooth chroma), in half the
    time: OpenCV's is built without its vector code.
    """
    cmyk = header.mode == "CMYK"
    rows, columns = reduced_size((header.height, header.width), by)
    at_least = {"min_height": rows, "min_width": columns} if by > 1 else {}
    try:
        found: Any = simplejpeg.decode_jpeg(
            data, colorspace="CMYK" if cmyk else "RGB", fastdct=False, fastupsample=False, strict=True, **at_least
        )
    except ValueError as error:
        if "remature end" in str(error):
            raise truncated() from None  # whole by its marks, and libjpeg would fill in grey for what is missing
        return None
    return found if not cmyk and found.shape == (rows, columns, 3) else None


def _composite(colour: Any, alpha: Any, background: tuple[int, int, int]) -> Any:
    """Lay `colour` over the background, rounded to nearest, in the picture's own depth (uint8 or uint16).

    Twice the depth just holds level * alpha + background * (top - alpha) + half; bands keep the memory small.
    """
    top = int(np.iinfo(colour.dtype).max)
    wide: Any = np.uint16 if colour.dtype == np.uint8 else np.uint32
    under = np.asarray(background, dtype=wide) * wide(top // 255)
    out = np.empty_like(colour)
    for first in range(0, colour.shape[0], _BAND_ROWS):
        rows = slice(first, first + _BAND_ROWS)
        cover = alpha[rows, :, None].astype(wide)
        mixed = colour[rows].astype(wide) * cover + under * (wide(top) - cover)
        out[rows] = (mixed + wide(top // 2)) // wide(top)
    return out


def placement(decoded_size: tuple[int, int], spec: ContractSpec) -> Placement:
    """Return how a picture of (height, width) is laid into the contract's tensor, which has its `opt` size."""
    (height, width), (rows, columns) = decoded_size, (spec.height.opt, spec.width.opt)
    whole, full = (0, 0, height, width), (0, 0, rows, columns)
    if spec.fit == "letterbox":
        ratio = min(rows / height, columns / width)
        inner = max(1, min(rows, round(height * ratio))), max(1, min(columns, round(width * ratio)))
        return Placement(picture=whole, tensor=((rows - inner[0]) // 2, (columns - inner[1]) // 2, *inner))
    if spec.fit == "crop":
        ratio = min(height / rows, width / columns)
        part = max(1, min(height, round(rows * ratio))), max(1, min(width, round(columns * ratio)))
        return Placement(picture=((height - part[0]) // 2, (width - part[1]) // 2, *part), tensor=full)
    return Placement(picture=whole, tensor=full)


def resize(rgb: Pixels, size: tuple[int, int], kernel: str) -> Pixels:
    """Return [H,W,3] pixels at `size` (height, width) by one of the kernels of this module, same dtype."""
    height, width = size
    if kernel == "area":
        return cast("Pixels", cv2.resize(rgb, (width, height), interpolation=cv2.INTER_AREA))
    if kernel == "linear":
        exact = cv2.INTER_LINEAR_EXACT if rgb.dtype == np.uint8 else cv2.INTER_LINEAR
        return cast("Pixels", cv2.resize(rgb, (width, height), interpolation=exact))
    if rgb.dtype == np.uint8:
        return np.asarray(Image.fromarray(rgb).resize((width, height), _PILLOW[kernel]))
    planes = [
        Image.fromarray(np.ascontiguousarray(rgb[..., c])).resize((width, height), _PILLOW[kernel]) for c in range(3)
    ]
    return np.stack([np.asarray(plane) for plane in planes], axis=-1)


@lru_cache(maxsize=32)
def _normaliser(scale: str, mean: tuple[str, ...], std: tuple[str, ...]) -> tuple[Any, Any, Any]:
    """Return (per-channel mean, per-channel divisor, table float32 [3,256]) for (value - mean*scale) / (std*scale)."""
    centre = np.array([float(m) * float(scale) for m in mean])
    spread = np.array([float(s) * float(scale) for s in std])
    table = ((np.arange(256.0)[None, :] - centre[:, None]) / spread[:, None]).astype(np.float32)
    table.flags.writeable = False
    return centre, spread, table


def _resized(picture: Pixels | Decoded, place: Placement, kernel: str) -> Pixels:
    top, left, height, width = place.picture
    size = place.tensor[2], place.tensor[3]
    if not isinstance(picture, Decoded):
        return resize(picture[top : top + height, left : left + width], size, kernel)
    if picture.reduced_by == 1:
        return _resized(picture.rgb, place, kernel)
    pixels, box = covering(place.picture, picture.decoded_size, picture.reduced_by, picture.orientation_applied)
    part = Image.fromarray(np.ascontiguousarray(picture.rgb[pixels]))
    return np.asarray(part.resize((size[1], size[0]), _PILLOW[kernel], box=box))


def to_tensor(picture: Pixels | Decoded, spec: ContractSpec) -> Tensor:
    """Return the contract's tensor of what `decode` made, or of upright RGB pixels [H,W,3] (uint8, float32 in 0..255).

    Pixels are a whole picture. Give what `decode` returned as it is: its `rgb` alone does not tell that it was reduced.

    float32, C order, [1,3,H,W] (or [1,H,W,3] for layout NHWC) at the contract's `opt` size. Each value is
    (pixel / scale - mean) / std worked out in float64 and rounded once; mean[i] and std[i] belong to the tensor's
    channel i, whatever the colour order. A letterbox's margin is the contract's background, normalised like a pixel.
    """
    size = picture.decoded_size if isinstance(picture, Decoded) else (picture.shape[0], picture.shape[1])
    place = placement(size, spec)
    part = _resized(picture, place, spec.resize)
    rows, columns = spec.height.opt, spec.width.opt
    if part.shape[:2] != (rows, columns):
        canvas = np.empty((rows, columns, 3), dtype=part.dtype)
        canvas[:] = spec.background
        top, left, height, width = place.tensor
        canvas[top : top + height, left : left + width] = part
        part = canvas
    centre, spread, table = _normaliser(spec.scale, spec.mean, spec.std)
    tensor = np.empty((1, 3, rows, columns), dtype=np.float32)
    for channel in range(3):
        plane = part[..., channel if spec.color_order == "RGB" else 2 - channel]
        if part.dtype == np.uint8:
            cv2.LUT(np.ascontiguousarray(plane), table[channel], dst=tensor[0, channel])
        else:
            tensor[0, channel] = (plane.astype(np.float64) - centre[channel]) / spread[channel]
    if spec.layout == "NHWC":
        return np.ascontiguousarray(tensor.transpose(0, 2, 3, 1))
    return tensor
