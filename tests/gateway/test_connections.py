"""Connections that say nothing, half a thing, or nonsense: answered or closed in time, and in nobody's way."""

import contextlib
import logging
import socket
import time
from collections.abc import Callable
from typing import Any

import cv2
import httpx
import numpy as np
import psutil
import pytest

from blurfleet.deadline import came_true
from blurfleet_preprocess.wire import WireLimits

Rig = Any  # the fixture's class lives in conftest.py
Serve = Callable[..., contextlib.AbstractContextManager[httpx.Client]]
DEADLINE_S = 60.0


def raw(client: httpx.Client, text: bytes = b"") -> socket.socket:
    made = socket.create_connection((client.base_url.host, client.base_url.port or 0), timeout=DEADLINE_S)
    made.sendall(text)
    return made


def said_by(connection: socket.socket) -> bytes:
    """Return everything until the other side closes."""
    said = b""
    with connection, contextlib.suppress(ConnectionResetError):
        while chunk := connection.recv(4096):
            said += chunk
    return said


def dribble(connection: socket.socket) -> tuple[bytes, float]:
    """Send a header's line every now and then; return what comes back and when."""
    began, said = time.monotonic(), b""
    connection.settimeout(0.05)
    with connection, contextlib.suppress(ConnectionError):
        while time.monotonic() - began < DEADLINE_S:
            with contextlib.suppress(TimeoutError):
                chunk = connection.recv(4096)
                if not chunk:
                    break
                said += chunk
            connection.sendall(b"x-more: 1\r\n")
    return said, time.monotonic() - began


def test_a_connection_that_says_nothing_is_closed(rig: Rig, serve: Serve) -> None:
    with serve(rig, wire=WireLimits(header_s=0.2)) as client:
        assert said_by(raw(client)) == b""


def test_a_header_that_never_ends_is_408_though_it_keeps_coming(rig: Rig, serve: Serve) -> None:
    with serve(rig, wire=WireLimits(header_s=0.4)) as client:
        said, took = dribble(raw(client, b"POST /v1/matte HTTP/1.1\r\nhost: localhost\r\n"))
    assert said.startswith(b"HTTP/1.1 408 ")
    assert b'"reason": "RequestTimeout"' in said
    assert 0.3 < took < 20


def test_the_second_header_of_a_connection_must_come_in_time_too(rig: Rig, serve: Serve) -> None:
    with serve(rig, wire=WireLimits(header_s=1.5)) as client:
        connection = raw(client, b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert connection.recv(4096).startswith(b"HTTP/1.1 200 ")
        connection.sendall(b"GET /healthz HTTP/1.1\r\n")
        said, took = dribble(connection)
    assert b"HTTP/1.1 408 " in said
    assert took < 20


def test_a_slow_answer_is_no_slow_header(rig: Rig, serve: Serve, photo: bytes, until: Callable[..., None]) -> None:
    began: list[float] = []

    def slow(_: object) -> Any:
        began.append(time.monotonic())
        until(lambda: time.monotonic() - began[0] > 3.0)
        return rig.matte("subject")[None, None]

    rig.engines.behaviours[rig.primary.engine] = slow
    rig.gateway._timeout_s = 20.0
    with serve(rig, wire=WireLimits(header_s=2.0)) as client:
        assert client.post("/v1/matte", content=photo).status_code == 200


def test_the_rest_of_a_body_that_was_refused_is_not_waited_for(rig: Rig, serve: Serve) -> None:
    with serve(rig, max_body_bytes=1000, wire=WireLimits(linger_s=0.3)) as client:
        connection = raw(client, b"POST /v1/matte HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5000\r\n\r\nabc")
        began = time.monotonic()
        said = said_by(connection)
    assert said.startswith(b"HTTP/1.1 413 ")
    assert 0.2 < time.monotonic() - began < 20


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(60), id="TLS on a plain port"),
        pytest.param(b"hello\r\n\r\n", id="no request line"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="no host"),
        pytest.param(b"GET /\xc3\xa4 HTTP/1.1\r\nhost: localhost\r\n\r\n", id="a path beyond ASCII"),
        pytest.param(
            b"POST /v1/matte HTTP/1.1\r\nhost: localhost\r\ncontent-length: -5\r\n\r\n", id="a negative length"
        ),
        pytest.param(b"POST /v1/matte HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5, 6\r\n\r\n", id="two lengths"),
        pytest.param(b"GET / HTTP/1.1\r\nhost: localhost\r\nx: " + b"y" * 100_000, id="a header of 100 kB"),
        pytest.param(b"GET / HTTP/1.1\r\nhost: localhost\r\n" + b"x: y\r\n" * 20_000, id="20 000 headers"),
        pytest.param(
            b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n",
            id="a path of 100 kB",
        ),
    ],
)
def test_what_is_no_http_is_a_problem(client: httpx.Client, text: bytes, caplog: pytest.LogCaptureFixture) -> None:
    with contextlib.suppress(ConnectionError):
        said = said_by(raw(client, text))
        reason = b"NotFound" if said.startswith(b"HTTP/1.1 404 ") else b"InvalidRequest"
        assert said == b"" or (said.startswith(b"HTTP/1.1 40") and b'"reason": "%s"' % reason in said)
    assert client.get("/healthz").status_code == 200
    assert [r for r in caplog.records if r.levelno >= logging.ERROR] == []


def test_a_broken_chunk_ends_the_request_that_it_belongs_to(
    rig: Rig, client: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    connection = raw(
        client, b"POST /v1/matte HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n5\r\nabcde\r\n"
    )
    connection.sendall(b"zz\r\n")
    said = said_by(connection)
    assert said.startswith(b"HTTP/1.1 400 ")
    assert b'"reason": "InvalidRequest"' in said
    assert came_true(lambda: rig.count("blurfleet_requests_total", status="499") == 1, DEADLINE_S)
    assert [r for r in caplog.records if r.levelno >= logging.ERROR] == []


def test_beyond_the_limit_the_longest_idle_connection_goes(rig: Rig, serve: Serve) -> None:
    with serve(rig, wire=WireLimits(connections=8, header_s=600.0)) as client:
        silent = [raw(client) for _ in range(8)]
        assert client.get("/healthz").status_code == 200
        assert silent[0].recv(10) == b""
        silent[-1].sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert silent[-1].recv(4096).startswith(b"HTTP/1.1 200 ")
        for connection in silent:
            connection.close()


def test_where_every_connection_is_at_work_the_next_is_told_so(rig: Rig, serve: Serve) -> None:
    half = b"POST /v1/matte HTTP/1.1\r\nhost: localhost\r\ncontent-length: 50\r\n\r\nabc"
    with serve(rig, wire=WireLimits(connections=4)) as client:
        working = [raw(client, half) for _ in range(4)]
        said = [b""]

        def refused() -> bool:
            with contextlib.suppress(ConnectionError):
                said[0] = said_by(raw(client, b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"))
            return said[0].startswith(b"HTTP/1.1 503 ")

        assert came_true(refused, DEADLINE_S)
        assert b'"reason": "Overloaded"' in said[0]
        assert b"retry-after: 1\r\n" in said[0]
        for connection in working:
            connection.close()
        assert came_true(lambda: b"200 OK" in said_by(raw(client, GOODBYE)), DEADLINE_S)


def test_an_answer_that_is_not_taken_is_let_go_of(rig: Rig, serve: Serve) -> None:
    noise = np.random.default_rng(1).integers(0, 256, (2400, 2400, 3), dtype=np.uint8)
    body = bytes(cv2.imencode(".jpg", noise, [cv2.IMWRITE_JPEG_QUALITY, 40])[1])
    head = (
        f"POST /v1/blur?format=png&radius=1 HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    )
    wire = WireLimits(unread_s=0.5, min_rate=1e9)
    with serve(rig, max_body_bytes=1 << 23, wire=wire) as client, socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.settimeout(DEADLINE_S)
        slow.connect((client.base_url.host, client.base_url.port or 0))
        slow.sendall(head + body)
        assert slow.recv(100).startswith(b"HTTP/1.1 200 ")

        def let_go() -> bool:
            slow.recv(1)  # a byte now and then keeps TCP itself content
            held = psutil.Process().net_connections("tcp")
            return not any(end.raddr and end.raddr.port == slow.getsockname()[1] for end in held)

        assert came_true(let_go, DEADLINE_S)
        assert client.get("/healthz").status_code == 200


GOODBYE = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"


def test_a_thousand_clients_that_hang_cost_the_others_nothing(rig: Rig, serve: Serve, photo: bytes) -> None:
    half = b"POST /v1/matte HTTP/1.1\r\nhost: localhost\r\ncontent-length: 50000\r\n\r\n" + bytes(1000)
    with serve(rig, body_grace_s=0.5, wire=WireLimits(header_s=0.5, connections=200)) as client:
        hung = list[socket.socket]()
        for n in range(1000):
            hung.append(raw(client, half if n % 2 else b"POST /v1"))
            if n % 50 == 0:
                hung.append(raw(client))
        answered = [0]

        def works() -> bool:
            with contextlib.suppress(httpx.TransportError):
                answered[0] = client.post("/v1/matte", content=photo).status_code
            return answered[0] == 200

        assert came_true(works, DEADLINE_S)
        for connection in hung:
            connection.close()
