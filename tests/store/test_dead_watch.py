"""A watch whose connection died says nothing: the store notices, begins it again where it was, and misses no change."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from blurfleet.deadline import came_true
from blurfleet.store.kube import KubeStore
from blurfleet.store.kubeclient import Access, KubeClient


def lease(renewed: str, version: int) -> dict[str, Any]:
    meta = {"name": "n1", "namespace": "sys", "uid": "u", "resourceVersion": str(version)}
    return {"kind": "Lease", "metadata": meta, "spec": {"renewTime": renewed}}


class Server(ThreadingHTTPServer):
    """Lists one Lease; its first watch stalls as a cut line does, the second brings what happened meanwhile."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.watches: list[str] = []
        self.ends = threading.Event()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        asked = parse_qs(urlsplit(self.path).query)
        if "watch" not in asked:
            mine = "leases" in self.path
            self._all({"metadata": {"resourceVersion": "5"}, "items": [lease("first", 5)] if mine else []})
            return
        self.server.watches.append(asked["resourceVersion"][0])
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        count = len(self.server.watches)
        if count == 1:
            self._event("BOOKMARK", lease("", 6))
        elif count == 2:
            self._event("MODIFIED", lease("second", 7))
        self.server.ends.wait(20.0)

    def _event(self, kind: str, body: dict[str, Any]) -> None:
        data = json.dumps({"type": kind, "object": body}).encode() + b"\n"
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def _all(self, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    yield made
    made.ends.set()
    made.shutdown()
    made.server_close()
    thread.join()


def test_a_watch_that_falls_silent_begins_again_where_it_was(server: Server, tmp_path: Path) -> None:
    config = tmp_path / "kubeconfig"
    cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    said = {"clusters": [cluster], "contexts": [context], "users": [{"name": "u", "user": {}}], "current-context": "c"}
    config.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", **said}))
    with KubeStore(KubeClient(Access(kubeconfig=config), silence_s=0.5), manager="m") as store:
        store.follow_leases("sys")

        def renewed() -> list[str]:
            return [str(b["spec"]["renewTime"]) for b in store._all("Lease")[0]]

        assert came_true(lambda: renewed() == ["second"], 10.0)
        assert server.watches[:2] == ["5", "6"]
        assert (store.trouble, store.recoveries) == (None, 0)
