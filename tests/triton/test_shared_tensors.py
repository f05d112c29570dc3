"""Tensors through memory shared with the real Triton: the same answers, and nothing left behind by anybody's death."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from blurfleet.errors import EngineError, RequestEnded
from blurfleet.serving.life import RequestLife
from blurfleet.serving.sharedtensors import RETIRED_S, SharedSettings, SharedTensors
from blurfleet.serving.triton import TritonClient, channel_to
from blurfleet_agent.tritonenv import TritonEnvironment
from blurfleet_cli.swap_bench import SwapBench


@pytest.fixture
def settings(tmp_path: Path) -> SharedSettings:
    return SharedSettings(owner=str(tmp_path), regions=3)


@pytest.fixture
def client(triton: SwapBench, settings: SharedSettings) -> Iterator[TritonClient]:
    with TritonClient(triton.server.grpc_address, shared=settings) as made:
        yield made


@pytest.fixture
def stub(triton: SwapBench) -> Iterator[Any]:
    with channel_to(triton.server.grpc_address) as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


def regions(stub: Any, settings: SharedSettings) -> list[str]:
    status = stub.SystemSharedMemoryStatus(service_pb2.SystemSharedMemoryStatusRequest())
    return sorted(name for name in status.regions if name.startswith(settings.prefix))


class Unknown(grpc.RpcError):
    """What Triton says of a region that it does not know."""

    def details(self) -> str:
        return "Unable to find shared memory region: 'x'"

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.INVALID_ARGUMENT


def image(triton: SwapBench, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).random((1, 3, triton.size, triton.size), dtype=np.float32)


def check(triton: SwapBench, client: TritonClient, seed: int) -> None:
    sent, engine = image(triton, seed), triton.engines[seed % 2]
    answer = client.infer(engine.name, sent, timeout_s=10.0)
    np.testing.assert_array_equal(answer.matte, sent[:, :1] * np.float32(engine.scale))


def test_answers_are_those_that_bytes_bring_and_no_file_is_left_while_it_runs(
    triton: SwapBench,
    client: TritonClient,
    settings: SharedSettings,
    stub: Any,
    shared_memory_of: Callable[[str], list[str]],
) -> None:
    for seed in range(6):
        check(triton, client, seed)
    assert len(regions(stub, settings)) == 1  # one after the other: one region serves them all
    assert shared_memory_of(settings.prefix) == []
    client.close()
    assert regions(stub, settings) == []


def test_requests_at_once_have_a_region_each_and_the_rest_send_bytes(
    triton: SwapBench, client: TritonClient, settings: SharedSettings, stub: Any
) -> None:
    with ThreadPoolExecutor(12) as pool:
        list(pool.map(lambda seed: check(triton, client, seed), range(120)))
    assert 1 <= len(regions(stub, settings)) <= settings.regions


class SlowSweep:
    """Triton's own stub, with a status that comes only when it may."""

    def __init__(self, stub: Any, asked: threading.Event, may: threading.Event) -> None:
        self._stub = stub
        self._asked, self._may = asked, may

    def __getattr__(self, name: str) -> Any:
        if name == "SystemSharedMemoryStatus":
            self._asked.set()
            assert self._may.wait(20.0)
        return getattr(self._stub, name)


def test_a_region_made_while_another_request_sweeps_is_not_taken_for_an_earlier_owners(
    stub: Any, settings: SharedSettings
) -> None:
    asked, may = threading.Event(), threading.Event()
    shared = SharedTensors(SlowSweep(stub, asked, may), settings)
    with ThreadPoolExecutor(1) as pool, contextlib.ExitStack() as lent:
        first = pool.submit(lent.enter_context, shared.lent(4096))
        assert asked.wait(20.0)
        with shared.lent(4096) as second:
            assert second is None, "bytes are sent until the sweep is over"
        may.set()
        kept = first.result(20.0)
        third = lent.enter_context(shared.lent(4096))
        assert kept is not None
        assert third is not None
        assert regions(stub, settings) == sorted([kept.name, third.name])
    shared.close()


def test_what_triton_lost_is_forgotten_once_and_what_was_lent_then_is_not_lent_again(
    stub: Any, settings: SharedSettings
) -> None:
    now = [0.0]
    shared = SharedTensors(stub, settings, clock=lambda: now[0])
    with contextlib.ExitStack() as lent:
        old = [lent.enter_context(shared.lent(4096)) for _ in range(settings.regions)]
        assert all(old)
        for region in old:  # each of the requests under way finds out
            assert region is not None
            assert shared.lost(region, Unknown())
            with shared.lent(4096) as new:
                assert new is not None
    assert len(regions(stub, settings)) == settings.regions + 1, "one new region serves all, and three may be in use"
    now[0] = RETIRED_S + 1
    with contextlib.ExitStack() as again:
        lent_now = [again.enter_context(shared.lent(4096)) for _ in range(settings.regions + 1)]
        names = {region.name for region in lent_now if region is not None}
        assert len(names) == settings.regions
        assert names.isdisjoint(region.name for region in old if region is not None)
        assert set(regions(stub, settings)) == names
    shared.close()


def test_a_triton_that_has_forgotten_the_regions_is_asked_with_bytes_and_then_shares_anew(
    triton: SwapBench, client: TritonClient, settings: SharedSettings, stub: Any
) -> None:
    check(triton, client, 0)
    (before,) = regions(stub, settings)
    stub.SystemSharedMemoryUnregister(service_pb2.SystemSharedMemoryUnregisterRequest())
    check(triton, client, 1)
    check(triton, client, 2)
    (after,) = regions(stub, settings)
    assert after != before


def test_a_region_whose_request_was_given_up_is_not_lent_again_until_triton_is_done(
    stub: Any, settings: SharedSettings
) -> None:
    now = [0.0]
    shared = SharedTensors(stub, settings, clock=lambda: now[0])
    with shared.lent(4096) as given_up:
        assert given_up is not None
        given_up.sound = False
    with shared.lent(4096) as second:
        assert second is not None
        assert second.name != given_up.name
    assert regions(stub, settings) == sorted([given_up.name, second.name])
    now[0] = RETIRED_S + 1
    with shared.lent(4096):
        assert regions(stub, settings) == [second.name]
    shared.close()


def test_a_request_that_is_given_up_keeps_its_region_from_the_next_one(
    triton: SwapBench, client: TritonClient, settings: SharedSettings, stub: Any
) -> None:
    check(triton, client, 0)
    (first,) = regions(stub, settings)
    life = RequestLife(60.0)
    life.hang_up()
    with pytest.raises(RequestEnded):
        client.infer(triton.engines[0].name, image(triton, 9), timeout_s=10.0, life=life)
    for seed in range(1, 4):
        check(triton, client, seed)
    assert first in regions(stub, settings)
    assert len(regions(stub, settings)) == 2


def test_a_larger_tensor_gets_a_larger_region(stub: Any, settings: SharedSettings) -> None:
    shared = SharedTensors(stub, settings)
    for size in (4096, 8192, 4096):
        with shared.lent(size) as region:
            assert region is not None
            assert region.half >= size
    assert len(regions(stub, settings)) == 1
    shared.close()


@pytest.mark.parametrize("blocked", ["no folder", "other memory"])
def test_where_nothing_can_be_shared_bytes_are_sent(triton: SwapBench, tmp_path: Path, blocked: str) -> None:
    folder = tmp_path / "missing" if blocked == "no folder" else tmp_path
    shared = SharedSettings(owner="x", folder=folder)
    with TritonClient(triton.server.grpc_address, shared=shared) as client:
        for seed in range(4):
            check(triton, client, seed)
    assert list(tmp_path.iterdir()) == []


def test_who_is_killed_leaves_no_file_and_the_next_one_lets_go_of_its_regions(
    triton: SwapBench, settings: SharedSettings, stub: Any, shared_memory_of: Callable[[str], list[str]]
) -> None:
    program = f"""
import numpy as np
from blurfleet.serving.sharedtensors import SharedSettings
from blurfleet.serving.triton import TritonClient
client = TritonClient({triton.server.grpc_address!r}, shared=SharedSettings(owner={settings.owner!r}))
client.infer({triton.engines[0].name!r}, np.ones((1, 3, {triton.size}, {triton.size}), np.float32), timeout_s=60)
print("asked", flush=True)
input()
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "asked"
        process.send_signal(signal.SIGKILL)
        process.wait(20)
    assert shared_memory_of(settings.prefix) == []
    (left,) = regions(stub, settings)
    stray = Path("/dev/shm") / f"{settings.prefix}stray"
    stray.write_bytes(b"of a death while registering")
    with TritonClient(triton.server.grpc_address, shared=settings) as client:
        check(triton, client, 0)
        (own,) = regions(stub, settings)
    assert own != left
    assert shared_memory_of(settings.prefix) == []


def test_a_triton_that_was_restarted_is_shared_with_anew(
    triton_environment: TritonEnvironment, tmp_path: Path, until: Callable[..., None]
) -> None:
    settings = SharedSettings(owner=str(tmp_path))
    with (
        SwapBench(triton_environment, tmp_path, size=32) as bench,
        TritonClient(bench.server.grpc_address, shared=settings) as client,
    ):
        check(bench, client, 0)
        bench.server.stop()
        with pytest.raises(EngineError) as gone:
            check(bench, client, 1)
        assert gone.value.reason == "TritonUnreachable"
        bench.server.start()
        bench.server.wait_ready(60.0)
        for engine in bench.engines:
            bench.control.load(engine.name, timeout_s=30.0)
        until(client.server_ready)
        for seed in range(4):
            check(bench, client, seed)
        with channel_to(bench.server.grpc_address) as channel:
            assert len(regions(service_pb2_grpc.GRPCInferenceServiceStub(channel), settings)) == 1
