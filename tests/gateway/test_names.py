"""Pages of other sites: kept from a gateway on their reader's machine, whatever their names resolve to."""

import contextlib
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from starlette.datastructures import Headers

from blurfleet.errors import InvalidInput
from blurfleet_preprocess.names import Names

Rig = Any  # the fixture's class lives in conftest.py
Serve = Callable[..., contextlib.AbstractContextManager[httpx.Client]]
SHARED = "/v2/systemsharedmemory/unregister"


def refused(names: Names, method: str, headers: dict[str, str]) -> str:
    """Return what is wrong, empty where nothing is."""
    try:
        names.check(Headers(headers), method)
    except InvalidInput as error:
        return error.where if error.reason == "Forbidden" else error.reason
    return ""


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:8090", "127.0.0.1", "127.0.0.1:1", "[::1]:8090", "door.example"]
)
def test_a_gateways_own_names(host: str) -> None:
    names = Names(more=frozenset({"door.example"}))
    assert [refused(names, method, {"host": host}) for method in ("GET", "POST", "WEBSOCKET")] == ["", "", ""]


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "10.0.0.1", "", "[::1", "127.0.0.1.evil:80"]
)
def test_foreign_names_on_loopback(host: str) -> None:
    assert [refused(Names(), method, {"host": host}) for method in ("GET", "POST", "WEBSOCKET")] == ["host"] * 3
    assert refused(Names(loopback=False), "POST", {"host": host}) == ""


@pytest.mark.parametrize(
    ("headers", "wrong"),
    [
        ({}, ""),
        ({"origin": "http://localhost:8090"}, ""),
        ({"origin": "http://localhost:8090", "sec-fetch-site": "same-origin"}, ""),
        ({"sec-fetch-site": "none"}, ""),
        ({"origin": "https://door.example"}, ""),
        ({"origin": "http://localhost"}, "origin"),
        ({"origin": "http://localhost:3000", "sec-fetch-site": "same-site"}, "origin"),
        ({"origin": "https://evil.example"}, "origin"),
        ({"origin": "null"}, "origin"),
        ({"origin": "http://[::1"}, "origin"),
        ({"sec-fetch-site": "cross-site"}, "sec-fetch-site"),
        ({"sec-fetch-site": "same-site"}, "sec-fetch-site"),
    ],
    ids=str,
)
@pytest.mark.parametrize("loopback", [True, False])
def test_pages_of_other_origins_neither_post_nor_open_streams(
    headers: dict[str, str], wrong: str, loopback: bool
) -> None:
    names = Names(loopback=loopback, more=frozenset({"door.example"}))
    said = {"host": "localhost:8090", **headers}
    assert [refused(names, method, said) for method in ("POST", "WEBSOCKET", "GET")] == [wrong, wrong, ""]


def test_a_request_of_a_foreign_page_is_a_problem_and_reaches_nothing(
    rig: Rig, client: httpx.Client, photo: bytes
) -> None:
    for path in ("/v1/blur", "/v1/matte", SHARED):
        for headers in ({"host": "evil.example"}, {"content-type": "text/plain", "sec-fetch-site": "cross-site"}):
            answer = client.post(path, content=photo, headers=headers)
            assert (path, answer.status_code, answer.json()["reason"]) == (path, 403, "Forbidden")
    assert client.get("/", headers={"host": "evil.example"}).status_code == 403
    assert rig.engines.asked == []
    own = {"origin": str(client.base_url).rstrip("/"), "sec-fetch-site": "same-origin"}
    assert client.post("/v1/matte", content=photo, headers=own).status_code == 200
