"""From matte to picture: laid back over the upright picture, composed as asked, encoded."""

from __future__ import annotations

from typing import Any, Literal, cast

import cv2
import numpy as np
import simplejpeg

from blurfleet.api.contract import ContractSpec
from blurfleet.errors import ContractRefused, InvalidInput
from blurfleet.imageheader import ImageHeader
from blurfleet.pixels import Pixels, placement
from blurfleet.quality.sentinel import Matte
from blurfleet.reasons import Reason
from blurfleet_preprocess.compositing.backdrop import blurred, plain
from blurfleet_preprocess.compositing.depth import focus_of, layered
from blurfleet_preprocess.compositing.edges import Edge, refine
from blurfleet_preprocess.compositing.light import Picture
from blurfleet_preprocess.compositing.look import Look
from blurfleet_preprocess.compositing.scales import Check, Scales, fitted, gridded, halved, unasked
from blurfleet_preprocess.compositing.sides import sides
from blurfleet_preprocess.compositing.subject import cut_out, fine, over

ImageFormat = Literal["jpeg", "png", "webp"]
MEDIA_TYPES: dict[ImageFormat, str] = {"jpeg": "image/jpeg", "png": "image/png", "webp": "image/webp"}
LONGEST_SIDE: dict[ImageFormat, int] = {"jpeg": 32766, "png": 32766, "webp": 16383}
"""Pixels. OpenCV's remap, which lays mattes back, ends below SHRT_MAX; WebP has 14 bits (JPEG 65500, PNG 2**31)."""
_JPEG_QUALITY = 92
_PNG_LEVEL = 1  # zlib's fastest: mattes and blurred pictures gain a few per cent above it, for three times the time


def check_sides(header: ImageHeader, form: ImageFormat) -> None:
    """Raise ContractRefused ImageTooLarge where a side is longer than can be composed or written as `form`."""
    longest = LONGEST_SIDE[form]
    if max(header.width, header.height) <= longest:
        return
    raise ContractRefused(
        Reason.IMAGE_TOO_LARGE,
        f"{header.width}x{header.height}; a picture composed and written as {form} has sides of at most {longest}",
        where="image",
        fix="ask for png" if max(header.width, header.height) <= LONGEST_SIDE["png"] else "send a smaller picture",
    )


def matte_on_picture(matte: Matte, spec: ContractSpec, decoded_size: tuple[int, int], halvings: int = 0) -> Matte:
    """Return the matte [h,w] float32 in [0,1] over the whole upright picture, at its size or so many halvings of it.

    What a letterbox added is cut off; what a crop left out counts as background. `matte` is [H,W] at any size.
    """
    place = placement(decoded_size, spec)
    rows, columns = matte.shape[0] / spec.height.opt, matte.shape[1] / spec.width.opt
    top, left, height, width = place.tensor
    inner = matte[
        round(top * rows) : round((top + height) * rows), round(left * columns) : round((left + width) * columns)
    ]
    inner = np.clip(inner, 0.0, 1.0)
    top, left, height, width = place.picture
    if (height, width) == decoded_size:
        return np.asarray(gridded(inner, decoded_size, halvings), dtype=np.float32)
    whole: Any = np.zeros(decoded_size, dtype=np.float32)
    whole[top : top + height, left : left + width] = fitted(inner, (height, width))
    for _ in range(halvings):
        whole = halved(whole)
    return np.asarray(whole, dtype=np.float32)


def fine_matte(rgb: Pixels, matte: Matte, spec: ContractSpec, check: Check = unasked) -> Matte:
    """Return the matte at the size of the picture [H,W,3], refined along the picture's edges: [H,W] in [0,1].

    `check` is asked between steps, and what it raises ends the work.
    """
    scales = Scales(_sharp(rgb), check)
    edge = _edge(scales, matte, spec)
    whole = scales.padded(matte_on_picture(matte, spec, scales.asked))
    return cast("Matte", scales.cut(fine(scales, edge, whole)))


def composed(rgb: Pixels, matte: Matte, spec: ContractSpec, look: Look, check: Check = unasked) -> Picture:
    """Return the picture [H,W,3] (0..255) as `look` asks: uint8 [H,W,3], or [H,W,4] for a transparent background.

    `matte` is the network's output [h,w] in [0,1] as it came. Pixels that it settles as subject come out unchanged.
    `check` is asked between steps, and what it raises ends the work.
    """
    scales = Scales(_sharp(rgb), check)
    if look.mode == "depth":
        near = fine_matte(rgb, matte, spec, check)
        focus = focus_of(near) if look.focus is None else look.focus
        radius = look.radius_on(scales.asked, 1.0)
        return layered(_sharp(rgb), near, focus=focus, radius=radius, style=look.style, check=check)
    edge = _edge(scales, matte, spec)
    known = sides(scales, edge)
    if look.background == "transparent":
        return cast("Picture", scales.cut(cut_out(scales, edge, known)))
    if look.background == "color":
        return cast("Picture", scales.cut(over(scales, edge, known, plain(scales.size, look.colour))))
    if edge.subject.all():
        return cast("Picture", scales.cut(scales.at(0)).copy())
    radius = look.radius_on(scales.asked, float(edge.matte.mean()))
    return cast("Picture", scales.cut(over(scales, edge, known, blurred(scales, edge, known, radius, look.style))))


def _edge(scales: Scales, matte: Matte, spec: ContractSpec) -> Edge:
    placed = matte_on_picture(matte, spec, scales.asked, scales.work)
    finer = scales.asked[0] > matte.shape[0] or scales.asked[1] > matte.shape[1]
    return refine(placed, scales.at(scales.work) if finer else None, scales.check)


def _sharp(rgb: Pixels) -> Picture:
    return np.ascontiguousarray(rgb if rgb.dtype == np.uint8 else np.rint(rgb).astype(np.uint8))


def as_levels(matte: Matte) -> Picture:
    """Return a matte as 8-bit grey, rounded to nearest."""
    return np.rint(np.clip(matte, 0.0, 1.0) * 255).astype(np.uint8)


def encode(picture: Picture, form: ImageFormat) -> bytes:
    """Return the encoded picture: RGB [H,W,3], RGBA [H,W,4] (png, webp) or grey [H,W] uint8, upright, untagged.

    Raises InvalidInput ImageTooLarge where the format cannot hold a picture of that size.
    """
    try:
        written, data = _jpeg(picture) if form == "jpeg" else _by_opencv(picture, form)
    except (cv2.error, ValueError):
        written, data = False, b""
    if not written:
        message = f"{picture.shape[1]}x{picture.shape[0]} cannot be written as {form}"
        raise InvalidInput(Reason.IMAGE_TOO_LARGE, message, where="format", fix="ask for png")
    return data


def _jpeg(picture: Picture) -> tuple[bool, bytes]:
    """Write RGB as it lies; OpenCV would have to turn it to BGR first, which is a seventh of the time."""
    space = "RGB" if picture.ndim == 3 else "GRAY"
    pixels = picture if picture.ndim == 3 else picture[..., None]
    sampling = "420" if picture.ndim == 3 else "Gray"
    return True, simplejpeg.encode_jpeg(pixels, _JPEG_QUALITY, colorspace=space, colorsubsampling=sampling)


def _by_opencv(picture: Picture, form: ImageFormat) -> tuple[bool, bytes]:
    order = {3: cv2.COLOR_RGB2BGR, 4: cv2.COLOR_RGBA2BGRA}
    stored: Any = cv2.cvtColor(picture, order[picture.shape[2]]) if picture.ndim == 3 else picture
    options = {
        "png": [cv2.IMWRITE_PNG_COMPRESSION, _PNG_LEVEL],
        "webp": [cv2.IMWRITE_WEBP_QUALITY, _JPEG_QUALITY],
    }[form]
    written, data = cv2.imencode(f".{form}", stored, options)
    return written, bytes(data)
