"""A collector on loopback that reads OTLP over HTTP as the gateway (protobuf) and Triton (JSON) send it."""

from __future__ import annotations

import base64
import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True, kw_only=True)
class SeenSpan:
    """One span as it arrived: ids in hex, times in nanoseconds, links as (trace id, span id)."""

    service: str
    instance: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start: int
    end: int
    attributes: dict[str, Any]
    links: tuple[tuple[str, str], ...]
    failed: bool

    @property
    def seconds(self) -> float:
        return (self.end - self.start) / 1e9


@dataclass
class Collector:
    """Its address, and what it was sent. `ill` answers 503 instead, `slow` holds answers until it is set."""

    url: str = ""
    spans: list[SeenSpan] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    ill: bool = False
    slow: threading.Event | None = None
    asked: int = 0

    def take(self, body: bytes, kind: str) -> None:
        self.bodies.append(body)
        if kind.startswith("application/json"):
            message, hex_ids = json.loads(body), True
        else:
            parsed = ExportTraceServiceRequest.FromString(body)
            message, hex_ids = json_format.MessageToDict(parsed), False
        for group in message["resourceSpans"]:
            resource = _values(group["resource"].get("attributes", ()))
            for scope in group["scopeSpans"]:
                self.spans += [_span(one, resource, hex_ids) for one in scope["spans"]]

    def of(self, trace_id: str, name: str = "") -> list[SeenSpan]:
        return [s for s in list(self.spans) if s.trace_id == trace_id and name in ("", s.name)]


def _values(attributes: Any) -> dict[str, Any]:
    found = {}
    for one in attributes:
        ((kind, value),) = one["value"].items()
        found[one["key"]] = int(value) if kind == "intValue" else value
    return found


def _id(value: str, hex_ids: bool) -> str:
    return value if hex_ids else base64.b64decode(value).hex()


def _span(one: dict[str, Any], resource: dict[str, Any], hex_ids: bool) -> SeenSpan:
    return SeenSpan(
        service=resource.get("service.name", ""),
        instance=resource.get("service.instance.id", ""),
        name=one["name"],
        trace_id=_id(one["traceId"], hex_ids),
        span_id=_id(one["spanId"], hex_ids),
        parent_id=_id(one.get("parentSpanId", ""), hex_ids),
        start=int(one["startTimeUnixNano"]),
        end=int(one["endTimeUnixNano"]),
        attributes=_values(one.get("attributes", ())),
        links=tuple((_id(k["traceId"], hex_ids), _id(k["spanId"], hex_ids)) for k in one.get("links", ())),
        failed=one.get("status", {}).get("code") in (2, "STATUS_CODE_ERROR"),
    )


@contextmanager
def collecting() -> Iterator[Collector]:
    """Run a collector."""
    made = Collector()

    class Collect(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            made.asked += 1
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if made.slow is not None:
                made.slow.wait(30)
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            if not made.ill:
                made.take(body, self.headers["Content-Type"])
            self.send_response(503 if made.ill else 200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            return  # a client that no longer waits is what some tests are about

    with Server(("127.0.0.1", 0), Collect) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        made.url = f"http://127.0.0.1:{server.server_port}/v1/traces"
        yield made
        if made.slow is not None:
            made.slow.set()
        server.shutdown()
        thread.join()
