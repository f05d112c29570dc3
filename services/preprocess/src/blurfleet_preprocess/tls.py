"""The door's certificate, from files that a certificate manager replaces: new connections get the new one."""

from __future__ import annotations

import ssl
import threading
from pathlib import Path
from typing import Any

import grpc
import structlog

from blurfleet.errors import NodeError
from blurfleet.reasons import Reason

Stamp = tuple[tuple[int, int, int], ...]


class Certificate:
    """A certificate chain and its key, in PEM files. A pair that does not fit together leaves the last good one."""

    def __init__(self, cert: Path, key: Path) -> None:
        """Read both. Raises NodeError UnreadableFile."""
        self._files = (cert, key)
        self._lock = threading.Lock()
        self._log = structlog.get_logger("blurfleet.access")
        try:
            self._stamp = self._look()
            self._context = self._made()
            self._pair = (key.read_bytes(), cert.read_bytes())
        except (OSError, ssl.SSLError) as error:
            raise NodeError(
                Reason.UNREADABLE_FILE, str(error), where=f"{cert}, {key}", fix="give a PEM certificate and its key"
            ) from error

    def for_http(self) -> ssl.SSLContext:
        """Return a context for HTTP that looks at the files at every handshake."""
        first = self._made()

        def at_handshake(connection: ssl.SSLObject, *_: Any) -> None:
            connection.context = self.current()[0]

        first.sni_callback = at_handshake  # called without a server name too
        return first

    def for_grpc(self) -> Any:
        """Return credentials for gRPC that look at the files at every handshake."""
        return grpc.dynamic_ssl_server_credentials(
            grpc.ssl_server_certificate_configuration([self.current()[1]]),
            lambda: grpc.ssl_server_certificate_configuration([self.current()[1]]),
        )

    def current(self) -> tuple[ssl.SSLContext, tuple[bytes, bytes]]:
        """Return the context, and key with certificate, as the files are now."""
        with self._lock:
            try:
                stamp = self._look()
                if stamp != self._stamp:
                    self._stamp = stamp
                    self._context = self._made()
                    self._pair = (self._files[1].read_bytes(), self._files[0].read_bytes())
                    self._log.info("access.certificate_read", where=str(self._files[0]))
            except (OSError, ssl.SSLError) as error:
                self._log.error("access.certificate_unreadable", error=str(error), where=str(self._files[0]))
            return self._context, self._pair

    def _look(self) -> Stamp:
        found = [path.stat() for path in self._files]
        return tuple((f.st_ino, f.st_mtime_ns, f.st_size) for f in found)

    def _made(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(*self._files)
        return context
