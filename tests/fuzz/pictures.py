"""Small pictures of every kind that a door is sent, and the ways in which they come damaged."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from PIL import Image

PNG = b"\x89PNG\r\n\x1a\n"
SIZE = (37, 29)  # odd, and more than one block of every codec


@dataclass(frozen=True)
class Edit:
    """One damage. `at` is a place in permille of the picture's length; the rest is what happens there."""

    kind: str
    at: int
    value: int = 0
    length: int = 1


KINDS = ("byte", "word", "long", "cut", "drop", "repeat", "insert")


def seeds() -> dict[str, bytes]:
    """Return whole pictures by name."""
    rgb = np.random.default_rng(5).integers(0, 256, (*SIZE, 3), dtype=np.uint8)
    picture = Image.fromarray(rgb)
    tag = Image.Exif()
    tag[0x0112], tag[0x010E] = 6, "a description"
    exif = tag.tobytes()
    jpegs = ("jpeg", "jpeg progressive", "jpeg grey", "jpeg cmyk", "jpeg segments")
    return {
        **{name: jpeg_of(rgb, name) for name in jpegs},
        "png": _saved(picture, "PNG"),
        "png palette": _saved(picture.convert("P"), "PNG", transparency=0),
        "png 1 bit": _saved(picture.convert("1"), "PNG"),
        "png grey alpha": _saved(picture.convert("LA"), "PNG"),
        "png rgba": _saved(picture.convert("RGBA"), "PNG", exif=exif, icc_profile=bytes(300)),
        "png 16": bytes(cv2.imencode(".png", rgb.astype(np.uint16) * 257)[1]),
        "png interlaced": interlaced_png(rgb[..., 0]),
        "png animated": _saved(picture, "PNG", save_all=True, append_images=[picture.rotate(180)]),
        "webp": _saved(picture, "WEBP"),
        "webp lossless": _saved(picture, "WEBP", lossless=True),
        "webp alpha": _saved(picture.convert("RGBA"), "WEBP", exif=exif, icc_profile=bytes(300)),
        "webp animated": _saved(picture, "WEBP", save_all=True, append_images=[picture.rotate(180)]),
        "gif": _saved(picture.convert("P"), "GIF"),
        "bmp": _saved(picture, "BMP"),
        "tiff": _saved(picture, "TIFF"),
        "ppm": _saved(picture, "PPM"),
        "jpeg 2000": b"\x00\x00\x00\x0cjP  \r\n\x87\n" + bytes(40),
    }


def jpeg_of(rgb: np.ndarray, name: str) -> bytes:
    """Return [H,W,3] uint8 as one of the kinds of JPEG."""
    picture = Image.fromarray(rgb)
    tag = Image.Exif()
    tag[0x0112] = 6
    options: dict[str, Any] = {
        "jpeg progressive": {"progressive": True},
        "jpeg segments": {"exif": tag.tobytes(), "icc_profile": bytes(300), "comment": b"c" * 40},
    }.get(name, {})
    return _saved(picture.convert({"jpeg grey": "L", "jpeg cmyk": "CMYK"}.get(name, "RGB")), "JPEG", **options)


def _saved(picture: Image.Image, form: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, form, **options)
    return buffer.getvalue()


def chunk(kind: bytes, body: bytes) -> bytes:
    """Return a PNG chunk with its right checksum."""
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(
    width: int, height: int, rows: bytes, *, depth: int = 8, colour: int = 2, more: bytes = b"", lace: int = 0
) -> bytes:
    """Return a PNG file of filtered `rows`, whatever its header claims; `more` are chunks before the picture's."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, lace))
    return PNG + header + more + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b"")


def interlaced_png(grey: np.ndarray) -> bytes:
    """Return a grey [H,W] uint8 picture as an Adam7 PNG; neither writer at hand makes one."""
    passes = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1))
    rows = b"".join(
        b"\x00" + row.tobytes() for top, left, down, right in passes for row in grey[top::down, left::right] if row.size
    )
    return png(grey.shape[1], grey.shape[0], rows, colour=0, lace=1)


def damaged(data: bytes, edits: list[Edit], *, mended: bool) -> bytes:
    """Return `data` after the edits; `mended`: with right checksums, so that damage reaches the decoder behind them."""
    found = bytearray(data)
    for edit in edits:
        at = edit.at * len(found) // 1000
        if edit.kind == "byte":
            found[at : at + 1] = bytes([edit.value & 0xFF])
        elif edit.kind == "word":
            found[at : at + 2] = struct.pack(">H", edit.value & 0xFFFF)
        elif edit.kind == "long":
            found[at : at + 4] = struct.pack(">I", edit.value & 0xFFFFFFFF)
        elif edit.kind == "cut":
            del found[at:]
        elif edit.kind == "drop":
            del found[at : at + edit.length]
        elif edit.kind == "repeat":
            found[at:at] = found[at : at + edit.length]
        else:
            found[at:at] = bytes([edit.value & 0xFF]) * edit.length
    return with_checksums(bytes(found)) if mended else bytes(found)


def with_checksums(data: bytes) -> bytes:
    """Return a PNG's chunks with right checksums as far as there are any; other bytes as they are."""
    if not data.startswith(PNG):
        return data
    parts, end = [PNG], len(PNG)
    for start, stop in _chunks(data):
        parts += [data[start:stop], struct.pack(">I", zlib.crc32(data[start + 4 : stop]))]
        end = stop + 4
    return b"".join(parts) + data[end:]


def _chunks(data: bytes) -> Iterator[tuple[int, int]]:
    at = len(PNG)
    while at + 12 <= len(data):
        stop = at + 8 + int(struct.unpack_from(">I", data, at)[0])
        if stop + 4 > len(data):
            return
        yield at, stop
        at = stop + 4
