"""Time and clients: deadlines, slow bodies, hang-ups; what nobody waits for is not worked on."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import pytest

from blurfleet.deadline import came_true
from blurfleet.errors import InvalidInput, RequestEnded
from blurfleet.reasons import Reason
from blurfleet.serving.life import RequestLife
from blurfleet_preprocess.deadlines import HEADER, life_of

Rig = Any  # the fixture's class lives in conftest.py
Serve = Callable[..., contextlib.AbstractContextManager[httpx.Client]]
DEADLINE_S = 20.0


class Gate:
    """An engine that answers when it is let, or as soon as whoever asked is gone."""

    def __init__(self, rig: Rig) -> None:
        self.entered = threading.Semaphore(0)
        self.open = threading.Event()
        self.ended = threading.Semaphore(0)
        self._matte = rig.matte("subject")[None, None]
        self._lives = rig.engines.lives
        rig.engines.behaviours[rig.primary.engine] = self

    def __call__(self, _: object) -> Any:
        life = self._lives[-1]
        self.entered.release()
        with life.ending(self.open.set):
            assert self.open.wait(DEADLINE_S)
        life.check()
        self.ended.release()
        return self._matte


def raw(client: httpx.Client, text: bytes) -> socket.socket:
    made = socket.create_connection((client.base_url.host, client.base_url.port or 0), timeout=DEADLINE_S)
    made.sendall(text)
    return made


def post(body: bytes, *, declared: int | None = None, more: str = "") -> bytes:
    length = len(body) if declared is None else declared
    return f"POST /v1/matte HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n{more}\r\n".encode() + body


def test_the_shortest_of_the_three_limits_counts() -> None:
    for headers, transport, wanted in (
        ({}, None, 30.0),
        ({HEADER: "1500"}, None, 1.5),
        ({HEADER: "1500"}, 0.5, 0.5),
        ({HEADER: "999999999"}, None, 30.0),
        ({}, -3.0, 0.0),
    ):
        left = life_of(headers, transport_s=transport).left_s()
        assert left == pytest.approx(wanted, abs=0.1)


@pytest.mark.parametrize("said", ["0", "-5", "1.5", "1e3", "ten", "1" * 12, "٣", "nan"])
def test_a_deadline_that_is_none_is_refused(said: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        life_of({HEADER: said})
    assert (refused.value.reason, refused.value.where) == (Reason.INVALID_REQUEST, HEADER)


def test_a_life_ends_by_its_clock_and_tells_what_was_started() -> None:
    now, ended = [10.0], list[str]()
    life = RequestLife(2.0, clock=lambda: now[0])
    assert (life.left_s(), life.within(5.0), life.within(1.0)) == (2.0, 2.0, 1.0)
    with life.ending(lambda: ended.append("first")):
        life.hang_up()
    with life.ending(lambda: ended.append("late")):
        pass
    assert ended == ["first", "late"]
    with pytest.raises(RequestEnded) as gone:
        life.check()
    assert gone.value.reason is Reason.CLIENT_GONE
    now[0] = 12.5
    with pytest.raises(RequestEnded) as late:
        RequestLife(0.0).check()
    assert (late.value.reason, life.left_s()) == (Reason.DEADLINE_EXCEEDED, 0.0)


def test_what_is_over_is_not_ended_again() -> None:
    life, ended = RequestLife(), list[str]()
    with life.ending(lambda: ended.append("over")):
        pass
    life.hang_up()
    assert ended == []


def test_a_life_is_shortened_from_its_beginning_and_never_lengthened() -> None:
    now = [10.0]
    life = RequestLife(5.0, clock=lambda: now[0])
    now[0] = 11.0
    life.shorten(3.0)
    assert life.left_s() == 2.0
    life.shorten(4.0)
    assert life.left_s() == 2.0
    endless = RequestLife(clock=lambda: now[0])
    endless.shorten(0.5)
    assert endless.left_s() == 0.5


def test_an_engine_is_given_no_more_than_the_client_has(rig: Rig, client: httpx.Client, photo: bytes) -> None:
    assert client.post("/v1/matte", content=photo, headers={HEADER: "400"}).status_code == 200
    assert 0 < rig.engines.timeouts[-1] <= 0.4
    assert client.post("/v1/matte", content=photo).status_code == 200
    assert rig.engines.timeouts[-1] == 1.0


def test_a_deadline_that_passes_is_answered_504_then_and_not_when_the_work_ends(
    rig: Rig, client: httpx.Client, photo: bytes
) -> None:
    gate = Gate(rig)
    began = time.monotonic()
    response = client.post("/v1/matte", content=photo, headers={HEADER: "300"})
    took = time.monotonic() - began
    gate.open.set()
    assert (response.status_code, response.json()["reason"]) == (504, "DeadlineExceeded")
    assert 0.3 <= took < DEADLINE_S
    assert client.get("/healthz").status_code == 200


def test_a_deadline_that_passes_in_the_queue_costs_no_inference(rig: Rig, serve: Serve, photo: bytes) -> None:
    gate = Gate(rig)
    with serve(rig, workers=1, waiting=4) as client, ThreadPoolExecutor(1) as pool:
        held = pool.submit(client.post, "/v1/matte", content=photo)
        assert gate.entered.acquire(timeout=DEADLINE_S)
        late = client.post("/v1/matte", content=photo, headers={HEADER: "200"})
        assert (late.status_code, late.json()["reason"]) == (504, "DeadlineExceeded")
        gate.open.set()
        assert held.result(DEADLINE_S).status_code == 200
        assert client.post("/v1/matte", content=photo).status_code == 200
    assert len(rig.engines.asked) == 2


def test_a_client_that_hangs_up_ends_its_inference_and_frees_its_slot(rig: Rig, serve: Serve, photo: bytes) -> None:
    gate = Gate(rig)
    with serve(rig, workers=1, waiting=0) as client:
        gone = raw(client, post(photo))
        assert gate.entered.acquire(timeout=DEADLINE_S)
        gone.close()
        assert came_true(lambda: gate.open.is_set(), DEADLINE_S)  # by the hang-up, nobody else opens it
        assert came_true(lambda: client.post("/v1/matte", content=photo).status_code == 200, DEADLINE_S)
        assert rig.count("blurfleet_requests_total", status="499") == 1
    assert not rig.told.samples or len(rig.told.samples) == 1


def test_what_hung_up_in_the_queue_never_runs(rig: Rig, serve: Serve, photo: bytes) -> None:
    gate = Gate(rig)
    with serve(rig, workers=1, waiting=3) as client, ThreadPoolExecutor(1) as pool:
        held = pool.submit(client.post, "/v1/matte", content=photo)
        assert gate.entered.acquire(timeout=DEADLINE_S)
        for connection in [raw(client, post(photo)) for _ in range(3)]:
            connection.close()
        assert came_true(lambda: rig.count("blurfleet_requests_total", status="499") == 3, DEADLINE_S)
        late = client.post("/v1/matte", content=photo, headers={HEADER: "100"})
        assert late.json()["reason"] == "DeadlineExceeded", "there is room in the queue again"
        gate.open.set()
        assert held.result(DEADLINE_S).status_code == 200
    assert len(rig.engines.asked) == 1


def answer_of(connection: socket.socket) -> bytes:
    said = b""
    with contextlib.suppress(ConnectionResetError):
        while chunk := connection.recv(4096):
            said += chunk
    return said


def test_a_body_that_stops_is_408(rig: Rig, serve: Serve, photo: bytes) -> None:
    with serve(rig, body_grace_s=0.3) as client:
        connection = raw(client, post(photo[:20], declared=5000, more="connection: close\r\n"))
        said = answer_of(connection)
        assert said.startswith(b"HTTP/1.1 408 ")
        assert b'"reason": "RequestTimeout"' in said
        assert b"20 bytes of the body arrived" in said
        connection.close()
    assert rig.engines.asked == []


def test_a_body_that_dribbles_is_408_though_it_never_stops(rig: Rig, serve: Serve) -> None:
    with serve(rig, body_grace_s=0.5) as client:
        connection = raw(client, post(b"", declared=5000, more="connection: close\r\n"))
        connection.settimeout(0.02)
        said, began = b"", time.monotonic()
        while not said and time.monotonic() - began < DEADLINE_S:
            connection.sendall(b"x")
            with contextlib.suppress(TimeoutError):
                said = connection.recv(4096)
        assert said.startswith(b"HTTP/1.1 408 ")
        assert time.monotonic() - began < DEADLINE_S
        connection.close()


def test_bodies_together_are_bounded_and_given_back(rig: Rig, serve: Serve) -> None:
    with serve(rig, held_body_bytes=100_000) as client:
        stuck = [raw(client, post(bytes(45_000), declared=50_000)) for _ in range(2)]
        refused = [httpx.Response(200)]

        def full() -> bool:
            refused[0] = client.post("/v1/matte", content=bytes(20_000))
            return refused[0].status_code == 503

        assert came_true(full, DEADLINE_S)
        assert (refused[0].json()["reason"], refused[0].headers["retry-after"]) == ("Overloaded", "1")
        for connection in stuck:
            connection.close()
        assert came_true(lambda: client.post("/v1/matte", content=bytes(20_000)).status_code == 415, DEADLINE_S)


def test_probes_answer_while_every_worker_is_busy(rig: Rig, serve: Serve, photo: bytes) -> None:
    gate = Gate(rig)
    with serve(rig, workers=1, waiting=0) as client, ThreadPoolExecutor(1) as pool:
        held = pool.submit(client.post, "/v1/matte", content=photo)
        assert gate.entered.acquire(timeout=DEADLINE_S)
        assert client.get("/readyz").json()["ready"] is True
        assert client.get("/v2/health/ready").status_code == 200
        gate.open.set()
        assert held.result(DEADLINE_S).status_code == 200


def test_a_fleet_that_keeps_no_pictures_keeps_none_whatever_a_client_says(rig: Rig, serve: Serve, photo: bytes) -> None:
    with serve(rig, evidence=False) as client:
        client.post("/v1/matte", content=photo, headers={"x-blurfleet-evidence": "yes"})
    assert [sample.evidence_allowed for sample in rig.told.samples] == [False]
    assert np.isfinite(rig.told.samples[0].matte).all()
