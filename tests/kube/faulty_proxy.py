"""A proxy before the API server that answers badly: with errors, conflicts, compacted histories, late or not at all.

A compacted history is said in the stream (`gone`) or by the answer's status (`refused`).
"""

from __future__ import annotations

import http.client
import json
import random
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

FAULTS = ("storm", "conflicts", "gone", "refused", "slow", "cut", "forbidden", "garbage")
_GARBAGE = (
    b"<html>back soon</html>",
    b"\x1f\x8b\x08",
    b'{"type": "MODIF',
    b'{"type": "ERROR", "object": {"code": 500, "message": "no leader"}}\n',
)
_CUTTING = ("cut", "gone", "refused", "forbidden", "garbage")
_WHILE_ROLES_CHANGE = 40  # requests that are refused before all is well again
_CHUNK = 1 << 16


class FaultyProxy:
    """Listens without TLS on loopback. `fault` names what goes wrong, empty: nothing; `injected` counts it."""

    def __init__(self, upstream: str, authority: str) -> None:
        self.fault = ""
        self.injected = 0
        self.random = random.Random(7)
        self.slowness = threading.Event()
        where = urlsplit(upstream)
        assert where.hostname is not None
        self.upstream = (where.hostname, where.port)
        self.trust = ssl.create_default_context(cafile=authority)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> FaultyProxy:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def refusal(self, method: str, watch: bool, listing: bool) -> int:
        """Return the status to answer with instead of asking the server, 0 for none."""
        dice = self.random.random()
        code = 0
        if self.fault == "storm" and dice < 0.5:
            code = 500
        elif self.fault == "conflicts" and method in ("PATCH", "PUT", "POST") and dice < 0.5:
            code = 409
        elif (watch or (listing and self.fault == "refused")) and self.fault in ("gone", "refused") and dice < 0.6:
            code = 410
        elif (watch or listing) and self.fault == "forbidden" and self.injected < _WHILE_ROLES_CHANGE:
            code = self.random.choice((403, 404))
        elif self.fault == "slow":
            self.slowness.wait(0.3)
        self.injected += bool(code) or self.fault in ("slow", "cut")
        return code


def _handler(proxy: FaultyProxy) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

        def _forward(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            watch = "watch=" in self.path
            code = proxy.refusal(self.command, watch, "limit=" in self.path)
            if code == 410 and proxy.fault == "gone":
                self._say_gone()
                return
            if watch and proxy.fault == "garbage" and proxy.random.random() < 0.6:
                proxy.injected += 1
                self._say(proxy.random.choice(_GARBAGE))
                return
            if code:
                self._refuse(code)
                return
            up = http.client.HTTPSConnection(*proxy.upstream, context=proxy.trust, timeout=120)
            try:
                kept = {k: v for k, v in self.headers.items() if k.lower() not in ("host", "connection")}
                up.request(self.command, self.path, body=body or None, headers=kept)
                self._relay(up.getresponse(), watch)
            except OSError:
                self.close_connection = True
            finally:
                up.close()

        def _say_gone(self) -> None:
            """Answer a watch as the server does whose history was compacted: well, with an error in the stream."""
            said = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Expired", "code": 410}
            line = json.dumps({"type": "ERROR", "object": {**said, "metadata": {}, "message": "injected"}}) + "\n"
            self._say(line.encode())

        def _say(self, data: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def _refuse(self, code: int) -> None:
            said = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "injected", "code": code}
            data = json.dumps(said).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def _relay(self, answer: http.client.HTTPResponse, watch: bool) -> None:
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.headers.get("Content-Type", "application/json"))
            if encoding := answer.headers.get("Content-Encoding"):
                self.send_header("Content-Encoding", encoding)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            while data := answer.read1(_CHUNK):
                self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
                self.wfile.flush()
                if watch and proxy.fault in _CUTTING and proxy.random.random() < 0.5:
                    self.close_connection = True  # in the middle of a stream, without its end
                    return
            self.wfile.write(b"0\r\n\r\n")

    for verb in ("GET", "POST", "PUT", "PATCH", "DELETE"):
        setattr(Handler, f"do_{verb}", Handler._forward)
    return Handler
