"""One frame stream: frames come in as they come, the newest waits, one is worked on, answers go out in order.

Memory is bounded whatever the client does: one frame under work, one that waits, one answer on its way out. While an
answer waits for a slow reader no frame is worked on, and newer frames go on replacing the one that waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any

import structlog
from starlette.websockets import WebSocket, WebSocketDisconnect

from blurfleet.errors import BlurfleetError, InvalidInput
from blurfleet.reasons import Reason
from blurfleet.serving.life import RequestLife
from blurfleet.serving.streaming import Dropped, End, FrameRefused, Summary, asked, text_of
from blurfleet_preprocess import problems
from blurfleet_preprocess.dataplane import Caller
from blurfleet_preprocess.deadlines import life_of
from blurfleet_preprocess.exchange import Exchange
from blurfleet_preprocess.latest import Latest
from blurfleet_preprocess.said_headers import evidence_allowed
from blurfleet_preprocess.steadying import Past
from blurfleet_preprocess.stream_frames import FrameWork, Worked
from blurfleet_preprocess.stream_tally import Tally
from blurfleet_preprocess.streams import OpenStream, Ticket

FINISHED, POLICY, FAILED, TRY_LATER, IDLE = 1000, 1008, 1011, 1013, 4408
"""Close codes; 4408 is our own, beside HTTP's 408."""


@dataclass(frozen=True, kw_only=True)
class StreamLimits:
    """`at_once` streams, each holding three frames at most; seconds without a message before a stream is closed, and
    for a client to take an answer."""

    at_once: int = 32
    max_frame_bytes: int = 8 << 20
    idle_s: float = 30.0
    send_s: float = 10.0


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How a stream ends: the close code and what was wrong, if anything. `gone`: nobody listens any more."""

    code: int = FINISHED
    error: BlurfleetError | None = None
    gone: bool = False


@dataclass(frozen=True, kw_only=True)
class Frame:
    """An encoded picture and its place in the stream."""

    ticket: Ticket
    data: bytes


class Session:
    """Runs one accepted connection to its end.

    `headers` are what each frame has in place of a request's: trace, evidence, deadline. `counted` is the client whose
    allowance the frames use.
    """

    def __init__(
        self,
        socket: WebSocket,
        exchange: Exchange,
        stream: OpenStream,
        work: FrameWork,
        *,
        limits: StreamLimits,
        headers: Mapping[str, str],
        counted: str,
    ) -> None:
        self._socket = socket
        self._exchange = exchange
        self._stream = stream
        self._work = work
        self._limits = limits
        self._headers = headers
        self._counted = counted
        self._waiting: Latest[Frame] = Latest()
        self._tally = Tally(exchange.metrics)
        self._past: Past | None = None
        self._received = 0
        self._life: RequestLife | None = None

    async def run(self) -> tuple[Ending, Summary]:
        """Answer frames until one side ends it, say the summary and close; return how it ended."""
        started, ending = time.monotonic(), Ending(gone=True)
        reading = asyncio.create_task(self._read())
        try:
            ending = await self._answer_all() or await reading
        finally:
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reading
        summary = self._tally.summary(self._stream.name, self._received, time.monotonic() - started)
        if not ending.gone:
            if ending.error is not None:
                summary = summary.model_copy(update={"problem": said_of(ending.error)})
            await close(self._socket, ending, text_of(summary), self._limits.send_s)
        return ending, summary

    async def _read(self) -> Ending:
        """Take messages until one ends the stream; return how. A frame under work is not idleness."""
        ending = Ending(gone=True)
        try:
            while True:
                try:
                    async with asyncio.timeout(self._limits.idle_s):
                        message = await self._socket.receive()
                except TimeoutError:
                    if self._life is not None:
                        continue
                    ending = _idle(self._limits.idle_s)
                    return ending
                if message["type"] == "websocket.disconnect":
                    if self._life is not None:
                        self._life.hang_up()
                    return ending
                if message.get("text") is not None:
                    ending = _ended_by(message["text"])
                    return ending
                self._received += 1
                self._waiting.offer(Frame(ticket=self._stream.arrive(), data=message["bytes"]))
        finally:
            self._waiting.close(discard=ending.gone)

    async def _answer_all(self) -> Ending | None:
        """Work on frames until no more come; return an ending only where the answers have nobody to go to."""
        while (frame := await self._waiting.take()) is not None:
            message = await self._answered(frame, self._tally.taken(frame.ticket.frame_id))
            try:
                async with asyncio.timeout(self._limits.send_s):
                    await self._send(message)
            except TimeoutError:
                message = f"an answer was not taken for {self._limits.send_s:g} s"
                return Ending(gone=True, error=InvalidInput(Reason.SLOW_CONSUMER, message, where="stream"))
            except (WebSocketDisconnect, RuntimeError):  # a RuntimeError is starlette's word for a closed socket
                return Ending(gone=True)
        return None

    async def _send(self, message: bytes | str) -> None:
        if isinstance(message, str):
            await self._socket.send_text(message)
        else:
            await self._socket.send_bytes(message)

    async def _answered(self, frame: Frame, dropped: Dropped | None) -> bytes | str:
        try:
            worked = await self._worked(frame, dropped)
        except BlurfleetError as error:
            problem = said_of(error)
        except Exception as error:
            structlog.get_logger("blurfleet.gateway").error("stream.unexpected", error=repr(error), exc_info=error)
            detail = "the gateway failed; its log says where"
            problem = json.loads(problems.document(HTTPStatus.INTERNAL_SERVER_ERROR, Reason.UNEXPECTED, detail))
        else:
            self._past = worked.past
            self._tally.answered(worked.steady)
            return worked.message
        finally:
            self._life = None
        self._tally.refused()
        return text_of(FrameRefused(id=frame.ticket.frame_id, dropped=dropped, problem=problem))

    async def _worked(self, frame: Frame, dropped: Dropped | None) -> Worked:
        """Answer a frame as a request of its own: a span, a deadline, a place among the workers."""
        exchange, past = self._exchange, self._past
        exchange.limits.take(self._counted)
        if len(frame.data) > self._limits.max_frame_bytes:
            message = f"a frame has at most {self._limits.max_frame_bytes} bytes"
            raise InvalidInput(Reason.REQUEST_TOO_LARGE, message, where="frame")
        with exchange.tracing.request(self._headers, {"blurfleet.stream": self._stream.name}) as stages:
            self._life = life_of(self._headers, longest_s=exchange.longest_s)
            evidence = exchange.evidence and evidence_allowed(self._headers)
            caller = Caller(ticket=frame.ticket, stages=stages, evidence_allowed=evidence, life=self._life)
            queued = time.perf_counter()

            def begun() -> Worked:
                stages.waited("queue", time.perf_counter() - queued)
                with exchange.room.share(caller.life) as share:
                    return self._work.answer(replace(caller, room=share), frame.data, past, dropped)

            try:
                async with asyncio.timeout(self._life.left_s()):
                    worked = await exchange.workers.run(begun)
            except TimeoutError:
                raise self._life.too_late() from None
            stages.observe(exchange.metrics)
            return worked


def said_of(error: BlurfleetError) -> dict[str, Any]:
    """Return the problem document that a request would be answered with."""
    found: dict[str, Any] = json.loads(problems.problem(error)[2])
    return found


async def close(socket: WebSocket, ending: Ending, last: str, within_s: float) -> None:
    """Say a last message and close with the ending's code and reason; a client that is gone is no error."""
    reason = ending.error.reason.value if ending.error is not None else ""
    with contextlib.suppress(TimeoutError, WebSocketDisconnect, RuntimeError):
        async with asyncio.timeout(within_s):
            await socket.send_text(last)
            await socket.close(ending.code, reason)


def _ended_by(text: str) -> Ending:
    try:
        message = asked(text)
        if isinstance(message, End):
            return Ending()
        raise InvalidInput(Reason.INVALID_REQUEST, "a stream has one hello", where="stream", fix="open a second stream")
    except InvalidInput as error:
        return Ending(code=POLICY, error=error)


def _idle(limit_s: float) -> Ending:
    message = f"no frame for {limit_s:g} s"
    return Ending(code=IDLE, error=InvalidInput(Reason.IDLE_TIMEOUT, message, where="stream", fix="open a new stream"))
