"""Connections over TLS are bounded from their first byte on: in number, and in the time for a handshake."""

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from blurfleet.deadline import came_true
from blurfleet_preprocess.server import Server, Stop, config_of
from blurfleet_preprocess.tls import Certificate
from blurfleet_preprocess.wire import WireLimits

DEADLINE_S = 60.0
Address = tuple[str, int]


async def scheme(scope: Any, receive: Any, send: Any) -> None:
    """Answer with the request's scheme and body."""
    if scope["type"] == "lifespan":
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})
        return
    body = (await receive())["body"]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": scope["scheme"].encode() + b" " + body})


@contextlib.contextmanager
def served(certificate: tuple[Path, Path], limits: WireLimits) -> Iterator[tuple[Address, Server]]:
    server = Server(config_of(scheme, limits, Certificate(*certificate).for_http()), Stop(), 0)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            yield listener.getsockname(), server
        finally:
            server.should_exit = True
            thread.join(DEADLINE_S)
    assert not thread.is_alive()


def asked(address: Address, certificate: tuple[Path, Path], **more: Any) -> str:
    trusted = ssl.create_default_context(cafile=str(certificate[0]))
    with httpx.Client(verify=trusted, trust_env=False, timeout=DEADLINE_S) as client:
        return client.post(f"https://{address[0]}:{address[1]}/", **more).text


def test_a_request_over_tls_is_answered(certificate: tuple[Path, Path]) -> None:
    with served(certificate, WireLimits()) as (address, server):
        assert asked(address, certificate, content=b"picture") == "https picture"
        assert came_true(lambda: not server.server_state.connections, DEADLINE_S)


@pytest.mark.parametrize(
    "said", [b"", b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/1.1\r\n\r\n"], ids=["", "half", "plain"]
)
def test_a_handshake_that_does_not_end_is_cut_off_in_the_time_of_a_header(
    certificate: tuple[Path, Path], said: bytes
) -> None:
    with served(certificate, WireLimits(header_s=0.3)) as (address, server):
        began = time.monotonic()
        with socket.create_connection(address, DEADLINE_S) as silent:
            silent.sendall(said)
            with contextlib.suppress(ConnectionError):
                while silent.recv(100):
                    pass
        assert time.monotonic() - began < 20
        assert came_true(lambda: not server.server_state.connections, DEADLINE_S)


def test_connections_without_a_handshake_are_counted_and_go_first(certificate: tuple[Path, Path]) -> None:
    with served(certificate, WireLimits(connections=4)) as (address, server), contextlib.ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection(address, DEADLINE_S)) for _ in range(12)]
        assert came_true(lambda: len(server.server_state.connections) == 4, DEADLINE_S)
        for gone in silent[:8]:
            with contextlib.suppress(ConnectionError):
                assert gone.recv(1) == b""
        assert asked(address, certificate, content=b"in time") == "https in time"


def test_a_stop_does_not_wait_for_handshakes(certificate: tuple[Path, Path]) -> None:
    with contextlib.ExitStack() as stack:
        address, server = stack.enter_context(served(certificate, WireLimits()))
        silent = stack.enter_context(socket.create_connection(address, DEADLINE_S))
        assert came_true(lambda: len(server.server_state.connections) == 1, DEADLINE_S)
        server.should_exit = True
        with contextlib.suppress(ConnectionError):
            assert silent.recv(1) == b""
