"""What client and gateway say to each other over `/v1/stream`: the messages, and how an answer lies in its bytes.

The client opens with a `Hello` (text), sends encoded pictures (binary), then `End` (text). The gateway says `Ready`,
then one `FrameAnswer` (binary) or `FrameRefused` (text) for every frame it worked on, and a `Summary` before it closes.
Frames are numbered from 1 as they arrive; a newer frame replaces the one that waits, so what was replaced between two
answers is one range of ids.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from blurfleet.api.base import Model
from blurfleet.errors import InvalidInput
from blurfleet.reasons import Reason

SUBPROTOCOL = "blurfleet.stream.v1"
MAX_TEXT_BYTES = 16384
"""A text message of a client is at most this long."""
FrameFormat = Literal["jpeg", "png", "webp", "npy"]
Output = Literal["matte", "blur"]
Dropped = tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)]]
"""First and last id, both included."""


class Hello(Model):
    """What a client wants of its stream. `options` are names and values as in the query of `/v1/blur`.

    `output` `both` gives the matte and the picture of every frame; `npy` is the matte alone, float32 [H,W] at the
    network's size. `smoothing` is the weight of the past where the picture stands still, 0 (off) to 0.95.
    """

    kind: Literal["hello"] = "hello"
    alias: str = Field(default="", max_length=128)
    output: Literal["matte", "blur", "both"] = "blur"
    format: FrameFormat = "jpeg"
    smoothing: float = Field(default=0.0, ge=0.0, le=0.95, allow_inf_nan=False)
    options: dict[str, str] = Field(default_factory=dict, max_length=16)
    evidence: bool = True
    traceparent: str = Field(default="", max_length=256)


class End(Model):
    """The client sends no more frames."""

    kind: Literal["end"] = "end"


class _Said(Model):
    """Base of what the gateway says: a client ignores what a newer gateway adds."""

    model_config = ConfigDict(extra="ignore")


class Ready(_Said):
    """The stream is open. `stream` is its name in frames, logs and evidence."""

    kind: Literal["ready"] = "ready"
    alias: str
    stream: str
    max_frame_bytes: int
    idle_timeout_s: float


class Part(_Said):
    """One of an answer's payloads, `bytes` long, in the order they follow the header line."""

    output: Output
    media_type: str
    bytes: int = Field(ge=0)


class FrameAnswer(_Said):
    """Who answered frame `id`, all from one routing snapshot, and what follows the header line.

    `flicker` is of the matte that was sent, `engine_flicker` of the engine's: the mean change since the frame before
    where the picture hardly changed, in [0,1]; absent where there is nothing to compare. `stages` are milliseconds.
    """

    kind: Literal["answer"] = "answer"
    id: int = Field(ge=1)
    dropped: Dropped | None = None
    engine: str
    digest: str
    precision: str
    role: str
    epoch: int
    contract: str
    trace: str
    simulated: bool = False
    withheld: str = ""
    unchecked: str = ""
    scene_cut: bool = False
    flicker: float | None = None
    engine_flicker: float | None = None
    stages: dict[str, float] = Field(default_factory=dict)
    parts: tuple[Part, ...] = ()


class FrameRefused(_Said):
    """Frame `id` has no answer; the stream goes on. `problem` is the problem document that a request would get."""

    kind: Literal["refused"] = "refused"
    id: int = Field(ge=1)
    dropped: Dropped | None = None
    problem: dict[str, Any]


class Summary(_Said):
    """The stream as it ends: frames by outcome, mean flicker, seconds, and the problem that ended it, if any."""

    kind: Literal["summary"] = "summary"
    stream: str
    received: int = Field(ge=0)
    answered: int = Field(ge=0)
    refused: int = Field(ge=0)
    dropped: int = Field(ge=0)
    last_dropped: Dropped | None = None
    flicker: float | None = None
    engine_flicker: float | None = None
    seconds: float
    problem: dict[str, Any] | None = None


Said = Annotated[Ready | FrameRefused | Summary, Field(discriminator="kind")]
_SAID: TypeAdapter[Ready | FrameRefused | Summary] = TypeAdapter(Said)
_ASKED: TypeAdapter[Hello | End] = TypeAdapter(Annotated[Hello | End, Field(discriminator="kind")])


def text_of(message: Model) -> str:
    """Return a message as it is sent: one line of JSON without nulls."""
    return message.model_dump_json(by_alias=True, exclude_none=True)


def asked(text: str) -> Hello | End:
    """Return a client's text message; `kind` may be left out of a hello.

    Raises InvalidInput InvalidRequest, also where a key is given twice: which of the two was meant is not guessed.
    """
    try:
        if len(text) > MAX_TEXT_BYTES:
            raise ValueError(f"a text message has at most {MAX_TEXT_BYTES} characters")
        message = _message(text)
        json.loads(text, object_pairs_hook=_once)  # only now: whatever passed is not nested too deeply for it
        return message
    except ValueError as error:
        raise InvalidInput(
            Reason.INVALID_REQUEST, _sentence(error), where="stream", fix="see docs/clients.md for the messages"
        ) from None


def _message(text: str) -> Hello | End:
    try:
        return _ASKED.validate_json(text)
    except ValidationError as error:
        if any(found["type"] == "union_tag_not_found" for found in error.errors()):
            return Hello.model_validate_json(text)
        raise


def _once(pairs: list[tuple[str, Any]]) -> None:
    seen = set()
    for key, _ in pairs:
        if key in seen:
            raise ValueError(f"{key} is given twice")
        seen.add(key)


def said(text: str) -> Ready | FrameRefused | Summary:
    """Return a gateway's text message. Raises InvalidInput InvalidRequest."""
    try:
        return _SAID.validate_json(text)
    except ValueError as error:
        raise InvalidInput(Reason.INVALID_REQUEST, _sentence(error), where="stream") from None


def packed(header: FrameAnswer, payloads: tuple[bytes, ...]) -> bytes:
    """Return an answer's bytes: the header as one line of JSON, a newline, the payloads one after the other."""
    return b"".join((text_of(header).encode(), b"\n", *payloads))


def unpacked(data: bytes) -> tuple[FrameAnswer, tuple[bytes, ...]]:
    """Return header and payloads of an answer. Raises InvalidInput InvalidRequest where the bytes are not one."""
    line, found, rest = data.partition(b"\n")
    try:
        header = FrameAnswer.model_validate_json(line)
        if not found or len(rest) != sum(part.bytes for part in header.parts):
            raise ValueError(f"{len(rest)} bytes follow the header, which announces others")
    except ValueError as error:
        raise InvalidInput(Reason.INVALID_REQUEST, _sentence(error), where="stream") from None
    payloads, start = [], 0
    for part in header.parts:
        payloads.append(rest[start : start + part.bytes])
        start += part.bytes
    return header, tuple(payloads)


def _sentence(error: ValueError) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    return f"{place}: {first['msg']}" if place else str(first["msg"])
