"""The door bench: a ready tensor through the gateway, and by a bare tritonclient call to the same engine, in turns."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import tritonclient.grpc as triton
import tritonclient.utils.shared_memory as memory
from skimage import data

from blurfleet.api.contract import ContractSpec, contract_at
from blurfleet.cache import cache_dir
from blurfleet.contract import contract_hash
from blurfleet.errors import EngineError
from blurfleet.pixels import Tensor, to_tensor
from blurfleet.reasons import Reason
from blurfleet.serving.routing import Route, RoutedEngine, RoutingTable, write_routing
from blurfleet_agent.tritonenv import ensure_environment
from blurfleet_cli.gateway_process import running_gateway
from blurfleet_cli.swap_bench import SwapBench

SIZE = 320
WARM = 20
# Pixels land in [0, 1], so that the tiny engine's answer, its first channel, is a matte.
SPEC = contract_at(SIZE, ContractSpec(mean=("0",) * 3, std=("1",) * 3))
Ask = Callable[[], np.ndarray[Any, Any]]
Progress = Callable[[str], None]


def run(*, pairs: int, progress: Progress) -> dict[str, Any]:
    """Return milliseconds by transport: p50 and p99 of both ways, and the median of the differences within a pair.

    `gateway_cpu_ms` is what a request cost the gateway's process, which a busy machine changes least. The gateway
    is a process of its own, as in production. Raises EngineError where an answer is wrong.
    """
    environment = ensure_environment(cache_dir(), progress=progress)
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="blurfleet-door-") as name:
        folder = Path(name)
        with SwapBench(environment, folder, size=SIZE) as bench, gateway_before(bench) as door:
            stored: Any = data  # scikit-image types it in part
            tensor = to_tensor(stored.astronaut(), SPEC)
            engine, key = bench.engines[0].name, contract_hash(SPEC)
            report: dict[str, Any] = {}
            ways = {"grpc": _grpc, "grpc_shared_memory": _grpc_shared, "http": _http}
            for name_of_way, way in ways.items():
                progress(f"{pairs} pairs over {name_of_way}")
                direct = bench.server.http_address if way is _http else bench.server.grpc_address
                through = door["address"] if way is _http else door["grpc_address"]
                with way(direct, engine, tensor, "") as bare, way(through, bench.alias, tensor, key) as ours:
                    before = _cpu_seconds(door["pid"])
                    report[name_of_way] = in_turns(bare, ours, tensor[:, :1], pairs)
                    used = _cpu_seconds(door["pid"]) - before
                    report[name_of_way]["gateway_cpu_ms"] = 1000 * used / (pairs + WARM)
    return {**report, "pairs": pairs, "cpus": os.cpu_count(), "load_average": round(load, 2)}


def _cpu_seconds(pid: int) -> float:
    used = psutil.Process(pid).cpu_times()
    return float(used.user + used.system)


def in_turns(bare: Ask, ours: Ask, wanted: Tensor, pairs: int) -> dict[str, float]:
    """Time the two ways in turns, either one first as often. Raises EngineError where an answer is not `wanted`."""
    seconds = np.empty((WARM + pairs, 2))
    for pair in range(len(seconds)):
        for way in (0, 1) if pair % 2 else (1, 0):
            started = time.perf_counter()
            matte = (bare, ours)[way]()
            seconds[pair, way] = time.perf_counter() - started
            if not np.array_equal(matte, wanted):
                raise EngineError(Reason.CHECK_FAILED, "a matte is not the engine's", where=("bare", "door")[way])
    counted = 1000 * seconds[WARM:]
    figures = {
        f"{name}_p{q}_ms": float(np.percentile(counted[:, way], q))
        for way, name in enumerate(("bare", "door"))
        for q in (50, 99)
    }
    return figures | {"overhead_p50_ms": float(np.median(counted[:, 1] - counted[:, 0]))}


@contextlib.contextmanager
def gateway_before(bench: SwapBench) -> Iterator[dict[str, Any]]:
    """Run a gateway before the bench's Triton; yield what its `gateway.json` says. Raises EngineError."""
    primary, fallback = (RoutedEngine(engine=e.name, digest=e.digest, precision="FP32") for e in bench.engines)
    route = Route(alias=bench.alias, epoch=1, serving="Primary", primary=primary, fallback=fallback, contract=SPEC)
    write_routing(bench.routing, RoutingTable(simulated=True).with_route(route))
    with running_gateway(bench.folder, bench.server.grpc_address) as said:
        yield said


@contextlib.contextmanager
def _grpc(address: str, model: str, tensor: Tensor, key: str) -> Iterator[Ask]:
    headers = {"x-blurfleet-contract": key}
    with triton.InferenceServerClient(address) as client:

        def ask() -> np.ndarray[Any, Any]:
            sent = triton.InferInput("image", list(tensor.shape), "FP32").set_data_from_numpy(tensor)
            matte: np.ndarray[Any, Any] = client.infer(model, [sent], headers=headers).as_numpy("matte")
            return matte

        yield ask


@contextlib.contextmanager
def _grpc_shared(address: str, model: str, tensor: Tensor, key: str) -> Iterator[Ask]:
    headers = {"x-blurfleet-contract": key}
    image_bytes, matte_bytes = tensor.nbytes, tensor.nbytes // 3
    name = f"door_bench_{os.getpid()}_{'door' if key else 'bare'}"
    shared = memory.create_shared_memory_region(name, f"/{name}", image_bytes + matte_bytes)
    try:
        with triton.InferenceServerClient(address) as client:
            client.register_system_shared_memory(name, f"/{name}", image_bytes + matte_bytes)
            sent = triton.InferInput("image", list(tensor.shape), "FP32")
            sent.set_shared_memory(name, image_bytes)
            wish = triton.InferRequestedOutput("matte")
            wish.set_shared_memory(name, matte_bytes, image_bytes)

            def ask() -> np.ndarray[Any, Any]:
                memory.set_shared_memory_region(shared, [tensor])
                client.infer(model, [sent], outputs=[wish], headers=headers)
                shape = [1, 1, *tensor.shape[2:]]
                matte: np.ndarray[Any, Any] = memory.get_contents_as_numpy(shared, np.float32, shape, image_bytes)
                return matte

            yield ask
            client.unregister_system_shared_memory(name)
    finally:
        memory.destroy_shared_memory_region(shared)


@contextlib.contextmanager
def _http(address: str, model: str, tensor: Tensor, key: str) -> Iterator[Ask]:
    head = json.dumps(
        {
            "inputs": [
                {
                    "name": "image",
                    "datatype": "FP32",
                    "shape": list(tensor.shape),
                    "parameters": {"binary_data_size": tensor.nbytes},
                }
            ],
            "outputs": [{"name": "matte", "parameters": {"binary_data": True}}],
        }
    ).encode()
    headers = {"Inference-Header-Content-Length": str(len(head)), "x-blurfleet-contract": key}
    with contextlib.closing(http.client.HTTPConnection(address, timeout=30)) as connection:

        def ask() -> np.ndarray[Any, Any]:
            connection.request("POST", f"/v2/models/{model}/infer", head + tensor.tobytes(), headers)
            answer = connection.getresponse()
            body = answer.read()
            if answer.status != http.client.OK:
                raise EngineError(Reason.CHECK_FAILED, body[:200].decode(errors="replace"), where=address)
            start = int(answer.headers["Inference-Header-Content-Length"])
            return np.frombuffer(body, np.float32, offset=start).reshape(1, 1, *tensor.shape[2:])

        yield ask
