"""How one frame travels from the gateway to the agent: a JSON header and raw float32 arrays behind two lengths.

    magic "BFF1" | header bytes, uint32 | array bytes, uint32 | header: JSON | arrays: little-endian float32, C order

All integers are big-endian. The header holds `schemaVersion`, the frame's fields and the arrays' names and shapes.
"""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from blurfleet.errors import InvalidInput
from blurfleet.reasons import Reason

SCHEMA_VERSION = 1
MAGIC = b"BFF1"
PREFIX = struct.Struct(">4sII")
MAX_HEADER_BYTES = 16 << 10
MAX_ARRAY_BYTES = 64 << 20  # a 2048x2048 tensor with its matte and the fallback's: far above any engine of the fleet

Array = npt.NDArray[np.float32]


class FrameKind(StrEnum):
    """Why the gateway tells the agent: a served frame, one withheld (never served), one that may have collapsed."""

    SAMPLE = "sample"
    WITHHELD = "withheld"
    SUSPECT = "suspect"


@dataclass(frozen=True, kw_only=True, eq=False)
class FrameSample:
    """One frame as it was inferred: `tensor` [1,3,H,W] in, `matte` [1,1,H,W] out of `engine` (its Triton name).

    `frame_id` grows by arrival order within `stream`; `at` is seconds since 1970; `epoch` and `digest` are those of the
    routing snapshot that the request was answered under. `reason` is empty for plain samples. `fallback_matte` is what
    the fallback engine answered, where it was asked. `span_id` is the request's span, empty where its trace is not
    sampled. `evidence_allowed` is false where the client refused to have its picture kept. A frame equals only itself:
    arrays have no one truth value to compare by.
    """

    model: str
    stream: str
    frame_id: int
    epoch: int
    engine: str
    digest: str
    at: float
    tensor: Array
    matte: Array
    kind: FrameKind = FrameKind.SAMPLE
    reason: str = ""
    trace_id: str = ""
    span_id: str = ""
    fallback_matte: Array | None = None
    evidence_allowed: bool = True

    @property
    def nbytes(self) -> int:
        """Return how many bytes its arrays hold in memory."""
        return sum(array.nbytes for array in (self.tensor, self.matte, self.fallback_matte) if array is not None)


_TEXTS = ("model", "stream", "engine", "digest", "reason", "trace_id")
_NUMBERS = ("frame_id", "epoch")
_ARRAYS = ("tensor", "matte", "fallback_matte")


def broken(message: str) -> InvalidInput:
    """Return the error of bytes that are not a frame."""
    return InvalidInput(Reason.UNPARSEABLE, message, where="frame", fix="run gateway and agent of one release")


def encode(sample: FrameSample) -> list[bytes | memoryview]:
    """Return the message as buffers to be sent one after the other; arrays are not copied.

    Raises InvalidInput where it is larger than a receiver takes.
    """
    arrays = {name: getattr(sample, name) for name in _ARRAYS if getattr(sample, name) is not None}
    flat = {name: np.ascontiguousarray(array, dtype="<f4") for name, array in arrays.items()}
    header = {
        "schemaVersion": SCHEMA_VERSION,
        **{name: getattr(sample, name) for name in (*_TEXTS, *_NUMBERS)},
        "span_id": sample.span_id,
        "at": sample.at,
        "kind": sample.kind.value,
        "evidence_allowed": sample.evidence_allowed,
        "arrays": [[name, list(array.shape)] for name, array in flat.items()],
    }
    text = json.dumps(header, separators=(",", ":"), allow_nan=False).encode()
    total = sum(array.nbytes for array in flat.values())
    if len(text) > MAX_HEADER_BYTES or total > MAX_ARRAY_BYTES:
        raise broken(f"a frame of {len(text)} + {total} bytes is too large")
    prefix = PREFIX.pack(MAGIC, len(text), total)
    return [prefix + text, *(array.data.cast("B") for array in flat.values() if array.nbytes)]


def lengths(prefix: bytes) -> tuple[int, int]:
    """Return (header bytes, array bytes) of a message's first `PREFIX.size` bytes. Raises InvalidInput."""
    magic, header, arrays = PREFIX.unpack(prefix)
    if magic != MAGIC:
        raise broken(f"a message begins with {magic!r}, not {MAGIC!r}")
    if header > MAX_HEADER_BYTES or arrays > MAX_ARRAY_BYTES:
        raise broken(f"a message claims {header} + {arrays} bytes")
    return header, arrays


def decode(header: bytes, arrays: bytes | bytearray) -> FrameSample:
    """Return the frame; its arrays are views of `arrays`. Raises InvalidInput for anything but what `encode` wrote."""
    try:
        fields = json.loads(header)
        if fields["schemaVersion"] != SCHEMA_VERSION:
            raise broken(f"schemaVersion {fields['schemaVersion']!r} is not {SCHEMA_VERSION}")
        values: dict[str, Any] = {
            **{name: _checked(fields, name, str) for name in _TEXTS},
            **{name: _checked(fields, name, int) for name in _NUMBERS},
            "span_id": _checked({"span_id": ""} | fields, "span_id", str),  # a gateway of before sends none
            **_views(fields["arrays"], arrays),
            "at": _seconds(fields["at"]),
            "kind": FrameKind(fields["kind"]),
            "evidence_allowed": _checked(fields, "evidence_allowed", bool),
        }
        return FrameSample(**values)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise broken(f"a frame's header cannot be read: {error!r:.200}") from error


def _checked(fields: dict[str, Any], name: str, kind: type) -> Any:
    value = fields[name]
    if type(value) is not kind:
        raise TypeError(f"{name} is {type(value).__name__}, not {kind.__name__}")
    return value


def _seconds(value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise TypeError(f"at is {value!r}, not a time")
    return float(value)


def _views(listed: list[tuple[str, list[int]]], arrays: bytes | bytearray) -> dict[str, Array]:
    views: dict[str, Array] = {}
    at = 0
    for name, shape in listed:
        if name not in _ARRAYS or name in views or any(type(n) is not int or n < 0 for n in shape):
            raise ValueError(f"array {name!r} of shape {shape!r}")
        count = math.prod(shape)
        views[name] = np.frombuffer(arrays, dtype="<f4", count=count, offset=at).reshape(shape)
        at += 4 * count
    if at != len(arrays):
        raise ValueError(f"{len(arrays)} bytes of arrays, {at} described")
    return views
