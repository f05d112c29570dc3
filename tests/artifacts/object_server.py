"""A small server of objects on loopback: ranges, PUT and S3's multipart calls; it remembers what was asked.

It stands in for an S3 bucket and for a plain https store: paths are keys, signatures are not checked.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from urllib.parse import parse_qs, urlsplit

_XML = '<?xml version="1.0" encoding="UTF-8"?>'


@dataclass(frozen=True)
class Asked:
    """One request as it arrived; `target` is path and query."""

    method: str
    target: str
    range: str
    authorization: str


@dataclass
class ObjectServer:
    """`objects` by path. After `cut_after` bytes of a body the connection ends; `refuse` maps a method to a status."""

    objects: dict[str, bytes] = field(default_factory=dict)
    cut_after: int | None = None
    ranges: bool = True
    refuse: dict[str, int] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    parts: dict[str, dict[int, bytes]] = field(default_factory=dict)

    def __enter__(self) -> ObjectServer:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def methods(self) -> list[str]:
        return [one.method for one in self.asked]


def _handler(server: ObjectServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: object) -> None:
            pass

        def _note(self) -> tuple[str, dict[str, list[str]]]:
            headers = self.headers
            server.asked.append(
                Asked(self.command, self.path, headers.get("range", ""), headers.get("authorization", ""))
            )
            parts = urlsplit(self.path)
            return parts.path, parse_qs(parts.query, keep_blank_values=True)

        def _answer(self, code: int, body: bytes = b"", **headers: str) -> None:
            self.send_response(code)
            for name, value in {"content-length": str(len(body)), **headers}.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            if self.command == "HEAD":
                return
            if server.cut_after is not None and self.command == "GET" and len(body) > server.cut_after:
                self.wfile.write(body[: server.cut_after])
                self.wfile.flush()
                self.connection.close()
                self.close_connection = True
                return
            self.wfile.write(body)

        def _body(self) -> bytes:
            return self.rfile.read(int(self.headers.get("content-length", "0")))

        def do_GET(self) -> None:
            path, _ = self._note()
            data = server.objects.get(path)
            if self.command in server.refuse:
                return self._answer(server.refuse[self.command])
            if data is None:
                return self._answer(404)
            if server.ranges and self.headers.get("range"):
                first = int(self.headers["range"].removeprefix("bytes=").split("-")[0])
                if first >= len(data):
                    return self._answer(416)
                return self._answer(206, data[first:], content_range=f"bytes {first}-{len(data) - 1}/{len(data)}")
            return self._answer(200, data)

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_PUT(self) -> None:
            path, query = self._note()
            body = self._body()
            if "PUT" in server.refuse:
                return self._answer(server.refuse["PUT"])
            if "partNumber" in query:
                server.parts.setdefault(path, {})[int(query["partNumber"][0])] = body
            else:
                server.objects[path] = body
            return self._answer(200, etag='"made"')

        def do_POST(self) -> None:
            path, query = self._note()
            self._body()
            if "uploads" in query:
                text = f"{_XML}<InitiateMultipartUploadResult><UploadId>one</UploadId></InitiateMultipartUploadResult>"
                return self._answer(200, text.encode())
            server.objects[path] = b"".join(data for _, data in sorted(server.parts.pop(path).items()))
            text = f'{_XML}<CompleteMultipartUploadResult><ETag>"made"</ETag></CompleteMultipartUploadResult>'
            return self._answer(200, text.encode())

    return Handler
