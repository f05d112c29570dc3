"""Connections: bounded in number, and in the time until a request's header is whole. Beside uvicorn's own protocol.

uvicorn waits for ever for a first header, and for the rest of a body that was answered already (read in 0.54).
"""

from __future__ import annotations

import asyncio
import base64
import time
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from blurfleet.reasons import Reason
from blurfleet_preprocess import problems
from blurfleet_preprocess.counting import address_of

_KEY_BYTES = 16


@dataclass(frozen=True, kw_only=True)
class WireLimits:
    """How many connections are held, seconds until a header must be whole, and to read on after an early answer.

    Beyond `connections` the one that has been idle for longest is closed; where none is idle, the new one is refused.
    WebSockets are counted apart, `sockets` of them and half of those from one address, from upgrade to the last byte:
    they never keep requests out.
    An answer may be taken at `min_rate` bytes a second, after `unread_s`: who takes it slower is cut off.
    """

    connections: int = 512
    sockets: int = 128
    header_s: float = 10.0
    linger_s: float = 2.0
    unread_s: float = 30.0
    min_rate: float = 16384.0


class Wire(H11Protocol):
    """One connection."""

    limits = WireLimits()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's own
        """Take the connection if there is room."""
        self._timer: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self._idle_since = time.monotonic()  # the loop's own clock tells connections of one millisecond not apart
        self._heard = False
        super().connection_made(transport)
        if self.make_room():
            self._watch()
        else:
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, Reason.OVERLOADED, "no connection is free")

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the timers."""
        self._stop_watching()
        if self._unread is not None:
            self._unread.cancel()
        super().connection_lost(exc)

    def make_room(self) -> bool:
        """Close the longest idle connection where this is one too many; return false where all others are at work."""
        wires = self._wires()
        if len(wires) <= self.limits.connections:
            return True
        idle = [wire for wire in wires if wire is not self and not wire.busy()]
        if idle:
            longest = min(idle, key=lambda wire: wire._idle_since)
            self.connections.discard(longest)  # now, for it hears of its end only later
            longest.transport.abort()
        return bool(idle)

    def busy(self) -> bool:
        """Tell whether a request is under way."""
        return self.cycle is not None and not self.cycle.response_complete

    def data_received(self, data: bytes) -> None:
        """Take what has arrived; a header that does not become whole ends the connection."""
        self._heard = True
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """Wait for the next request, or a little for the rest of a body that nobody wants any more."""
        self._idle_since = time.monotonic()
        waiting = self.transport.get_write_buffer_size()
        if waiting:
            if self._unread is not None:
                self._unread.cancel()
            self._unread = self.loop.call_later(self.limits.unread_s + waiting / self.limits.min_rate, self._cut_off)
        super().on_response_complete()
        if not self.busy() and self.conn.their_state is h11.SEND_BODY and not self.transport.is_closing():
            self._stop_watching()
            self._timer = self.loop.call_later(self.limits.linger_s, self.transport.close)

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Hand the connection over, if it asks for a WebSocket rightly and there is room for one more."""
        self._stop_watching()
        if (wrong := _wrong_upgrade(event)) is not None:
            self._answer(HTTPStatus.BAD_REQUEST, Reason.INVALID_REQUEST, wrong)
            return
        hosts = [_host(getattr(socket, "client", None)) for socket in self.connections if not isinstance(socket, Wire)]
        mine = hosts.count(_host(self.client))
        if len(hosts) >= self.limits.sockets or mine >= (self.limits.sockets + 1) // 2:
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, Reason.OVERLOADED, "no WebSocket is free")
            return
        super().handle_websocket_upgrade(event)

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP as a problem document; a request that it breaks off ends as if its client had gone."""
        if self.busy():
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self._answer(HTTPStatus.BAD_REQUEST, Reason.INVALID_REQUEST, msg)

    def _wires(self) -> list[Wire]:
        return [wire for wire in self.connections if isinstance(wire, Wire)]

    def _watch(self) -> None:
        handed_over = self.transport.get_protocol() is not self  # to a WebSocket, which has limits of its own
        if handed_over or self.busy() or self.transport.is_closing():
            self._stop_watching()
        elif self._timer is None:
            self._timer = self.loop.call_later(self.limits.header_s, self._too_slow)

    def _stop_watching(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        if self._heard:
            message = f"no whole header within {self.limits.header_s:g} s"
            self._answer(HTTPStatus.REQUEST_TIMEOUT, Reason.REQUEST_TIMEOUT, message)
        else:
            self.transport.close()

    def _cut_off(self) -> None:
        if self.transport.get_write_buffer_size():
            self.transport.abort()

    def _answer(self, status: HTTPStatus, reason: Reason, detail: str) -> None:
        """Say why, where the protocol's state still allows an answer, and close."""
        body = problems.document(status, reason, detail)
        headers = [("content-type", problems.MEDIA_TYPE), ("content-length", str(len(body))), ("connection", "close")]
        if status is HTTPStatus.SERVICE_UNAVAILABLE:
            headers.append(("retry-after", str(problems.RETRY_AFTER_S)))
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            events: list[Any] = [h11.Response(status_code=status.value, headers=headers), h11.Data(data=body)]
            self.transport.write(b"".join(self.conn.send(event) or b"" for event in [*events, h11.EndOfMessage()]))
        self.transport.close()


def _host(client: tuple[str, int] | None) -> str:
    return address_of(client[0]) if client is not None else ""


def _wrong_upgrade(event: h11.Request) -> str | None:
    """Return what is wrong with an opening handshake (RFC 6455, 4.2.1), None if nothing is."""
    headers = {bytes(name): bytes(value).strip() for name, value in event.headers}
    if bytes(event.method) != b"GET":
        return "a WebSocket is opened by GET"
    if headers.get(b"sec-websocket-version") != b"13":
        return "Sec-WebSocket-Version is not 13"
    try:
        key = base64.b64decode(headers.get(b"sec-websocket-key", b""), validate=True)
    except ValueError:
        key = b""
    return None if len(key) == _KEY_BYTES else "Sec-WebSocket-Key is not 16 bytes in base64"


def wire_of(limits: WireLimits) -> type[Wire]:
    """Return the protocol with these limits, as uvicorn's `http` takes it."""
    return type("LimitedWire", (Wire,), {"limits": limits})
