"""The HTTP server, and how it stops: not ready first, then no new connections, then gone when all is answered."""

from __future__ import annotations

import ssl
import threading
import time
from types import FrameType
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from blurfleet_preprocess.secure_wire import secure_wire_of
from blurfleet_preprocess.wire import WireLimits

_CLOSE = (b"connection", b"close")


def config_of(app: ASGIApp, limits: WireLimits, tls: ssl.SSLContext | None = None, **more: Any) -> uvicorn.Config:
    """Return how `app` is served, over TLS if given.

    A client is the connection's other end, whatever its headers say of proxies.
    """
    return uvicorn.Config(
        app,
        http=secure_wire_of(limits, tls),
        loop="auto" if tls is None else "asyncio",  # uvloop loses what comes before a handshake is begun
        proxy_headers=False,
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="on",
        **more,
    )


class Stop:
    """Whether a stop has begun. Safe for many threads."""

    def __init__(self) -> None:
        self._begun = threading.Event()

    def begin(self) -> None:
        """Be no longer ready."""
        self._begun.set()

    def begun(self) -> bool:
        """Tell whether this process is about to end."""
        return self._begun.is_set()


class Server(uvicorn.Server):
    """A uvicorn server that goes on for `drain_s` seconds after the first signal, asking clients to go elsewhere."""

    def __init__(self, config: uvicorn.Config, stop: Stop, drain_s: float) -> None:
        super().__init__(config)
        self._stop = stop
        self._drain_s = drain_s
        self._last = 0.0

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to stop; a second signal ends the wait."""
        self._last = 0.0 if self._stop.begun() else time.monotonic() + self._drain_s
        self._stop.begin()
        super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        """Return whether to stop listening now."""
        done = await super().on_tick(counter)
        headers = self.server_state.default_headers
        if self._stop.begun() and _CLOSE not in headers:
            self.server_state.default_headers = [*headers, _CLOSE]
        return done and (self.force_exit or time.monotonic() >= self._last)
