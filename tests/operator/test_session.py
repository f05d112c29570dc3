"""What kopf's session makes of answers, over a real connection."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import aiohttp
import pytest

from blurfleet.store.kubeclient import Identity
from blurfleet_operator.session import session


class _Gone(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = json.dumps({"kind": "Status", "code": 410, "token": self.headers.get("Authorization", "")}).encode()
        self.send_response(200 if self.path == "/well" else 410)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Gone)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def ask(url: str, path: str) -> tuple[int, Any]:
    async def asked() -> tuple[int, Any]:
        who = Identity(host=url, token="t", authority=None, certificate=None, key=None, insecure=False)
        async with session(who).aiohttp_session as open_session, open_session.get(url + path) as answer:
            return answer.status, json.loads(b"".join([part async for part in answer.content.iter_chunked(1 << 20)]))

    return asyncio.run(asked())


def test_a_watch_that_is_refused_as_gone_says_so_in_its_stream(url: str) -> None:
    status, said = ask(url, "/nodes?watch=true&resourceVersion=1")
    assert (status, said["type"], said["object"]["code"]) == (200, "ERROR", 410)


def test_a_listing_that_is_refused_as_gone_breaks_off(url: str) -> None:
    with pytest.raises(aiohttp.ClientPayloadError, match="410"):
        ask(url, "/nodes?limit=500&continue=x")


def test_anything_else_passes_with_the_account_s_token(url: str) -> None:
    assert ask(url, "/well") == (200, {"kind": "Status", "code": 410, "token": "Bearer t"})
