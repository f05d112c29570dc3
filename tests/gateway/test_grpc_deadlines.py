"""Deadlines and hang-ups over gRPC: what nobody waits for leaves its slot, and costs no inference."""

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from blurfleet.api.contract import contract_at
from blurfleet.contract import contract_hash
from blurfleet.deadline import came_true
from blurfleet.errors import RequestEnded
from blurfleet.pixels import to_tensor
from blurfleet.reasons import Reason
from blurfleet.serving.life import RequestLife
from blurfleet_preprocess import v2_grpc
from blurfleet_preprocess.exchange import Exchange
from blurfleet_preprocess.grpc_door import GrpcDoor
from blurfleet_preprocess.grpc_places import Slots
from blurfleet_preprocess.problems import Overloaded
from blurfleet_preprocess.readiness import Readiness
from blurfleet_preprocess.streams import Streams
from blurfleet_preprocess.v2_grpc import read_request
from blurfleet_preprocess.work import Workers

Rig = Any  # the fixture's class lives in conftest.py
DEADLINE_S = 20.0


@pytest.fixture
def door(rig: Rig) -> Iterator[GrpcDoor]:
    http = Workers(1, 1)
    exchange = Exchange(
        gateway=rig.gateway, streams=Streams("test.1"), metrics=rig.metrics, workers=http, max_body_bytes=1 << 20
    )
    door = GrpcDoor(exchange, Readiness(rig.gateway, cache_s=60), workers=1, waiting=2)
    yield door
    door.stop(5)
    http.close()


@pytest.fixture
def stub(door: GrpcDoor) -> Iterator[Any]:
    address = f"127.0.0.1:{door.listen('127.0.0.1', 0)}"
    with grpc.insecure_channel(address) as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


@pytest.fixture
def gate(rig: Rig) -> Iterator[threading.Event]:
    """Hold back the primary until the event is set; an engine call ends with its client, as Triton's does."""
    opened = threading.Event()

    def held(_: object) -> Any:
        life, ended = rig.engines.lives[-1], threading.Event()
        with life.ending(ended.set):
            assert came_true(lambda: opened.is_set() or ended.is_set() or life.over(), DEADLINE_S)
        life.check()
        return rig.matte("subject")[None, None]

    rig.engines.behaviours[rig.primary.engine] = held
    yield opened
    opened.set()


def ask(rig: Rig, stub: Any, timeout_s: float | None = None) -> Any:
    spec = contract_at(rig.size)
    tensor = to_tensor(np.random.default_rng(3).integers(0, 256, (rig.size, rig.size, 3), dtype=np.uint8), spec)
    request = service_pb2.ModelInferRequest(model_name="bokeh")
    request.inputs.add(name="image", datatype="FP32", shape=tensor.shape)
    request.raw_input_contents.append(tensor.tobytes())
    metadata = (("x-blurfleet-contract", contract_hash(spec)),)
    return stub.ModelInfer.future(request, timeout=timeout_s, metadata=metadata)


def begun(rig: Rig, count: int) -> bool:
    return came_true(lambda: len(rig.engines.asked) == count, DEADLINE_S)


def holds(door: GrpcDoor, count: int) -> bool:
    """Wait until that many calls run or wait: of calls on their way nobody knows which one comes first."""
    return came_true(lambda: door._slots._held == count, DEADLINE_S)


def test_a_grpc_deadline_is_the_engines_deadline(rig: Rig, stub: Any) -> None:
    rig.gateway._timeout_s = 60.0
    assert ask(rig, stub, 30.0).result().model_name == "bokeh"
    assert 0 < rig.engines.timeouts[-1] <= 30.0


def test_a_call_cancelled_in_the_queue_never_runs_and_frees_its_place(
    rig: Rig, stub: Any, door: GrpcDoor, gate: threading.Event
) -> None:
    running = ask(rig, stub)
    assert begun(rig, 1)
    queued = [ask(rig, stub), ask(rig, stub)]
    assert holds(door, 3)
    error = ask(rig, stub).exception(DEADLINE_S)
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert "[Overloaded]" in error.details()
    for call in queued:
        call.cancel()
    assert holds(door, 1)
    waiting = ask(rig, stub)
    assert holds(door, 2)  # there is room again
    gate.set()
    assert running.result(DEADLINE_S).model_name == "bokeh"
    assert waiting.result(DEADLINE_S).model_name == "bokeh"
    assert len(rig.engines.asked) == 2


def test_a_call_too_late_in_the_queue_frees_its_place(
    rig: Rig, stub: Any, door: GrpcDoor, gate: threading.Event
) -> None:
    running = ask(rig, stub)
    assert begun(rig, 1)
    late = ask(rig, stub, 1.0).exception(DEADLINE_S)
    assert late.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert holds(door, 1)
    gate.set()
    assert running.result(DEADLINE_S).model_name == "bokeh"


def test_a_call_that_hung_up_while_it_was_read_takes_no_place_in_the_queue(
    rig: Rig, stub: Any, door: GrpcDoor, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = ask(rig, stub)
    assert begun(rig, 1)
    reading, read = threading.Event(), threading.Event()

    def held_back(message: Any) -> Any:
        reading.set()
        assert read.wait(DEADLINE_S)
        return read_request(message)

    with monkeypatch.context() as patched:
        patched.setattr(v2_grpc, "read_request", held_back)
        gone = ask(rig, stub)
        assert reading.wait(DEADLINE_S)
    gone.cancel()
    stub.ServerLive(service_pb2.ServerLiveRequest())  # on the same connection: the server knows both by now
    read.set()
    assert came_true(lambda: rig.count("blurfleet_requests_total", status="504") == 1, DEADLINE_S)
    assert holds(door, 1)
    gate.set()
    assert running.result(DEADLINE_S).model_name == "bokeh"
    assert ask(rig, stub).result(DEADLINE_S).model_name == "bokeh"
    assert len(rig.engines.asked) == 2


def test_a_call_cancelled_while_it_runs_ends_its_inference(rig: Rig, stub: Any, gate: threading.Event) -> None:
    running = ask(rig, stub)
    assert begun(rig, 1)
    running.cancel()
    later = ask(rig, stub)
    assert begun(rig, 2)  # the one slot is free, though nobody opened the gate
    gate.set()
    assert later.result(DEADLINE_S).model_name == "bokeh"


def test_slots_are_given_back_however_their_block_ends() -> None:
    slots = Slots(1, 1)
    with contextlib.suppress(ZeroDivisionError), slots.one(RequestLife()):
        raise ZeroDivisionError
    with slots.one(RequestLife()):
        began = time.monotonic()
        with pytest.raises(RequestEnded) as late, slots.one(RequestLife(0.1)):
            pass
        assert (late.value.reason, time.monotonic() - began < DEADLINE_S) == (Reason.DEADLINE_EXCEEDED, True)
        life, found = RequestLife(), list[Reason]()

        def wait() -> None:
            try:
                with slots.one(life):
                    pass
            except RequestEnded as error:
                found.append(error.reason)

        thread = threading.Thread(target=wait)
        thread.start()
        assert came_true(lambda: slots._held == 2, DEADLINE_S)
        with pytest.raises(Overloaded), slots.one(RequestLife()):
            pass
        life.hang_up()
        thread.join(DEADLINE_S)
        assert found == [Reason.CLIENT_GONE]
    assert (slots._held, slots._running) == (0, 0)
