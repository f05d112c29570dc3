"""What is said on a video stream, from the client's side, whatever carries it."""

from __future__ import annotations

import io
from dataclasses import dataclass, field

import cv2
import numpy as np
import numpy.typing as npt
from websockets.exceptions import ConnectionClosed

from blurfleet.client.answers import MadeBy, pixels_of
from blurfleet.client.calls import NPY, Photo, bgr_of, option
from blurfleet.client.failures import GatewayFailure, GatewayUnavailable, RequestRefused, failure_from
from blurfleet.client.terms import Terms
from blurfleet.reasons import Reason
from blurfleet.serving.streaming import (
    Dropped,
    FrameAnswer,
    FrameFormat,
    FrameRefused,
    Hello,
    Ready,
    Summary,
    said,
    text_of,
    unpacked,
)

_JPEG_QUALITY = 92


@dataclass(frozen=True, kw_only=True)
class VideoOptions:
    """What is wanted of each frame. `look` are the options of `/v1/blur`; see `Hello` for the others."""

    output: str = "blur"
    format: FrameFormat = "jpeg"
    smoothing: float = 0.0
    alias: str = ""
    look: dict[str, str | float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class FrameResult:
    """Frame `id` answered: `payloads` by output (`matte`, `blur`), encoded as asked.

    `dropped` are first and last id of the frames left out since the answer before. `flicker` and `engine_flicker` are
    in [0,1], None where there is nothing to compare with.
    """

    id: int
    by: MadeBy
    payloads: dict[str, bytes]
    media_types: dict[str, str]
    dropped: Dropped | None = None
    flicker: float | None = None
    engine_flicker: float | None = None
    scene_cut: bool = False

    def picture(self, output: str = "blur") -> npt.NDArray[np.uint8]:
        """Return the pixels of an output: uint8, [H,W] for a matte, else [H,W,3] RGB or [H,W,4]."""
        return pixels_of(self.payloads[output])

    @property
    def matte(self) -> npt.NDArray[np.float32]:
        """Return the matte [H,W] in [0,1]: the network's own where `npy` was asked for, else from 256 levels."""
        if self.media_types["matte"] == NPY:
            return np.asarray(np.load(io.BytesIO(self.payloads["matte"]), allow_pickle=False), dtype=np.float32)
        return self.picture("matte").astype(np.float32) / np.float32(255)


@dataclass(frozen=True, kw_only=True)
class FrameFailure:
    """Frame `id` was refused; `error` says why, and is not raised: the stream goes on."""

    id: int
    error: GatewayFailure
    dropped: Dropped | None = None


Heard = FrameResult | FrameFailure


class Conversation:
    """What both kinds of stream keep: the number of frames sent, and how the stream ended."""

    def __init__(self, options: VideoOptions, terms: Terms) -> None:
        look = {name: option(value) for name, value in options.look.items()}
        hello = Hello.model_validate(
            {
                "output": options.output,
                "format": options.format,
                "smoothing": options.smoothing,
                "alias": options.alias,
                "options": look,
                "evidence": terms.evidence,
                "traceparent": terms.traceparent,
            }
        )
        self.hello = text_of(hello)
        self.sent = 0
        self.ready: Ready | None = None
        self.summary: Summary | None = None

    def fitting(self, frame: bytes) -> bytes:
        """Return `frame` where the gateway takes one so large. Raises RequestRefused.

        It would end the stream with 1009, and that word is often lost while the rest of the frame is being sent.
        """
        limit = self.ready.max_frame_bytes if self.ready is not None else len(frame)
        if len(frame) > limit:
            message = f"a frame of {len(frame)} bytes, and this gateway takes {limit}"
            raise RequestRefused(Reason.REQUEST_TOO_LARGE, message, where="frame", fix="send a smaller picture")
        return frame

    def take(self, message: str | bytes) -> Heard | None:
        """Return what a message says of a frame, None for one about the stream. Raises GatewayFailure at a bad end."""
        if isinstance(message, bytes):
            return result_of(*unpacked(message))
        about = said(message)
        if isinstance(about, FrameRefused):
            return FrameFailure(id=about.id, error=failure_from(about.problem), dropped=about.dropped)
        if isinstance(about, Ready):
            self.ready = about
        else:
            self.summary = about
            if about.problem is not None:
                raise failure_from(about.problem)
        return None

    def broken(self, error: ConnectionClosed) -> GatewayFailure:
        """Return the failure of a stream whose connection ended without a summary."""
        why = f"{error.rcvd.code} {error.rcvd.reason}".strip() if error.rcvd is not None else "no word"
        return GatewayUnavailable(Reason.GATEWAY_UNREACHABLE, f"the stream broke off: {why}", where="stream")


def frame_bytes(photo: Photo) -> bytes:
    """Return a frame as it is sent; an array uint8 RGB [H,W,3] is packed as JPEG. Raises InvalidInput."""
    if isinstance(photo, bytes):
        return photo
    return bytes(cv2.imencode(".jpg", bgr_of(photo), [cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY])[1])


def result_of(header: FrameAnswer, payloads: tuple[bytes, ...]) -> FrameResult:
    """Return an answer as clients see it."""
    names = {"engine", "digest", "precision", "role", "epoch", "contract", "trace", "withheld", "unchecked"}
    facts = header.model_dump(include=names)
    return FrameResult(
        id=header.id,
        by=MadeBy(**facts, simulated=header.simulated, stages=header.stages),
        payloads={part.output: data for part, data in zip(header.parts, payloads, strict=True)},
        media_types={part.output: part.media_type for part in header.parts},
        dropped=header.dropped,
        flicker=header.flicker,
        engine_flicker=header.engine_flicker,
        scene_cut=header.scene_cut,
    )


def silent(timeout_s: float) -> GatewayUnavailable:
    """Return the failure of a stream on which nothing was heard."""
    return GatewayUnavailable(Reason.DEADLINE_EXCEEDED, f"nothing was heard for {timeout_s:g} s", where="stream")
