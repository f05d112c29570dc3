"""What kopf's session makes of answers, over a real connection."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import aiohttp
import pytest

from blurfleet.store.kubeclient import Identity
from blurfleet_operator.session import session

GOOD = {"type": "ADDED", "object": {"metadata": {"name": "a", "resourceVersion": "7"}}}
ANSWERS: dict[str, tuple[int, bytes]] = {
    "gone": (410, b'{"kind": "Status", "code": 410}'),
    "forbidden": (403, b'{"kind": "Status", "message": "not for you"}'),
    "unknown kind": (404, b"404 page not found"),
    "busy": (500, b"\x1f\x8b\x08"),
    "a proxy's page": (200, b"<html>be back soon</html>"),
    "bytes": (200, b"\x1f\x8b\x08\x00"),
    "null": (200, b"null"),
    "half a line": (200, json.dumps(GOOD).encode() + b'\n{"type": "ADD'),
    "a line without a version": (200, b'{"type": "ADDED", "object": {"metadata": {}}}\n'),
    "an error": (200, b'{"type": "ERROR", "object": {"code": 500, "message": "etcd has no leader"}}\n'),
    "events": (200, (json.dumps(GOOD) + "\n").encode() * 3),
    "a list": (200, b'{"metadata": {"resourceVersion": "7"}, "items": [{"metadata": {"name": "a"}}]}'),
    "too many": (429, b'{"kind": "Status", "code": 429}'),
}


class _Server(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        url = urlsplit(self.path)
        name = unquote(url.path).strip("/")
        status, body = ANSWERS.get(name, (200, json.dumps({"token": self.headers.get("Authorization", "")}).encode()))
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blurfleet_operator.session._PAUSE_S", 0.0)


@pytest.fixture
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Server)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def ask(url: str, path: str) -> tuple[int, bytes]:
    async def asked() -> tuple[int, bytes]:
        who = Identity(host=url, token="t", authority=None, certificate=None, key=None, insecure=False)
        async with session(who).aiohttp_session as open_session, open_session.get(url + quote(path, "/?=&")) as answer:
            if "watch=" not in path:
                return answer.status, await answer.read()
            return answer.status, b"".join([part async for part in answer.content.iter_chunked(1 << 20)])

    return asyncio.run(asked())


def events(url: str, name: str) -> list[tuple[str, Any]]:
    status, said = ask(url, f"/{name}?watch=true&resourceVersion=1")
    assert status == 200
    found = [json.loads(line) for line in said.splitlines()]
    return [(e["type"], e["object"].get("code") or e["object"]["metadata"]["resourceVersion"]) for e in found]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gone", [("ERROR", 410)]),
        ("an error", [("ERROR", 410)]),
        ("half a line", [("ADDED", "7")]),
        ("events", [("ADDED", "7")] * 3),
    ],
)
def test_a_watch_brings_its_events_and_of_errors_the_one_that_kopf_lists_again_after(
    url: str, name: str, said: list[tuple[str, Any]]
) -> None:
    assert events(url, name) == said


@pytest.mark.parametrize(
    "name", ["forbidden", "unknown kind", "busy", "a proxy's page", "bytes", "null", "a line without a version"]
)
def test_a_watch_that_brings_anything_else_breaks_off_and_ends_nothing(url: str, name: str) -> None:
    # What no server sends without the end of a line, a stream that is cut sends too.
    ANSWERS["it"] = (ANSWERS[name][0], ANSWERS[name][1].rstrip() + b"\n")
    with pytest.raises(aiohttp.ClientPayloadError, match="/it: "):
        events(url, "it")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("gone", "410: "),
        ("forbidden", "403: not for you"),
        ("unknown kind", "404: no JSON"),
        ("busy", "500: no JSON"),
        ("a proxy's page", "200: no JSON"),
        ("bytes", "200: no JSON"),
        ("null", "200: no list of objects"),
        ("events", "200: no JSON"),
    ],
)
def test_a_listing_that_brings_no_list_breaks_off(url: str, name: str, why: str) -> None:
    with pytest.raises(aiohttp.ClientPayloadError, match=why):
        ask(url, f"/{name}?limit=500&continue=x")


def test_a_list_passes_as_it_is_and_kopf_itself_waits_where_it_is_told_to(url: str) -> None:
    assert ask(url, "/a list?limit=500") == ANSWERS["a list"]
    assert ask(url, "/too many?limit=500") == ANSWERS["too many"]
    assert ask(url, "/too many?watch=true")[0] == 429


@pytest.mark.parametrize("name", ["forbidden", "unknown kind", "gone"])
def test_what_is_neither_listed_nor_watched_is_kopfs_to_judge(url: str, name: str) -> None:
    assert ask(url, f"/{name}") == ANSWERS[name]


def test_anything_else_passes_with_the_account_s_token(url: str) -> None:
    assert ask(url, "/well") == (200, b'{"token": "Bearer t"}')
