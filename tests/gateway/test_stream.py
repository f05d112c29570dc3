"""Frame streams over a real WebSocket: order, latest frame wins, refusals, endings."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import httpx
from websockets.sync.client import ClientConnection, connect

from blurfleet.serving.streaming import SUBPROTOCOL, Hello, Ready, Summary, said, text_of, unpacked

Rig = Any
Serve = Callable[..., contextlib.AbstractContextManager[httpx.Client]]


@contextlib.contextmanager
def opened(client: httpx.Client, hello: Hello | str, **more: Any) -> Iterator[ClientConnection]:
    url = f"ws://{client.base_url.host}:{client.base_url.port}/v1/stream"
    with connect(url, proxy=None, compression=None, subprotocols=[SUBPROTOCOL], **more) as socket:
        socket.send(hello if isinstance(hello, str) else text_of(hello))
        yield socket


@contextlib.contextmanager
def greeted(client: httpx.Client, hello: Hello) -> Iterator[ClientConnection]:
    with opened(client, hello) as socket:
        assert isinstance(said(str(socket.recv(timeout=20))), Ready)
        yield socket


def test_a_frame_is_answered_as_a_request_would_be(rig: Rig, client: httpx.Client, photo: bytes) -> None:
    with greeted(client, Hello(output="both", format="png", options={"radius": "9"})) as socket:
        socket.send(photo)
        header, (matte, blurred) = unpacked(bytes(socket.recv(timeout=20)))
        socket.send('{"kind":"end"}')
        summary = said(str(socket.recv(timeout=20)))
    assert matte == client.post("/v1/matte", content=photo).content
    assert blurred == client.post("/v1/blur?format=png&radius=9", content=photo).content
    assert (header.id, header.dropped, header.engine) == (1, None, rig.primary.engine)
    assert (header.precision, header.role, header.epoch, header.simulated) == ("Mixed", "Primary", 7, True)
    assert isinstance(summary, Summary)
    assert (summary.received, summary.answered, summary.refused, summary.dropped) == (1, 1, 0, 0)
    assert rig.told.samples[0].stream == summary.stream
