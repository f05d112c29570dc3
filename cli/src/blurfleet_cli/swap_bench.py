"""The swap bench: flips under client load on the real Triton, and the unload/load way beside it."""

from __future__ import annotations

import gc
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from blurfleet.errors import BlurfleetError, EngineError
from blurfleet.reasons import Reason
from blurfleet.serving.routing import ROUTING_FILE, Route, RoutedEngine, RoutingTable, write_routing
from blurfleet.serving.triton import TritonClient
from blurfleet_agent.control import RepositoryControl
from blurfleet_agent.flip import FlipTimes, ensure_engine_ready, flip_alias
from blurfleet_agent.repository import ModelRepository
from blurfleet_agent.tritonenv import TritonEnvironment
from blurfleet_agent.tritonserver import TritonServer, TritonSettings, new_key, new_shm_prefix, pick_ports
from blurfleet_cli.swap_load import VIA_ALIAS, VIA_ROUTING, LoadPlan
from blurfleet_cli.tiny_engines import TinyEngine, publish_tiny_engine

ALIAS = "bokeh"
SIZE = 320  # 1.2 MB in, 0.4 MB out
SCALES = (1.0, 0.5)  # exact in float32, so equality tells the engines apart
WARM_FLIPS = 5
LOAD_TIMEOUT_S = 30.0
FLIP_DEADLINE_S = 5.0  # generous: a slow flip is a figure to report here, not a failure
PAUSE_S = (0.03, 0.09)
Records = npt.NDArray[Any]
Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Flip:
    """One flip: what it pointed at and when (CLOCK_MONOTONIC ns): started, routing file replaced, call returned."""

    epoch: int
    scale: float
    started_ns: int
    routed_ns: int
    returned_ns: int
    times: FlipTimes

    @property
    def flip_ms(self) -> float:
        """From the start of the routing replace to the new version READY."""
        return (self.routed_ns - self.started_ns) / 1e6 + self.times.until_ready_ms


class SwapBench:
    """A Triton with two tiny engines loaded and an alias over them."""

    def __init__(self, env: TritonEnvironment, folder: Path, *, alias: str = ALIAS, size: int = SIZE) -> None:
        self.alias = alias
        self.size = size
        self.folder = folder
        self.routing = folder / ROUTING_FILE
        self.repository = ModelRepository(folder / "models", folder / "staging")
        self.engines: tuple[TinyEngine, ...] = tuple(
            publish_tiny_engine(self.repository, folder, alias=alias, scale=scale, size=size) for scale in SCALES
        )
        settings = TritonSettings(
            model_repository=self.repository.models, key=new_key(), ports=pick_ports(), shm_prefix=new_shm_prefix()
        )
        self.server = TritonServer(env, settings, log=folder / "triton.log")
        self.probe = np.ones((1, 3, size, size), dtype=np.float32)
        self.epoch = 0

    def __enter__(self) -> SwapBench:
        self.server.start()
        try:
            self.server.wait_ready(60.0)
            self.control = RepositoryControl(self.server.grpc_address, self.server.settings.key)
            self.client = TritonClient(self.server.grpc_address)
            for engine in self.engines:
                self.repository.ensure_loadable(engine.name)
                self.control.load(engine.name, timeout_s=LOAD_TIMEOUT_S)
        except BaseException:
            self.server.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self.control.close()
        self.server.stop()

    def flip(self) -> Flip:
        """Point routing file and alias at the other engine, as a swap does after its journal entry."""
        self.epoch += 1
        engine = self.engines[self.epoch % len(self.engines)]
        ensure_engine_ready(self.client, engine.name)
        started = time.monotonic_ns()
        self._route(engine)
        routed = time.monotonic_ns()
        times = flip_alias(
            repository=self.repository,
            control=self.control,
            client=self.client,
            alias=self.alias,
            engine=engine.name,
            epoch=self.epoch,
            inputs=engine.record.inputs,
            outputs=engine.record.outputs,
            probe=self.probe,
            deadline_s=FLIP_DEADLINE_S,
            ensured=True,
        )
        returned = time.monotonic_ns()
        self.repository.prune_alias(self.alias, keep=self.epoch)
        return Flip(
            epoch=self.epoch,
            scale=engine.scale,
            started_ns=started,
            routed_ns=routed,
            returned_ns=returned,
            times=times,
        )

    def _route(self, engine: TinyEngine) -> None:
        routed = RoutedEngine(engine=engine.name, digest=engine.digest, precision="FP32")
        route = Route(alias=self.alias, epoch=self.epoch, serving="Primary", primary=routed)
        write_routing(self.routing, RoutingTable(simulated=True).with_route(route))


@contextmanager
def client_load(plan: LoadPlan) -> Iterator[None]:
    """Run `plan` in its own process for the length of the block; its records lie in `plan.out` afterwards."""
    process = subprocess.Popen(
        [sys.executable, "-m", "blurfleet_cli.swap_load"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(plan.model_dump_json() + "\n")
        process.stdin.flush()
        if process.stdout.readline().strip() != "ready":
            raise EngineError(Reason.CHECK_FAILED, "the load process ended before its first answers")
        yield
        process.stdin.close()
        if process.wait(timeout=30.0) != 0:
            raise EngineError(Reason.CHECK_FAILED, f"the load process ended with {process.returncode}")
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        process.stdout.close()


def run_swaps(bench: SwapBench, *, flips: int, clients: int, rate_hz: float, progress: Progress) -> dict[str, Any]:
    """Flip `flips` times under load; return the figures of the report's top level. Raises BlurfleetError."""
    rng = random.Random(0)
    for _ in range(WARM_FLIPS):
        bench.flip()
    before = bench.server.loads_logged()
    plan = LoadPlan(
        address=bench.server.grpc_address,
        alias=bench.alias,
        routing=bench.routing,
        out=bench.folder / "swap.npy",
        clients=clients,
        rate_hz=rate_hz,
        size=bench.size,
    )
    done: list[Flip] = []
    with client_load(plan):
        gc.collect()
        gc.freeze()
        for index in range(flips):
            time.sleep(rng.uniform(*PAUSE_S))  # flips fall at any point of the requests' cycle
            done.append(bench.flip())
            if (index + 1) % 100 == 0:
                progress(f"{index + 1} of {flips} flips")
        gc.unfreeze()
    loads = bench.server.loads_logged() - before
    return swap_report(done, np.load(plan.out), sum(loads.values()))


def swap_report(flips: list[Flip], requests: Records, loads: int) -> dict[str, Any]:
    """Judge every request against the flips; times in milliseconds, percentiles by linear interpolation."""
    stale, mixed = judge(flips, requests)
    return {
        "flips": len(flips),
        "requests": len(requests),
        "failed": int(np.count_nonzero(~requests["ok"])),
        "stale": stale,
        "mixed": mixed,
        "loads_per_flip": loads / len(flips),
        **_figures("flip", [f.flip_ms for f in flips]),
        **_figures("verify", [f.times.verify_ms for f in flips]),
        **_figures("routing", [(f.routed_ns - f.started_ns) / 1e6 for f in flips]),
        **_figures("replace", [f.times.replace_ms for f in flips]),
        **_figures("ready", [f.times.ready_ms for f in flips]),
        **_figures("load_call", [f.times.load_ms for f in flips]),
        **_figures("request", ((requests["done_ns"] - requests["sent_ns"]) / 1e6).tolist()),
    }


def judge(flips: list[Flip], requests: Records) -> tuple[int, int]:
    """Return how many answers were stale, and how many mixed.

    Stale: from the alias, an epoch older than the last flip that had returned when the request was sent; through the
    routing file, an engine that was routed away before the request was sent. Mixed: a picture that is not wholly the
    engine's that its epoch stands for.
    """
    returned = np.array([f.returned_ns for f in flips])
    routed = np.array([f.routed_ns for f in flips])
    started = np.array([f.started_ns for f in flips])
    scale_of = {f.epoch: f.scale for f in flips}
    stale = mixed = 0
    for one in requests[requests["ok"]]:
        if one["scale"] not in SCALES:
            mixed += 1
        elif one["via"] == VIA_ALIAS:
            last = int(np.searchsorted(returned, one["sent_ns"])) - 1
            stale += last >= 0 and int(one["version"]) < flips[last].epoch
            mixed += scale_of.get(int(one["version"]), one["scale"]) != one["scale"]
        elif one["via"] == VIA_ROUTING:
            last = int(np.searchsorted(routed, one["sent_ns"])) - 1
            begun = int(np.searchsorted(started, one["done_ns"]))
            allowed = {f.scale for f in flips[max(0, last) : begun]}
            stale += last >= 0 and float(one["scale"]) not in allowed
    return int(stale), int(mixed)


def run_unload_load(bench: SwapBench, *, times: int, clients: int, rate_hz: float) -> dict[str, Any]:
    """Swap the other way, `times` times under load: unload, then load. Return requests, failures and outages (ms).

    An outage is the longest time between two successful answers around one swap.
    """
    name = bench.engines[0].name
    plan = LoadPlan(
        address=bench.server.grpc_address,
        alias=name,
        out=bench.folder / "unload.npy",
        clients=clients,
        rate_hz=rate_hz,
        size=bench.size,
    )
    spans: list[tuple[int, int]] = []
    with client_load(plan):
        for _ in range(times):
            time.sleep(0.3)  # some answers before and after, or the outage has no edges
            began = time.monotonic_ns()
            bench.control.unload(name)
            _load_until_ready(bench.control, name)
            spans.append((began, time.monotonic_ns()))
            time.sleep(0.5)  # the queue that the outage left is answered before the next
    requests = np.load(plan.out)
    good = np.sort(requests["done_ns"][requests["ok"]])
    outages = [_longest_gap(good, span) for span in spans]
    return {
        "swaps": times,
        "requests": len(requests),
        "failed": int(np.count_nonzero(~requests["ok"])),
        "outage_ms": max(outages),
        "outage_p50_ms": float(np.percentile(outages, 50)),
    }


def _load_until_ready(control: RepositoryControl, name: str) -> None:
    try:
        control.load(name, timeout_s=LOAD_TIMEOUT_S)
    except BlurfleetError:
        control.load(name, timeout_s=LOAD_TIMEOUT_S)  # still draining: Triton refuses a load then


def _longest_gap(good_ns: npt.NDArray[np.int64], span: tuple[int, int]) -> float:
    low = max(0, int(np.searchsorted(good_ns, span[0])) - 1)
    high = int(np.searchsorted(good_ns, span[1])) + 1
    gaps = np.diff(good_ns[low : high + 1])
    return float(gaps.max()) / 1e6 if gaps.size else (span[1] - span[0]) / 1e6


def _figures(name: str, values: list[float]) -> dict[str, float]:
    return {
        f"{name}_p50_ms": round(float(np.percentile(values, 50)), 3),
        f"{name}_p99_ms": round(float(np.percentile(values, 99)), 3),
        f"{name}_max_ms": round(float(np.max(values)), 3),
    }
