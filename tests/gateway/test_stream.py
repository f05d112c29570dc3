"""Frame streams over a real WebSocket: order, latest frame wins, refusals, endings."""

import contextlib
import hashlib
import io
import json
import socket as socket_module
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cv2
import httpx
import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from blurfleet.api.contract import contract_at
from blurfleet.contract import contract_hash
from blurfleet.errors import RequestEnded
from blurfleet.reasons import Reason
from blurfleet.serving.life import RequestLife
from blurfleet.serving.streaming import (
    SUBPROTOCOL,
    End,
    FrameAnswer,
    FrameRefused,
    Hello,
    Ready,
    Summary,
    said,
    text_of,
    unpacked,
)
from blurfleet_preprocess.access import Access, TokenFile
from blurfleet_preprocess.stream_session import StreamLimits
from blurfleet_preprocess.wire import WireLimits

Rig = Any  # the fixture's class lives in conftest.py
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


def answer(socket: ClientConnection) -> tuple[FrameAnswer, tuple[bytes, ...]]:
    message = socket.recv(timeout=20)
    assert isinstance(message, bytes), message
    return unpacked(message)


def heard(socket: ClientConnection) -> Ready | FrameRefused | Summary:
    message = socket.recv(timeout=20)
    assert isinstance(message, str), message[:200]
    return said(message)


def end_of(socket: ClientConnection) -> tuple[Summary, int, str]:
    """The last message, and the close code and reason that follow it."""
    summary = heard(socket)
    assert isinstance(summary, Summary)
    with pytest.raises(ConnectionClosed) as closed:
        socket.recv(timeout=20)
    assert closed.value.rcvd is not None
    return summary, closed.value.rcvd.code, closed.value.rcvd.reason


@dataclass
class Gate:
    """An engine that answers when it is let."""

    rig: Rig
    asked: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    opened: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.rig.engines.behaviours[self.rig.primary.engine] = self

    def __call__(self, tensor: np.ndarray) -> np.ndarray:
        self.asked.release()
        assert self.opened.wait(20)
        return self.rig.matte("subject")[None, None]

    def wait(self) -> None:
        assert self.asked.acquire(timeout=20)


def arrived(socket: ClientConnection) -> None:
    """Wait until the gateway has read what was sent so far."""
    assert socket.ping().wait(20)


def picture(seed: int = 1, size: tuple[int, int] = (48, 64)) -> bytes:
    rgb = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
    return bytes(cv2.imencode(".png", rgb)[1])


def test_a_frame_is_answered_as_a_request_would_be(rig: Rig, client: httpx.Client, photo: bytes) -> None:
    with greeted(client, Hello(output="both", format="png", options={"radius": "9"})) as socket:
        socket.send(photo)
        header, (matte, blurred) = answer(socket)
        socket.send(text_of(End()))
        summary, code, reason = end_of(socket)
    assert matte == client.post("/v1/matte", content=photo).content
    assert blurred == client.post("/v1/blur?format=png&radius=9", content=photo).content
    assert [(part.output, part.media_type) for part in header.parts] == [("matte", "image/png"), ("blur", "image/png")]
    assert (header.id, header.dropped, header.engine, header.digest) == (
        1,
        None,
        rig.primary.engine,
        rig.primary.digest,
    )
    assert (header.precision, header.role, header.epoch, header.simulated) == ("Mixed", "Primary", 7, True)
    assert header.contract == contract_hash(contract_at(rig.size))
    assert {"decode", "contract", "infer", "composite", "encode"} <= set(header.stages)
    assert (summary.received, summary.answered, summary.refused, summary.dropped) == (1, 1, 0, 0)
    assert (code, reason, summary.problem) == (1000, "", None)
    assert rig.told.samples[0].stream == summary.stream


def test_a_matte_as_npy_is_the_engines_own(rig: Rig, client: httpx.Client, photo: bytes) -> None:
    with greeted(client, Hello(output="matte", format="npy")) as socket:
        socket.send(photo)
        _, (data,) = answer(socket)
    np.testing.assert_array_equal(np.load(io.BytesIO(data)), rig.matte("subject"))


def test_a_newer_frame_takes_the_place_of_the_one_that_waits(rig: Rig, client: httpx.Client, photo: bytes) -> None:
    gate = Gate(rig)
    with greeted(client, Hello()) as socket:
        socket.send(photo)
        gate.wait()
        for _ in range(4):
            socket.send(photo)
        arrived(socket)
        gate.opened.set()
        first, second = answer(socket)[0], answer(socket)[0]
        socket.send(text_of(End()))
        summary, *_ = end_of(socket)
    assert [(first.id, first.dropped), (second.id, second.dropped)] == [(1, None), (5, (2, 4))]
    assert (summary.received, summary.answered, summary.dropped, summary.last_dropped) == (5, 2, 3, None)
    assert [sample.frame_id for sample in rig.told.samples] == [1, 5]
    assert rig.count("blurfleet_stream_frames_total", outcome="dropped") == 3
    assert rig.count("blurfleet_stream_frames_total", outcome="answered") == 2


def test_the_frame_that_waits_at_the_end_is_still_answered(rig: Rig, client: httpx.Client, photo: bytes) -> None:
    gate = Gate(rig)
    with greeted(client, Hello()) as socket:
        socket.send(photo)
        gate.wait()
        socket.send(photo)
        socket.send(text_of(End()))
        arrived(socket)
        gate.opened.set()
        assert [answer(socket)[0].id for _ in range(2)] == [1, 2]
        assert end_of(socket)[1:] == (1000, "")


def test_the_guard_sees_each_streams_frames_in_order(rig: Rig, client: httpx.Client, photo: bytes) -> None:
    with greeted(client, Hello()) as one, greeted(client, Hello()) as other:
        for socket in (one, other, other, one, one):
            socket.send(photo)
            answer(socket)
    seen: dict[str, list[int]] = {}
    for sample in rig.told.samples:
        seen.setdefault(sample.stream, []).append(sample.frame_id)
    assert sorted(seen.values()) == [[1, 2], [1, 2, 3]]


def test_a_picture_that_is_refused_does_not_end_the_stream(rig: Rig, client: httpx.Client, photo: bytes) -> None:
    with greeted(client, Hello()) as socket:
        socket.send(photo[:40])
        refused = heard(socket)
        socket.send(b"")
        empty = heard(socket)
        socket.send(photo)
        assert answer(socket)[0].id == 3
        socket.send(text_of(End()))
        summary, *_ = end_of(socket)
    assert isinstance(refused, FrameRefused)
    assert isinstance(empty, FrameRefused)
    assert (refused.id, refused.problem["reason"], refused.problem["status"]) == (1, "TruncatedImage", 400)
    assert empty.problem["reason"] == "EmptyImage"
    assert (summary.answered, summary.refused) == (1, 2)


def test_no_answer_from_the_engines_refuses_the_frame(rig: Rig, client: httpx.Client, photo: bytes) -> None:
    rig.engines_behave("missing", "missing")
    with greeted(client, Hello()) as socket:
        socket.send(photo)
        refused = heard(socket)
    assert isinstance(refused, FrameRefused)
    assert (refused.problem["status"], refused.problem["reason"]) == (503, "TritonUnreachable")


def test_a_swap_in_mid_stream_changes_who_answers_and_nothing_else(
    rig: Rig, client: httpx.Client, photo: bytes
) -> None:
    with greeted(client, Hello(output="matte", format="npy", smoothing=0.9)) as socket:
        socket.send(photo)
        before, _ = answer(socket)
        rig.route(serving="Fallback", epoch=8)
        socket.send(photo)
        after, (data,) = answer(socket)
    assert (before.engine, before.role, before.epoch) == (rig.primary.engine, "Primary", 7)
    assert (after.engine, after.role, after.epoch) == (rig.fallback.engine, "Fallback", 8)
    np.testing.assert_array_equal(np.load(io.BytesIO(data)), rig.matte("shifted"))  # nothing of the old engine's in it


def test_evidence_and_trace_hold_for_every_frame(rig: Rig, client: httpx.Client, photo: bytes) -> None:
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    with greeted(client, Hello(evidence=False, traceparent=f"00-{trace}-00f067aa0ba902b7-01")) as socket:
        for _ in range(2):
            socket.send(photo)
            assert answer(socket)[0].trace == trace
    assert [(sample.evidence_allowed, sample.trace_id) for sample in rig.told.samples] == [(False, trace)] * 2


@pytest.mark.parametrize("words", [["off"], ["yes", "no"], ["no", "yes"]], ids=str)
def test_a_refusal_in_the_upgrades_headers_holds_whatever_the_hello_says(
    rig: Rig, client: httpx.Client, photo: bytes, words: list[str]
) -> None:
    headers = [("x-blurfleet-evidence", word) for word in words]
    with opened(client, Hello(evidence=True), additional_headers=headers) as socket:
        socket.recv(timeout=20)
        socket.send(photo)
        answer(socket)
    assert [sample.evidence_allowed for sample in rig.told.samples] == [False]


@pytest.mark.parametrize(
    ("hello", "reason", "where"),
    [
        ("{", "InvalidRequest", "stream"),
        ('{"smoothing": 1.5}', "InvalidRequest", "stream"),
        ('{"smoothing": NaN}', "InvalidRequest", "stream"),
        ('{"colour": "red"}', "InvalidRequest", "stream"),
        ('{"kind": "end"}', "InvalidRequest", "stream"),
        ('{"options": {"radius": "0"}}', "InvalidRequest", "radius"),
        ('{"options": {"frobnicate": "1"}}', "InvalidRequest", "query"),
        ('{"options": {"background": "transparent"}, "format": "jpeg"}', "InvalidRequest", "format"),
        ('{"format": "npy"}', "InvalidRequest", "format"),
        ('{"evidence": false, "evidence": true}', "InvalidRequest", "stream"),
        ('{"kind": "hello", "options": {"radius": "5", "radius": "9"}}', "InvalidRequest", "stream"),
        ('{"kind": %s, "kind": "hello"}' % ("[" * 8000 + "]" * 8000), "InvalidRequest", "stream"),
        ('{"alias": "portrait"}', "NotFound", "alias"),
        ('{"options": {"a": "%s"}}' % ("x" * 20000), "InvalidRequest", "stream"),
    ],
)
def test_a_hello_that_is_wrong_closes_the_stream_and_says_why(
    client: httpx.Client, hello: str, reason: str, where: str
) -> None:
    with opened(client, hello) as socket:
        summary, code, said_reason = end_of(socket)
    assert (code, said_reason) == (1008, reason)
    assert summary.problem is not None
    assert (summary.problem["reason"], summary.problem["where"]) == (reason, where)
    assert 400 <= summary.problem["status"] < 500


def test_a_frame_before_the_hello_closes_the_stream(client: httpx.Client, photo: bytes) -> None:
    url = f"ws://{client.base_url.host}:{client.base_url.port}/v1/stream"
    with connect(url, proxy=None, compression=None) as socket:
        socket.send(photo)
        assert end_of(socket)[1:] == (1008, "InvalidRequest")


def test_a_second_hello_closes_the_stream(client: httpx.Client) -> None:
    with greeted(client, Hello()) as socket:
        socket.send(text_of(Hello()))
        summary, code, _ = end_of(socket)
    assert code == 1008
    assert summary.problem is not None
    assert summary.problem["detail"] == "a stream has one hello"


def test_a_stream_without_frames_is_closed(rig: Rig, serve: Serve) -> None:
    with serve(rig, streams=StreamLimits(idle_s=1.0)) as client, greeted(client, Hello()) as socket:
        summary, code, reason = end_of(socket)
    assert (code, reason) == (4408, "IdleTimeout")
    assert summary.problem is not None
    assert summary.problem["detail"] == "no frame for 1 s"


def test_a_client_that_waits_for_a_slow_engine_is_not_idle(
    rig: Rig, serve: Serve, photo: bytes, until: Callable[..., None]
) -> None:
    gate, began = Gate(rig), time.monotonic()
    with serve(rig, streams=StreamLimits(idle_s=1.0)) as client, greeted(client, Hello()) as socket:
        socket.send(photo)
        gate.wait()
        until(lambda: time.monotonic() - began > 2.0)
        gate.opened.set()
        assert answer(socket)[0].id == 1


def test_a_stream_is_held_to_no_requests_time(rig: Rig, serve: Serve, photo: bytes, until: Callable[..., None]) -> None:
    began = time.monotonic()
    with serve(rig, wire=WireLimits(header_s=1.0)) as client, greeted(client, Hello()) as socket:
        until(lambda: time.monotonic() - began > 2.0)
        socket.send(photo)
        assert answer(socket)[0].id == 1


def test_a_gateway_that_stops_says_so(rig: Rig, serve: Serve, photo: bytes) -> None:
    with contextlib.ExitStack() as around:
        served = contextlib.ExitStack()
        client = served.enter_context(serve(rig))
        socket = around.enter_context(greeted(client, Hello()))
        socket.send(photo)
        answer(socket)
        served.close()
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(timeout=20)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1012


def test_one_stream_too_many_is_told_to_come_later(rig: Rig, serve: Serve) -> None:
    with serve(rig, streams=StreamLimits(at_once=1)) as client, greeted(client, Hello()):
        assert rig.count("blurfleet_streams_open") == 1
        url = f"ws://{client.base_url.host}:{client.base_url.port}/v1/stream"
        with connect(url, proxy=None, compression=None) as second:
            summary, code, reason = end_of(second)
    assert (code, reason) == (1013, "Overloaded")
    assert summary.problem is not None
    assert summary.problem["status"] == 503


def test_a_frame_beyond_the_limit_is_refused(rig: Rig, serve: Serve, photo: bytes) -> None:
    with serve(rig, streams=StreamLimits(max_frame_bytes=len(photo))) as client, greeted(client, Hello()) as socket:
        socket.send(photo + b"0")
        refused = heard(socket)
        socket.send(photo)
        assert answer(socket)[0].id == 2
    assert isinstance(refused, FrameRefused)
    assert (refused.problem["status"], refused.problem["reason"]) == (413, "RequestTooLarge")


def test_pages_of_other_sites_open_no_stream(client: httpx.Client) -> None:
    own = f"http://{client.base_url.host}:{client.base_url.port}"
    with opened(client, Hello(), origin=own) as socket:
        assert isinstance(heard(socket), Ready)
    for other in ("https://example.org", "null", f"http://{client.base_url.host}"):
        with pytest.raises(InvalidStatus) as refused, opened(client, Hello(), origin=other):
            pass
        assert refused.value.response.status_code == 403
        assert json.loads(refused.value.response.body)["reason"] == "Forbidden"


def test_sockets_without_a_hello_take_half_of_the_places_and_no_more(rig: Rig, serve: Serve, tmp_path: Path) -> None:
    names = {"a": "one", "b": "two"}
    tokens = tmp_path / "tokens"
    hashes = {name: hashlib.sha256(token.encode()).hexdigest() for name, token in names.items()}
    tokens.write_text("".join(f"{name}: {hashed}\n" for name, hashed in hashes.items()))
    with (
        serve(rig, streams=StreamLimits(at_once=4), access=Access(TokenFile(tokens))) as client,
        contextlib.ExitStack() as stack,
    ):
        url = f"ws://{client.base_url.host}:{client.base_url.port}/v1/stream"

        def socket_of(name: str) -> ClientConnection:
            said = {"authorization": f"Bearer {names[name]}"}
            return stack.enter_context(connect(url, proxy=None, additional_headers=said))

        for _ in range(2):
            arrived(socket_of("a"))
        summary, code, reason = end_of(socket_of("a"))
        assert (code, reason) == (1013, "Overloaded")
        assert summary.problem is not None
        assert summary.problem["detail"] == "2 streams of this client are open"
        other = socket_of("b")
        other.send(text_of(Hello()))
        assert isinstance(heard(other), Ready)


def test_sockets_keep_no_request_out_and_one_address_has_half_of_them(rig: Rig, serve: Serve) -> None:
    with serve(rig, wire=WireLimits(connections=4, sockets=12)) as client, contextlib.ExitStack() as stack:
        url = f"ws://{client.base_url.host}:{client.base_url.port}/v1/stream"
        for _ in range(6):
            arrived(stack.enter_context(connect(url, proxy=None)))
        with pytest.raises(InvalidStatus) as refused, connect(url, proxy=None):
            pass
        assert refused.value.response.status_code == 503
        assert json.loads(refused.value.response.body)["reason"] == "Overloaded"
        assert client.get("/healthz").status_code == 200


@pytest.mark.parametrize(
    ("headers", "wrong"),
    [
        ({"sec-websocket-key": "short"}, "Sec-WebSocket-Key is not 16 bytes in base64"),
        ({"sec-websocket-key": "*"}, "Sec-WebSocket-Key is not 16 bytes in base64"),
        ({"sec-websocket-version": "8"}, "Sec-WebSocket-Version is not 13"),
    ],
    ids=str,
)
def test_a_wrong_handshake_is_a_problem(client: httpx.Client, headers: dict[str, str], wrong: str) -> None:
    right = {
        "connection": "upgrade", "upgrade": "websocket", "sec-websocket-version": "13",
        "sec-websocket-key": "AAAAAAAAAAAAAAAAAAAAAA==",
    }  # fmt: skip
    answered = client.get("/v1/stream", headers=right | headers)
    assert (answered.status_code, answered.headers["content-type"]) == (400, "application/problem+json")
    assert (answered.json()["reason"], answered.json()["detail"]) == ("InvalidRequest", wrong)


def test_a_websocket_elsewhere_is_a_problem(client: httpx.Client) -> None:
    url = f"ws://{client.base_url.host}:{client.base_url.port}/v1/blur"
    with pytest.raises(InvalidStatus) as refused, connect(url, proxy=None):
        pass
    assert refused.value.response.status_code == 404
    assert json.loads(refused.value.response.body)["reason"] == "NotFound"


def test_a_client_that_hangs_up_ends_the_inference_that_was_started_for_it(
    rig: Rig, client: httpx.Client, photo: bytes, until: Callable[..., None]
) -> None:
    gate = Gate(rig)
    with greeted(client, Hello()) as socket:
        socket.send(photo)
        gate.wait()
        life = rig.engines.lives[0]
        assert life is not None
        life.check()
    try:
        until(lambda: _gone(life), what="the hang-up")
    finally:
        gate.opened.set()
    until(lambda: rig.count("blurfleet_streams_open") == 0)


def _gone(life: RequestLife) -> bool:
    try:
        life.check()
    except RequestEnded as ended:
        return ended.reason is Reason.CLIENT_GONE
    return False


def test_a_client_that_reads_no_answers_is_given_up(rig: Rig, serve: Serve, until: Callable[..., None]) -> None:
    large = picture(3, (700, 900))  # noise: each answer has two megabytes
    with serve(rig, streams=StreamLimits(send_s=0.3)) as client:
        url = f"ws://{client.base_url.host}:{client.base_url.port}/v1/stream"
        with socket_module.create_connection((client.base_url.host, client.base_url.port)) as plain:
            plain.setsockopt(socket_module.SOL_SOCKET, socket_module.SO_RCVBUF, 4096)
            with connect(
                url, sock=plain, compression=None, max_queue=1, close_timeout=0.1, ping_interval=None
            ) as socket:
                socket.send(text_of(Hello(format="png")))

                def given_up() -> bool:
                    with contextlib.suppress(ConnectionClosed):
                        socket.send(large)
                    answered = rig.count("blurfleet_stream_frames_total", outcome="answered")
                    return answered > 0 and rig.count("blurfleet_streams_open") == 0

                until(given_up, 60, "the end of the stream")
        assert rig.count("blurfleet_stream_frames_total", outcome="answered") < 10
        assert client.get("/healthz").status_code == 200


def test_smoothing_lessens_the_flicker_of_a_noisy_engine_and_both_are_reported(
    rig: Rig, client: httpx.Client, photo: bytes
) -> None:
    noise = np.random.default_rng(5)

    def noisy(tensor: np.ndarray) -> np.ndarray:
        matte = 0.1 + 0.8 * rig.matte("subject")[None, None]
        return (matte + noise.uniform(-0.1, 0.1, matte.shape)).astype(np.float32)

    rig.engines.behaviours[rig.primary.engine] = noisy
    summaries = []
    for smoothing in (0.0, 0.8):
        with greeted(client, Hello(output="matte", format="npy", smoothing=smoothing)) as socket:
            for _ in range(12):
                socket.send(photo)
                answer(socket)
            socket.send(text_of(End()))
            summaries.append(end_of(socket)[0])
    plain, smooth = summaries
    # Two uniform values of a width 0.2 differ by a third of it on average.
    assert plain.flicker == plain.engine_flicker == pytest.approx(0.2 / 3, rel=0.05)
    assert smooth.engine_flicker == pytest.approx(0.2 / 3, rel=0.05)
    assert smooth.flicker is not None
    assert smooth.flicker < 0.35 * 0.2 / 3
    assert rig.count("blurfleet_stream_flicker_count", matte="sent") == 22
    assert rig.count("blurfleet_stream_flicker_sum", matte="engine") == pytest.approx(22 * 0.2 / 3, rel=0.05)
