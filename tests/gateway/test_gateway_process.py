"""The gateway as a process of its own, before a real Triton with two tiny engines: matte = red channel x scale."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path

import cv2
import httpx
import numpy as np
import pytest

from blurfleet.api.contract import ContractSpec, contract_at
from blurfleet.cache import cache_dir
from blurfleet.contract import contract_hash
from blurfleet.errors import NodeError
from blurfleet.pixels import decode, to_tensor
from blurfleet.reasons import Reason
from blurfleet.serving.frames import FrameReceiver
from blurfleet.serving.routing import Route, RoutedEngine, RoutingTable, write_routing
from blurfleet_agent.tritonenv import ensure_environment
from blurfleet_cli.swap_bench import SwapBench
from blurfleet_preprocess.main import _listen
from blurfleet_preprocess.settings import GatewaySettings

SIZE = 32
DEADLINE_S = 30.0
# Pixels land in [0, 1], so that the tiny engines' answer is a matte.
SPEC = contract_at(SIZE, ContractSpec(mean=("0",) * 3, std=("1",) * 3))


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, "the condition did not come true in time"
        threading.Event().wait(0.02)


@dataclass
class Process:
    """A running gateway: its folder, its address, the process."""

    folder: Path
    popen: subprocess.Popen[bytes]
    client: httpx.Client

    def stop(self) -> int:
        self.popen.send_signal(signal.SIGTERM)
        return self.popen.wait(DEADLINE_S)


def start(folder: Path, triton: str) -> Process:
    environment = {
        **os.environ,
        "BLURFLEET_NODE": "orin-0",
        "BLURFLEET_NODE_DIR": str(folder),
        "BLURFLEET_TRITON_GRPC": triton,
        "BLURFLEET_GATEWAY_PORT": "0",
        "BLURFLEET_READY_CACHE_S": "0",
    }
    with (folder / "gateway.log").open("wb") as log:
        popen = subprocess.Popen([sys.executable, "-m", "blurfleet_cli", "gateway"], env=environment, stderr=log)
    try:
        until(lambda: (folder / "gateway.json").exists() or popen.poll() is not None)
        said = json.loads((folder / "gateway.json").read_text())
        assert said["pid"] == popen.pid
    except BaseException:
        popen.kill()
        popen.wait()
        raise
    return Process(folder, popen, httpx.Client(base_url=f"http://{said['address']}", timeout=20, trust_env=False))


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SwapBench]:
    with SwapBench(ensure_environment(cache_dir()), tmp_path_factory.mktemp("triton"), size=SIZE) as running:
        yield running
        running.server.kill()  # a stop in order takes 1 to 3 s, and has tests of its own


@pytest.fixture(scope="module")
def gateway(bench: SwapBench) -> Iterator[Process]:
    route(bench, serving=0, epoch=1)
    process = start(bench.folder, bench.server.grpc_address)
    yield process
    process.client.close()
    if process.popen.poll() is None:
        assert process.stop() == 0


def route(bench: SwapBench, *, serving: int, epoch: int, primary: str = "", contract: ContractSpec = SPEC) -> None:
    """Serve engine 0 (the primary) or engine 1 (the fallback); `primary` renames the primary."""
    routed = [RoutedEngine(engine=e.name, digest=e.digest, precision="FP32") for e in bench.engines]
    if primary:
        routed[0] = routed[0].model_copy(update={"engine": primary})
    made = Route(
        alias=bench.alias, epoch=epoch, serving="Fallback" if serving else "Primary", primary=routed[0],
        fallback=routed[1], contract=contract,
    )  # fmt: skip
    write_routing(bench.routing, RoutingTable(simulated=True).with_route(made))


def photo(seed: int = 1) -> bytes:
    rgb = np.random.default_rng(seed).integers(0, 256, (40, 60, 3), dtype=np.uint8)
    return bytes(cv2.imencode(".png", rgb)[1])


def ask(gateway: Process, data: bytes) -> tuple[httpx.Response, np.ndarray]:
    response = gateway.client.post("/v1/matte", content=data, headers={"accept": "application/x-npy"})
    assert response.status_code == 200, response.text
    return response, np.load(BytesIO(response.content), allow_pickle=False)


def test_a_picture_comes_back_as_the_served_engines_matte(bench: SwapBench, gateway: Process) -> None:
    route(bench, serving=0, epoch=1)
    response, matte = ask(gateway, photo())
    np.testing.assert_array_equal(matte, to_tensor(decode(photo(), SPEC).rgb, SPEC)[0, 0])
    assert response.headers["x-blurfleet-engine"] == bench.engines[0].name
    assert response.headers["x-blurfleet-contract"] == contract_hash(SPEC)
    assert response.headers["x-blurfleet-simulated"] == "true"


def test_the_agents_socket_gets_the_frame_that_was_answered(bench: SwapBench, gateway: Process) -> None:
    route(bench, serving=0, epoch=1)
    with FrameReceiver(gateway.folder / "frames.sock") as receiver:
        wanted = to_tensor(decode(photo(9), SPEC).rgb, SPEC)

        def arrived() -> bool:
            ask(gateway, photo(9))
            sample = receiver.receive(0.2)
            while sample is not None and not np.array_equal(sample.tensor, wanted):
                sample = receiver.receive(0.2)
            if sample is None:
                return False
            np.testing.assert_array_equal(sample.matte, wanted[:, :1])
            assert (sample.engine, sample.digest) == (bench.engines[0].name, bench.engines[0].digest)
            assert sample.stream.startswith("orin-0.")
            return True

        until(arrived)


def test_flips_under_load_fail_no_request_and_mix_no_epochs(bench: SwapBench, gateway: Process) -> None:
    red = to_tensor(decode(photo(), SPEC).rgb, SPEC)[0, 0]
    stop, answers, current = threading.Event(), list[tuple[int, int, bool]](), [10]
    route(bench, serving=0, epoch=10)

    def load() -> None:
        while not stop.is_set():
            least = current[0]
            response, matte = ask(gateway, photo())
            epoch = int(response.headers["x-blurfleet-epoch"])
            engine = bench.engines[epoch % 2]
            right = response.headers["x-blurfleet-engine"] == engine.name and np.array_equal(
                matte, red * np.float32(engine.scale)
            )
            answers.append((epoch, least, bool(right)))

    def answered(count: int) -> bool:
        return len(answers) >= count

    threads = [threading.Thread(target=load) for _ in range(3)]
    for thread in threads:
        thread.start()
    for epoch in range(11, 41):
        route(bench, serving=epoch % 2, epoch=epoch)
        current[0] = epoch
        wanted = len(answers) + 3
        until(partial(answered, wanted))
    stop.set()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert len(answers) >= 90
    assert all(right for _, _, right in answers)
    assert all(epoch >= least for epoch, least, _ in answers)


def test_an_engine_that_is_not_loaded_is_stood_in_for(bench: SwapBench, gateway: Process) -> None:
    route(bench, serving=0, epoch=50, primary="bokeh__000000000000")
    response, _ = ask(gateway, photo())
    assert response.headers["x-blurfleet-engine"] == bench.engines[1].name
    assert response.headers["x-blurfleet-role"] == "Fallback"


def test_a_tensor_that_makes_the_engine_answer_nan_is_refused_before_it(bench: SwapBench, gateway: Process) -> None:
    route(bench, serving=0, epoch=51)
    buffer = BytesIO()
    np.save(buffer, np.full((1, 3, SIZE, SIZE), np.nan, np.float32))
    headers = {"x-blurfleet-contract": contract_hash(SPEC)}
    response = gateway.client.post("/v1/tensor", content=buffer.getvalue(), headers=headers)
    assert (response.status_code, response.json()["reason"]) == (422, "NonFiniteInput")


def test_an_out_of_range_matte_never_leaves_the_node(bench: SwapBench, gateway: Process) -> None:
    wide = contract_at(SIZE, ContractSpec(mean=("0",) * 3, std=("0.5",) * 3))
    route(bench, serving=0, epoch=52, contract=wide)
    tensor = np.random.default_rng(1).uniform(0, 1.9, (1, 3, SIZE, SIZE)).astype(np.float32)
    buffer = BytesIO()
    np.save(buffer, tensor)
    headers = {"x-blurfleet-contract": contract_hash(wide)}
    response = gateway.client.post("/v1/tensor", content=buffer.getvalue(), headers=headers)
    assert response.status_code == 200, response.text
    # Pixels land in [0, 2]. Engine 0 answers up to 1.9, engine 1 half of it.
    assert response.headers["x-blurfleet-withheld"] == "OutOfRangeOutput"
    np.testing.assert_array_equal(np.load(BytesIO(response.content)), tensor[:, :1] * np.float32(0.5))


def test_ready_is_an_inference_through_the_alias(bench: SwapBench, gateway: Process) -> None:
    bench.epoch = 60
    bench.flip()
    route(bench, serving=1, epoch=61)
    facts = gateway.client.get("/readyz").json()
    assert (facts["ready"], facts["epoch"], facts["alias_epoch"]) == (True, 61, 61)


def test_without_a_triton_it_starts_answers_503_and_stops_cleanly(bench: SwapBench, tmp_path: Path) -> None:
    process = start(tmp_path, "127.0.0.1:9")
    try:
        assert process.client.get("/healthz").status_code == 200
        nothing = process.client.post("/v1/matte", content=photo())
        assert (nothing.status_code, nothing.json()["reason"]) == (503, "NothingServed")
        (tmp_path / "routing.json").write_bytes(bench.routing.read_bytes())
        gone = process.client.post("/v1/matte", content=photo())
        assert (gone.status_code, gone.json()["reason"]) == (503, "TritonUnreachable")
        assert gone.headers["retry-after"] == "1"
        (tmp_path / "routing.json").write_text("{")
        assert process.client.get("/readyz").json()["reason"] == "UnreadableFile"
    finally:
        process.client.close()
        code = process.stop()
    assert code == 0
    assert not (tmp_path / "gateway.json").exists()
    events = [json.loads(line) for line in (tmp_path / "gateway.log").read_text().splitlines()]
    assert events[0]["event"] == "gateway.ready"
    assert all((e["service"], e["node"]) == ("gateway", "orin-0") for e in events)


def test_answers_are_not_held_back_by_nagle() -> None:
    # asyncio sets TCP_NODELAY only on sockets that name their protocol; without it each small answer takes 40 ms.
    with _listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.proto == socket.IPPROTO_TCP


def test_requests_are_taken_on_the_host_that_was_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLURFLEET_NODE_DIR", "x")
    monkeypatch.setenv("BLURFLEET_TRITON_GRPC", "x")
    assert GatewaySettings().gateway_host == "127.0.0.1"
    monkeypatch.setenv("BLURFLEET_GATEWAY_HOST", "0.0.0.0")
    with _listen(GatewaySettings().gateway_host, 0) as listener:
        assert listener.getsockname()[0] == "0.0.0.0"


def test_a_host_that_is_not_of_this_machine_is_refused_by_name() -> None:
    with pytest.raises(NodeError) as refused:
        _listen("192.0.2.1", 0)
    assert (refused.value.reason, refused.value.where) == (Reason.PORT_IN_USE, "192.0.2.1:0")
