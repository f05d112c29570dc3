"""Swaps behind the door, as tritonclient sees them: no call fails, no answer mixes epochs, a stream goes on."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from skimage import data

from blurfleet.cache import cache_dir
from blurfleet.contract import contract_hash
from blurfleet.pixels import to_tensor
from blurfleet.serving.routing import read_routing, write_routing
from blurfleet_agent.tritonenv import ensure_environment
from blurfleet_cli.door_bench import SIZE, SPEC, gateway_before
from blurfleet_cli.swap_bench import SwapBench

Until = Callable[..., None]
HEADERS = {"x-blurfleet-contract": contract_hash(SPEC)}
FLIPS = 20


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SwapBench, str]]:
    folder = tmp_path_factory.mktemp("door")
    with SwapBench(ensure_environment(cache_dir()), folder, size=SIZE) as bench, gateway_before(bench) as said:
        yield bench, said["grpc_address"]
        bench.server.kill()  # a stop in order takes 1 to 3 s, and has tests of its own


def route(bench: SwapBench, epoch: int) -> None:
    """Serve engine 0 in even epochs, engine 1, the fallback, in odd ones."""
    table = read_routing(bench.routing)
    changed = {"epoch": epoch, "serving": "Fallback" if epoch % 2 else "Primary"}
    write_routing(bench.routing, table.with_route(table.models[bench.alias].model_copy(update=changed)))


def epoch_of(bench: SwapBench, tensor: np.ndarray, result: Any) -> int:
    """Return an answer's epoch. Fails where the answer is not wholly that epoch's."""
    said = result.get_response()
    epoch = int(said.model_version)
    engine = bench.engines[epoch % 2]
    assert said.parameters["x-blurfleet-epoch"].string_param == str(epoch)
    assert said.parameters["x-blurfleet-engine"].string_param == engine.name
    np.testing.assert_array_equal(result.as_numpy("matte"), tensor[:, :1] * np.float32(engine.scale))
    return epoch


def test_calls_and_a_stream_go_on_through_swaps(running: tuple[SwapBench, str], until: Until) -> None:
    bench, address = running
    tensor = to_tensor(data.astronaut(), SPEC)
    image = [triton.InferInput("image", list(tensor.shape), "FP32").set_data_from_numpy(tensor)]
    route(bench, 100)
    stop, least, told = threading.Event(), [100], queue.Queue[tuple[int, int]]()

    def calls() -> None:
        with triton.InferenceServerClient(address) as client:
            while not stop.is_set():
                asked_at = least[0]
                told.put((asked_at, epoch_of(bench, tensor, client.infer("bokeh", image, headers=HEADERS))))

    streamed: list[int] = []

    def stream() -> None:
        answers: queue.Queue[Any] = queue.Queue()
        with triton.InferenceServerClient(address) as client:
            client.start_stream(lambda result, error: answers.put(error or result), headers=HEADERS)
            while not stop.is_set():
                client.async_stream_infer("bokeh", image)
                streamed.append(epoch_of(bench, tensor, answers.get(timeout=30)))
            client.stop_stream()

    failures: list[BaseException] = []

    def kept(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=kept, args=(work,)) for work in (calls, calls, stream)]
    for thread in threads:
        thread.start()
    for epoch in range(101, 101 + FLIPS):
        route(bench, epoch)
        least[0] = epoch
        seen = (told.qsize() + 3, len(streamed) + 2)
        until(lambda seen=seen: failures or (told.qsize() >= seen[0] and len(streamed) >= seen[1]), 60, "answers")
    stop.set()
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert streamed == sorted(streamed)  # one stream never goes back
    assert len(set(streamed)) > FLIPS / 2
    answers = [told.get() for _ in range(told.qsize())]
    assert len(answers) >= 3 * FLIPS
    assert all(epoch >= asked_at for asked_at, epoch in answers)
