"""What a JPEG, PNG or WebP says about itself before any pixel is decoded.

The decoder is only called once size, completeness and orientation are known: a picture that claims 60000x60000 costs
nothing, and half a file is told apart from a whole one (libjpeg itself would hand out half a picture).
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import Literal

from blurfleet.errors import ContractRefused
from blurfleet.reasons import Reason

SourceMode = Literal["L", "L;16", "LA", "LA;16", "RGB", "RGB;16", "RGBA", "RGBA;16", "P", "CMYK"]
_PNG_MODES: dict[int, SourceMode] = {0: "L", 2: "RGB", 3: "P", 4: "LA", 6: "RGBA"}
_PNG_MODES_16: dict[int, SourceMode] = {0: "L;16", 2: "RGB;16", 4: "LA;16", 6: "RGBA;16"}
_PNG_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
_DEFLATE_MAX = 1032  # bytes out of one byte in, at the most
_JPEG_MODES: dict[int, SourceMode] = {1: "L", 3: "RGB", 4: "CMYK"}
_SCAN_END = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")
_MAX_SCANS = 100  # a real progressive file has about ten; hundreds are a way to burn a decoder's time
_EXIF = b"Exif\x00\x00"


@dataclass(frozen=True, kw_only=True)
class ImageHeader:
    """Format, size in pixels as stored (before orientation), mode, EXIF orientation 1..8 (1 where absent or absurd).

    `alpha` covers palettes and colours made transparent by tRNS; `grey_key` is the transparent grey level of a grey
    PNG, in 8 or 16 bit as the decoder will deliver it. Not `plausible` is a size that so few bytes cannot hold,
    and whose memory they are not worth.
    """

    format: Literal["JPEG", "PNG", "WebP"]
    width: int
    height: int
    mode: SourceMode
    orientation: int = 1
    alpha: bool = False
    grey_key: int | None = None
    plausible: bool = True


def read_header(data: bytes) -> ImageHeader:
    """Return the header of whole image bytes.

    Raises ContractRefused: EmptyImage, TruncatedImage (the end is missing), UnsupportedImage (another format, a broken
    header, an animation).
    """
    if not data:
        raise ContractRefused(Reason.EMPTY_IMAGE, "the picture has no bytes", where="image", fix="send a picture")
    try:
        if data.startswith(b"\xff\xd8"):
            return _jpeg(data)
        if data.startswith(b"\x89PNG\r\n\x1a\n"):
            return _png(data)
        if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
            return _webp(data)
    except (struct.error, IndexError):
        raise truncated() from None
    raise unsupported("the bytes are not a JPEG, PNG or WebP picture")


def truncated() -> ContractRefused:
    """Return the error of a picture whose end is missing."""
    return ContractRefused(
        Reason.TRUNCATED_IMAGE, "the picture ends before its end-of-image mark", where="image", fix="send it whole"
    )


def unsupported(message: str) -> ContractRefused:
    """Return the error of a picture that cannot be taken, whatever the contract says."""
    return ContractRefused(Reason.UNSUPPORTED_IMAGE, message, where="image", fix="send a still JPEG, PNG or WebP")


def _u16(data: bytes, at: int) -> int:
    return int(struct.unpack_from(">H", data, at)[0])


def _u32(data: bytes, at: int, order: str = ">") -> int:
    return int(struct.unpack_from(f"{order}I", data, at)[0])


def tiff_orientation(tiff: bytes) -> int:
    """Return tag 0x0112 of the first directory of TIFF-framed EXIF bytes; 1 where absent, broken or not in 1..8."""
    order = {b"II": "<", b"MM": ">"}.get(tiff[:2])
    if order is None:
        return 1
    try:
        start = _u32(tiff, 4, order)
        (count,) = struct.unpack_from(f"{order}H", tiff, start)
        for entry in range(start + 2, start + 2 + 12 * count, 12):
            tag, kind = struct.unpack_from(f"{order}HH", tiff, entry)
            if tag == 0x0112:
                value = struct.unpack_from(f"{order}{'I' if kind == 4 else 'H'}", tiff, entry + 8)[0]
                return int(value) if 1 <= value <= 8 else 1
    except struct.error:
        return 1
    return 1


def _jpeg(data: bytes) -> ImageHeader:
    at, scans, components, coded = 2, 0, 0, 0
    arithmetic = False
    width = height = 0
    orientation: int | None = None
    while True:
        if data[at] != 0xFF:
            raise unsupported("a JPEG segment does not begin with a marker")
        while data[at] == 0xFF:
            at += 1
        marker = data[at]
        at += 1
        if marker == 0xD9:
            break
        if marker == 0x01 or 0xD0 <= marker <= 0xD7:
            continue
        length = _u16(data, at)
        if length < 2 or at + length > len(data):
            raise truncated()
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = max(height, _u16(data, at + 3)), max(width, _u16(data, at + 5))
            components, arithmetic = data[at + 7], arithmetic or marker > 0xC8
        elif marker == 0xE1 and orientation is None and data.startswith(_EXIF, at + 2):
            orientation = tiff_orientation(data[at + 2 + len(_EXIF) : at + length])
        at += length
        if marker == 0xDA:
            scans += 1
            found = _SCAN_END.search(data, at)
            if found is None:
                raise truncated()
            if scans > _MAX_SCANS:
                raise unsupported(f"a JPEG with more than {_MAX_SCANS} scans")
            coded += found.start() - at
            at = found.start()
    mode = _JPEG_MODES.get(components)
    if mode is None or not (width and height and scans):
        raise unsupported(f"a JPEG of {width}x{height} with {components} components in {scans} scans")
    # Every block of the finest component takes a bit at least, but in arithmetic coding.
    blocks = -(-width // 8) * -(-height // 8)
    return ImageHeader(
        format="JPEG", width=width, height=height, mode=mode, orientation=orientation or 1,
        plausible=arithmetic or 8 * coded >= blocks,
    )  # fmt: skip


def _png(data: bytes) -> ImageHeader:
    if data[12:16] != b"IHDR":
        raise unsupported("a PNG whose first chunk is not IHDR")
    width, height, depth, colour = struct.unpack_from(">IIBB", data, 16)
    mode = (_PNG_MODES_16 if depth == 16 else _PNG_MODES).get(colour)
    if mode is None or not (width and height):
        raise unsupported(f"a PNG of {width}x{height}, colour type {colour}, {depth} bits")
    at, orientation, transparent, grey_key, coded = 8, 1, False, None, 0
    while True:
        length, kind = _u32(data, at), data[at + 4 : at + 8]
        body = at + 8
        if body + length + 4 > len(data):
            raise truncated()
        if kind == b"IEND":
            break
        if kind == b"acTL":
            raise unsupported("an animated PNG")
        if kind == b"IDAT":
            coded += length
        if kind == b"eXIf":
            orientation = tiff_orientation(data[body : body + length].removeprefix(_EXIF))
        elif kind == b"tRNS":
            transparent = True
            if colour == 0 and length >= 2:
                scale = 1 if depth == 16 else 255 // (2**depth - 1)
                grey_key = _u16(data, body) * scale
        at = body + length + 4
    return ImageHeader(
        format="PNG", width=width, height=height, mode=mode, orientation=orientation,
        alpha=transparent or colour in (4, 6), grey_key=grey_key,
        plausible=_DEFLATE_MAX * coded >= height * -(-width * depth * _PNG_CHANNELS[colour] // 8),
    )  # fmt: skip


def _webp(data: bytes) -> ImageHeader:
    end = 8 + _u32(data, 4, "<")
    if end > len(data):
        raise truncated()
    at, width, height, orientation, alpha, coded = 12, 0, 0, 1, False, False
    while at + 8 <= end:
        kind, length = data[at : at + 4], _u32(data, at + 4, "<")
        body = at + 8
        if body + length > end:
            raise truncated()
        if kind == b"VP8X":
            if data[body] & 0x02:
                raise unsupported("an animated WebP")
            alpha = bool(data[body] & 0x10)
            size = (
                1 + int.from_bytes(data[body + 4 : body + 7], "little"),
                1 + int.from_bytes(data[body + 7 : body + 10], "little"),
            )
            width, height = max(width, size[0]), max(height, size[1])
        elif kind == b"VP8 ":
            coded = True
            raw_width, raw_height = struct.unpack_from("<HH", data, body + 6)
            width, height = max(width, raw_width & 0x3FFF), max(height, raw_height & 0x3FFF)
        elif kind == b"VP8L":
            coded = True
            bits = _u32(data, body + 1, "<")
            width, height = max(width, 1 + (bits & 0x3FFF)), max(height, 1 + (bits >> 14 & 0x3FFF))
            alpha = alpha or bool(bits >> 28 & 1)
        elif kind == b"EXIF":
            orientation = tiff_orientation(data[body : body + length].removeprefix(_EXIF))
        at = body + length + (length & 1)
    if not (coded and width and height):
        raise unsupported("a WebP without a picture")
    return ImageHeader(
        format="WebP", width=width, height=height, mode="RGBA" if alpha else "RGB", orientation=orientation, alpha=alpha
    )
