"""Lets requests in over HTTP and WebSocket: who they are, and whether that client has asked too much already."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from blurfleet.errors import BlurfleetError, UnknownName
from blurfleet.reasons import Reason
from blurfleet_preprocess import problems
from blurfleet_preprocess.access import OPEN_PATHS
from blurfleet_preprocess.counting import let_in
from blurfleet_preprocess.exchange import Exchange
from blurfleet_preprocess.routes_page import PAGE_PATHS
from blurfleet_preprocess.routes_stream import STREAM_PATH

_SUBPROTOCOL = "bearer."
_LOST_S = 1.0


class Doorkeeper:
    """ASGI middleware. A request that is let in carries its client's name as `blurfleet.client` in its scope."""

    def __init__(self, app: ASGIApp, exchange: Exchange) -> None:
        self._app = app
        self._exchange = exchange

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 401, 403, 404 or 429, or hand the request on."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        try:
            self._check(scope)
        except BlurfleetError as error:
            await self._refuse(error, scope, receive, send)
            return
        if scope["path"] in OPEN_PATHS | PAGE_PATHS:
            await self._app(scope, receive, send)
            return
        with contextlib.ExitStack() as stack:
            try:
                client, counted = let_in(
                    self._exchange.access, self._exchange.limits, _authorization(scope), _peer(scope)
                )
                self._exchange.limits.take(counted)
                stack.enter_context(self._exchange.limits.held(counted))
            except BlurfleetError as error:
                await self._refuse(error, scope, receive, send)
                return
            await self._app({**scope, "blurfleet.client": client, "blurfleet.counted": counted}, receive, send)

    def _check(self, scope: Scope) -> None:
        self._exchange.names.check(Headers(scope=scope), scope.get("method", "WEBSOCKET"))
        if scope["type"] == "websocket" and scope["path"] != STREAM_PATH:
            raise UnknownName(Reason.NOT_FOUND, f"there is no WebSocket at {scope['path'][:80]}", where="path")

    async def _refuse(self, error: BlurfleetError, scope: Scope, receive: Receive, send: Send) -> None:
        status, headers, body = problems.problem(error)
        self._exchange.metrics.requests.labels(str(status)).inc()
        content = problems.for_path(scope["path"], body)
        await Response(content, status, headers, media_type=problems.MEDIA_TYPE)(scope, receive, send)
        if scope["type"] == "websocket":
            await _until_lost(receive)


def _authorization(scope: Scope) -> str:
    """Return the `Authorization` header; browsers cannot set it on a WebSocket and offer `bearer.<token>` instead."""
    headers = Headers(scope=scope)
    protocols = headers.get("sec-websocket-protocol", "") if scope["type"] == "websocket" else ""
    for offered in protocols.split(","):
        if offered.strip().startswith(_SUBPROTOCOL):
            return f"Bearer {offered.strip().removeprefix(_SUBPROTOCOL)}"
    return headers.get("authorization", "")


def _peer(scope: Scope) -> str:
    peer: Any = scope.get("client")
    return str(peer[0]) if peer else ""


async def _until_lost(receive: Receive) -> None:
    """Wait until a refused WebSocket's connection is gone: uvicorn (0.54) logs an error if the application ends first.

    It says disconnect twice: once the answer is written, and once the connection is lost.
    """
    heard = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LOST_S):
            while heard < 2:
                heard += (await receive())["type"] == "websocket.disconnect"
