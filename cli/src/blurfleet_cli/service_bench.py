"""The service bench: finished blurred pictures from the gateway and Triton beside cut-outs from rembg's HTTP server.

Same weights, same machine, one budget of onnxruntime threads for either; one is asked while the other idles.
"""

from __future__ import annotations

import io
import itertools
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil

from blurfleet.cache import cache_dir
from blurfleet.errors import EngineError
from blurfleet.reasons import Reason
from blurfleet_agent.tritonenv import ensure_environment
from blurfleet_cli.gateway_process import running_gateway
from blurfleet_cli.network_bench import network, served_network, source_weights
from blurfleet_cli.rivals.matte_quality import enlarged_matte, matte_of, matte_quality
from blurfleet_cli.rivals.photographs import as_jpeg, photographs
from blurfleet_cli.rivals.rembg_server import MODEL, running_rembg

THREADS = 2
CLIENTS = (1, 8)
ASK_TIMEOUT_S = 60.0
WATCH_EVERY_S = 0.5
Ask = Callable[[httpx.Client, bytes], httpx.Response]
Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of the two services: how it is asked for a picture and for a matte only, and the processes it is made of."""

    name: str
    picture: Ask
    matte: Ask
    pids: tuple[int, ...]

    def processes(self) -> list[psutil.Process]:
        """Return its processes as they are now."""
        parents = [psutil.Process(pid) for pid in self.pids]
        return [*parents, *(child for parent in parents for child in parent.children(recursive=True))]


def run(rivals: Path, *, seconds: float, rounds: int, progress: Progress) -> dict[str, Any]:
    """Return throughput, latency, processor seconds and memory of either side by number of clients, and matte errors.

    `rivals` is the Python of the rivals' environment. Each side is asked for `seconds` at a time, in turns, `rounds`
    times. Raises BlurfleetError where one does not start or refuses a picture.
    """
    environment = ensure_environment(cache_dir(), progress=progress)
    photos = photographs()
    with tempfile.TemporaryDirectory(prefix="blurfleet-service-") as name:
        home = Path(name)
        (home / "ours").mkdir()
        (home / "theirs").mkdir()
        with (
            served_network(environment, home / "ours", network(), threads=THREADS) as triton,
            running_gateway(home / "ours", triton.grpc_address, infer_timeout_s=ASK_TIMEOUT_S) as gateway,
            running_rembg(rivals, source_weights(), home / "theirs", threads=THREADS) as (address, pid),
        ):
            assert triton.pid is not None
            sides = (ours(gateway["address"], (gateway["pid"], triton.pid)), theirs(address, (pid,)))
            progress("mattes of both")
            mattes = {side.name: asker(side.matte, matte_of) for side in sides}
            raw = asker(unrefined(gateway["address"]), lambda body: enlarged_matte(np.load(io.BytesIO(body))))
            quality = matte_quality(mattes | {"gateway, not refined": raw}, photos)
            report: dict[str, Any] = {"threads": THREADS, "seconds": seconds, "rounds": rounds, "matte": quality}
            jpegs = [as_jpeg(picture) for picture in photos.values()]
            for clients in CLIENTS:
                parts: dict[str, list[Part]] = {side.name: [] for side in sides}
                for number, side in itertools.product(range(rounds), sides):
                    progress(f"{side.name}, {clients} clients, {number + 1} of {rounds}")
                    parts[side.name].append(ask_for(side, jpegs, clients=clients, seconds=seconds))
                report[f"clients_{clients}"] = compared(parts)
    return report


def ours(address: str, pids: tuple[int, ...]) -> Side:
    """Return the gateway with its Triton."""
    base = f"http://{address}/v1"
    return Side(
        name="gateway",
        picture=lambda client, data: client.post(f"{base}/blur", content=data),
        matte=lambda client, data: client.post(f"{base}/matte", content=data),
        pids=pids,
    )


def theirs(address: str, pids: tuple[int, ...]) -> Side:
    """Return rembg's server."""
    url = f"http://{address}/api/remove"

    def asked(client: httpx.Client, data: bytes, **also: str) -> httpx.Response:
        return client.post(url, files={"file": ("photo.jpg", data, "image/jpeg")}, data={"model": MODEL, **also})

    return Side(name="rembg", picture=asked, matte=lambda c, d: asked(c, d, om="true"), pids=pids)


def unrefined(address: str) -> Ask:
    """Return how the gateway is asked for the network's own matte, before the picture's edges shape it."""
    return lambda client, data: client.post(f"http://{address}/v1/matte?format=npy", content=data)


def asker(how: Ask, read: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """Return how one answer is had and read."""

    def ask(data: bytes) -> Any:
        with httpx.Client(timeout=ASK_TIMEOUT_S, trust_env=False) as client:
            return read(checked(how(client, data)))

    return ask


def checked(response: httpx.Response) -> bytes:
    """Return the body of a good answer. Raises EngineError for any other."""
    if response.status_code != httpx.codes.OK:
        raise EngineError(Reason.CHECK_FAILED, f"{response.status_code}: {response.text[:300]}", where="a server")
    return response.content


@dataclass(frozen=True, kw_only=True)
class Part:
    """One stretch of asking: latencies in seconds, its length, processor seconds used, largest memory in bytes."""

    latencies: tuple[float, ...]
    length_s: float
    cpu_s: float
    memory: int


def ask_for(side: Side, jpegs: list[bytes], *, clients: int, seconds: float) -> Part:
    """Let `clients` ask for pictures one after the other for `seconds`. Raises what a client met."""
    latencies: list[float] = []
    failures: list[BaseException] = []
    end = time.monotonic() + seconds

    def ask(first: int) -> None:
        try:
            with httpx.Client(timeout=ASK_TIMEOUT_S, trust_env=False) as client:
                for data in itertools.islice(itertools.cycle(jpegs), first, None):
                    started = time.monotonic()
                    if not started < end:
                        return
                    checked(side.picture(client, data))
                    latencies.append(time.monotonic() - started)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(clients)]
    cpu, started, memory = _cpu(side), time.monotonic(), 0
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        memory = max(memory, sum(p.memory_full_info().pss for p in side.processes()))
        next(thread for thread in threads if thread.is_alive() or thread is threads[-1]).join(WATCH_EVERY_S)
    if failures:
        raise failures[0]
    length = time.monotonic() - started
    return Part(latencies=tuple(latencies), length_s=length, cpu_s=_cpu(side) - cpu, memory=memory)


def compared(parts: dict[str, list[Part]]) -> dict[str, Any]:
    """Return each side's figures and the median of the throughputs' ratio, turn by turn."""
    report: dict[str, Any] = {}
    for name, made in parts.items():
        every = np.concatenate([part.latencies for part in made])
        report[name] = {
            "requests": len(every),
            "requests_per_s": round(len(every) / sum(part.length_s for part in made), 3),
            "p50_ms": round(1e3 * float(np.percentile(every, 50)), 1),
            "p99_ms": round(1e3 * float(np.percentile(every, 99)), 1),
            "cpu_ms_per_request": round(1e3 * sum(part.cpu_s for part in made) / len(every), 1),
            "memory_mib": round(max(part.memory for part in made) / 2**20),
        }
    rates = {name: [len(part.latencies) / part.length_s for part in made] for name, made in parts.items()}
    report["times_throughput"] = round(float(np.median(np.divide(rates["gateway"], rates["rembg"]))), 2)
    report["times_cpu"] = round(report["rembg"]["cpu_ms_per_request"] / report["gateway"]["cpu_ms_per_request"], 2)
    return report


def _cpu(side: Side) -> float:
    return sum(times.user + times.system for times in (process.cpu_times() for process in side.processes()))
