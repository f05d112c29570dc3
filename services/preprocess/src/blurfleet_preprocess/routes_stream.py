"""`/v1/stream`: video frames in over a WebSocket, mattes and pictures out; see `blurfleet.serving.streaming`."""

from __future__ import annotations

import asyncio

import structlog
from fastapi import APIRouter
from starlette.websockets import WebSocket, WebSocketDisconnect

from blurfleet.errors import BlurfleetError, InvalidInput
from blurfleet.reasons import Reason
from blurfleet.serving.streaming import SUBPROTOCOL, Hello, Ready, Summary, asked, text_of
from blurfleet_preprocess.compositing.look import Look
from blurfleet_preprocess.deadlines import HEADER as DEADLINE
from blurfleet_preprocess.deadlines import life_of
from blurfleet_preprocess.exchange import Exchange
from blurfleet_preprocess.grpc_places import OpenStreams
from blurfleet_preprocess.look_options import look_of
from blurfleet_preprocess.problems import Overloaded
from blurfleet_preprocess.said_headers import EVIDENCE, joined
from blurfleet_preprocess.stream_frames import FrameWork
from blurfleet_preprocess.stream_session import (
    POLICY,
    TRY_LATER,
    Ending,
    Session,
    StreamLimits,
    close,
    said_of,
)
from blurfleet_preprocess.streams import OpenStream

_HELLO_S = 10.0
STREAM_PATH = "/v1/stream"
_CARRIED = ("traceparent", "tracestate", EVIDENCE, DEADLINE)
"""Headers of the opening request that hold for every frame."""


def routes(exchange: Exchange, limits: StreamLimits | None = None) -> APIRouter:
    """Return `/v1/stream`."""
    router, bounds, gauge = APIRouter(), limits or StreamLimits(), exchange.metrics.streams_open
    log = structlog.get_logger("blurfleet.gateway")
    open_now: set[str] = set()
    places = OpenStreams(bounds.at_once, (bounds.at_once + 1) // 2)

    @router.websocket(STREAM_PATH)
    async def stream(socket: WebSocket) -> None:
        await socket.accept(SUBPROTOCOL if SUBPROTOCOL in socket.scope["subprotocols"] else None)
        mine = exchange.streams.open()
        try:
            counted = places.open(str(socket.scope.get("blurfleet.counted", "")))
        except Overloaded as error:
            await _turned_away(socket, mine, Ending(code=TRY_LATER, error=error), bounds)
            return
        try:
            await served(socket, mine)
        finally:
            places.close(counted)

    async def served(socket: WebSocket, mine: OpenStream) -> None:
        try:
            life_of(socket.headers)  # a deadline that is none is refused once, not with every frame
            hello, look = await _greeted(socket, exchange, bounds)
        except BlurfleetError as error:
            await _turned_away(socket, mine, Ending(code=POLICY, error=error), bounds)
            return
        except WebSocketDisconnect:
            return
        open_now.add(mine.name)
        gauge.set(len(open_now))
        try:
            ready = Ready(
                alias=exchange.gateway.alias,
                stream=mine.name,
                max_frame_bytes=bounds.max_frame_bytes,
                idle_timeout_s=bounds.idle_s,
            )
            await socket.send_text(text_of(ready))
            ending, summary = await _session(socket, exchange, mine, hello, look, bounds).run()
            log.info(
                "stream.closed",
                stream=mine.name,
                code=ending.code,
                reason=ending.error.reason.value if ending.error is not None else "",
                **summary.model_dump(include={"received", "answered", "refused", "dropped", "seconds"}),
            )
        finally:
            open_now.discard(mine.name)
            gauge.set(len(open_now))

    return router


async def _greeted(socket: WebSocket, exchange: Exchange, limits: StreamLimits) -> tuple[Hello, Look]:
    """Return the client's hello and the look it asks for. Raises InvalidInput, WebSocketDisconnect."""
    within_s = min(limits.idle_s, _HELLO_S)
    try:
        async with asyncio.timeout(within_s):
            received = await socket.receive()
    except TimeoutError:
        raise InvalidInput(Reason.IDLE_TIMEOUT, f"no hello for {within_s:g} s", where="stream") from None
    if received["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(received["code"])
    text = received.get("text")
    message = asked(text) if text is not None else None
    if not isinstance(message, Hello):
        raise InvalidInput(Reason.INVALID_REQUEST, "a stream begins with a hello", where="stream")
    if message.alias not in ("", exchange.gateway.alias):
        raise InvalidInput(
            Reason.NOT_FOUND, f"alias {message.alias!r} is not served here", where="alias", fix=exchange.gateway.alias
        )
    return message, _look(message)


def _look(hello: Hello) -> Look:
    if hello.format == "npy" and hello.output != "matte":
        raise InvalidInput(Reason.INVALID_REQUEST, "npy is for output matte", where="format", fix="ask for png")
    form = [] if hello.format == "npy" else [("format", hello.format)]
    return look_of([*hello.options.items(), *form])[0]


def _session(
    socket: WebSocket, exchange: Exchange, mine: OpenStream, hello: Hello, look: Look, limits: StreamLimits
) -> Session:
    said = joined(socket.headers.items())
    headers = {name: said[name] for name in _CARRIED if name in said}
    if hello.traceparent:
        headers["traceparent"] = hello.traceparent
    if not hello.evidence:
        headers[EVIDENCE] = "no"
    return Session(
        socket,
        exchange,
        mine,
        FrameWork(exchange.gateway, hello, look),
        limits=limits,
        headers=headers,
        counted=str(socket.scope.get("blurfleet.counted", "")),
    )


async def _turned_away(socket: WebSocket, mine: OpenStream, ending: Ending, limits: StreamLimits) -> None:
    assert ending.error is not None
    nothing = Summary(
        stream=mine.name, received=0, answered=0, refused=0, dropped=0, seconds=0.0, problem=said_of(ending.error)
    )
    await close(socket, ending, text_of(nothing), limits.send_s)
