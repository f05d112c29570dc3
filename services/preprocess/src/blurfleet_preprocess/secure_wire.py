"""Connections over TLS: counted and timed from their first byte on, handshake included.

uvicorn hears of a connection after its handshake, for which asyncio waits a minute (read in 0.54 and Python 3.11).
"""

from __future__ import annotations

import asyncio
import ssl

from blurfleet_preprocess.wire import Wire, WireLimits, wire_of


class SecureWire(Wire):
    """One connection, which begins plain; until its handshake is over it counts as idle."""

    context: ssl.SSLContext

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's own
        """Begin the handshake if there is room."""
        self._secured = False
        self._early = b""
        self._idle_since = self.loop.time()
        self.transport = self._plain = transport
        transport.pause_reading()  # what comes is for TLS; uvloop would read on
        self.connections.add(self)
        if not self.make_room():
            self._forget()
            return
        self._handshake = self.loop.create_task(self._shake_hands())

    def data_received(self, data: bytes) -> None:
        """Take what has arrived, the first of it maybe before the handshake's end is known here."""
        if self._secured:
            super().data_received(data)
        else:
            self._early += data

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        if self._secured:
            super().connection_lost(exc)
        else:
            self._forget()

    async def _shake_hands(self) -> None:
        try:
            secured = await self.loop.start_tls(
                self._plain, self, self.context, server_side=True, ssl_handshake_timeout=self.limits.header_s
            )
        except OSError:  # TLS errors, resets and the time limit alike
            secured = None
        if secured is None or self._plain.is_closing():
            self._forget()
            return
        self._secured = True
        super().connection_made(secured)
        if self._early:
            super().data_received(self._early)

    def _forget(self) -> None:
        self.connections.discard(self)
        self._plain.abort()


def secure_wire_of(limits: WireLimits, context: ssl.SSLContext | None) -> type[Wire]:
    """Return the protocol with these limits, over TLS if there is a context, as uvicorn's `http` takes it."""
    if context is None:
        return wire_of(limits)
    return type("LimitedSecureWire", (SecureWire,), {"limits": limits, "context": context})
