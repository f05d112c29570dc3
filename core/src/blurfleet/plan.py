"""The header of a TensorRT plan: which TensorRT wrote it, read from its first bytes and never by deserializing.

Full TensorRT (8.6 and later, the words `trtexec --getPlanVersionOnly` checks): bytes 0-3 `ftrt` (0x74727466
little-endian), 4-7 zero, 24-27 major, minor, patch, build. TensorRT-RTX (found by building, the same in 17 of 17
engines of 1.4 and 1.7): bytes 0-3 `vtrt`, 16-23 the file's size, 24-27 the version, 28-31 `vtrt` again. Neither names
the GPU: that stands in the build record.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from blurfleet.errors import ArtifactRefused
from blurfleet.reasons import Reason

HEADER_BYTES = 28
_READ_BYTES = 64
_FULL_MAGIC = 0x74727466
_RTX_MAGIC = 0x74727476
_LENGTH_PREFIX_MAX = 1 << 20
_TEXTS = (
    (b"version https://git-lfs", "a Git LFS pointer", "fetch the real file: git lfs pull"),
    (b"<!doctype", "an HTML page", "the download answered with a web page; check the address and the login"),
    (b"<html", "an HTML page", "the download answered with a web page; check the address and the login"),
    (b"\x7felf", "an ELF binary", "give the plan, not a program"),
    (b"pk\x03\x04", "a zip archive", "unpack it first"),
    (b"\x1f\x8b", "a gzip archive", "unpack it first"),
    (b"{", "a JSON text", "give the plan itself"),
)


@dataclass(frozen=True, kw_only=True)
class PlanHeader:
    """What a plan says about itself: version `major.minor.patch.build`, and which product's plan it is."""

    tensorrt: str
    flavour: Literal["tensorrt", "tensorrt_rtx"]
    file_bytes: int


def read_plan_header(path: Path) -> PlanHeader:
    """Return the plan's header; at most 64 bytes are read.

    Raises ArtifactRefused: UnreadableFile, TruncatedPlan (shorter than its header, or than the size an RTX header
    states), NotAPlan with what the file is instead.
    """
    try:
        with path.open("rb") as handle:
            head = handle.read(_READ_BYTES)
        size = path.stat().st_size
    except OSError as error:
        raise ArtifactRefused(Reason.UNREADABLE_FILE, f"cannot be read: {error.strerror}", where=str(path)) from error
    return parse_plan_header(head, size, where=str(path))


def parse_plan_header(head: bytes, size: int, *, where: str = "") -> PlanHeader:
    """Return the header found in `head`, the first bytes of a file of `size` bytes. Raises as `read_plan_header`."""
    if size == 0:
        raise ArtifactRefused(
            Reason.TRUNCATED_PLAN, "the file is empty", where=where, fix="copy it again and compare digests"
        )
    magic = int.from_bytes(head[:4], "little") if len(head) >= 4 else None
    if magic not in (_FULL_MAGIC, _RTX_MAGIC):
        raise _not_a_plan(head, where)
    if len(head) < HEADER_BYTES:
        raise ArtifactRefused(
            Reason.TRUNCATED_PLAN,
            f"the plan ends after {size} bytes, inside its {HEADER_BYTES}-byte header",
            where=where,
            fix="copy it again and compare digests",
        )
    version = ".".join(str(part) for part in head[24:28])
    if magic == _RTX_MAGIC:
        _check_rtx(head, size, where)
        return PlanHeader(tensorrt=version, flavour="tensorrt_rtx", file_bytes=size)
    if head[4:8] != bytes(4) or head[24] == 0:
        raise ArtifactRefused(
            Reason.NOT_A_PLAN,
            "the plan's header carries no version: it was written by a TensorRT before 8.6, or is damaged",
            where=where,
            fix="build it again with TensorRT 8.6 or later",
        )
    return PlanHeader(tensorrt=version, flavour="tensorrt", file_bytes=size)


def _check_rtx(head: bytes, size: int, where: str) -> None:
    (stated,) = struct.unpack_from("<Q", head, 16)
    if stated > size:
        raise ArtifactRefused(
            Reason.TRUNCATED_PLAN,
            f"the header states {stated} bytes, the file has {size}",
            where=where,
            fix="copy it again and compare digests",
        )
    if stated != size or (len(head) >= 32 and head[28:32] != head[:4]):
        raise ArtifactRefused(Reason.NOT_A_PLAN, "the TensorRT-RTX header is damaged", where=where)


def _not_a_plan(head: bytes, where: str) -> ArtifactRefused:
    lowered = head.lstrip().lower()
    for start, what, fix in _TEXTS:
        if lowered.startswith(start):
            return ArtifactRefused(Reason.NOT_A_PLAN, f"this is {what}, not a plan", where=where, fix=fix)
    if len(head) > 5 and 0 < int.from_bytes(head[:4], "little") < _LENGTH_PREFIX_MAX and head[4:5] in b"{[":
        return ArtifactRefused(
            Reason.NOT_A_PLAN,
            "a length and JSON metadata stand before the plan: another tool's wrapper, which Triton refuses",
            where=where,
            fix="export a bare plan from that tool",
        )
    if len(head) >= 4 and head[:4] in (b"trtf", b"trtv"):
        return ArtifactRefused(Reason.NOT_A_PLAN, "the plan's bytes are in the wrong order", where=where)
    if b"ftrt" in head.replace(b"\r", b"").replace(b"\n", b""):
        return ArtifactRefused(
            Reason.NOT_A_PLAN,
            "the plan's magic word is displaced: something was put before it, or line ends were changed",
            where=where,
            fix="copy it in binary mode and compare digests",
        )
    return ArtifactRefused(
        Reason.NOT_A_PLAN,
        f"the file does not begin with a plan's magic word (first bytes {head[:8].hex(' ')})",
        where=where,
    )
