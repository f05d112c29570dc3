"""Client load for the swap bench, in a process of its own so that its threads never hold up the one that flips.

Reads a `LoadPlan` as one JSON line from standard input, writes `ready`, then asks until standard input closes, and
leaves every request in an .npy file. Times are CLOCK_MONOTONIC nanoseconds, which all processes of a machine share.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from pydantic import BaseModel

from blurfleet.errors import BlurfleetError
from blurfleet.serving.routing import RoutingReader
from blurfleet.serving.triton import TritonClient

VIA_ALIAS = 0
VIA_ROUTING = 1
REQUEST_DTYPE = np.dtype(
    [("via", "i1"), ("ok", "?"), ("sent_ns", "i8"), ("done_ns", "i8"), ("version", "i8"), ("scale", "f4")]
)
Request = tuple[int, bool, int, int, int, float]


class LoadPlan(BaseModel):
    """What to send: `clients` threads of `rate_hz` requests a second, in turn to the alias and to the routed engine."""

    address: str
    alias: str
    routing: Path | None = None
    out: Path
    clients: int
    rate_hz: float
    size: int
    timeout_s: float = 5.0


def main() -> None:
    """Run one load plan."""
    plan = LoadPlan.model_validate_json(sys.stdin.readline())
    stop = threading.Event()
    warm = threading.Barrier(plan.clients + 1)
    lists: list[list[Request]] = [[] for _ in range(plan.clients)]
    with TritonClient(plan.address) as client:
        threads = [
            threading.Thread(target=_ask, args=(plan, client, index, lists[index], warm, stop))
            for index in range(plan.clients)
        ]
        for thread in threads:
            thread.start()
        warm.wait(timeout=30.0)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        sys.stdin.read()
        stop.set()
        for thread in threads:
            thread.join()
    np.save(plan.out, np.array([one for each in lists for one in each], dtype=REQUEST_DTYPE))


def _ask(
    plan: LoadPlan,
    client: TritonClient,
    index: int,
    done: list[Request],
    warm: threading.Barrier,
    stop: threading.Event,
) -> None:
    image = np.ones((1, 3, plan.size, plan.size), dtype=np.float32)
    target = _targets(plan, index)
    _one(client, *target(), image, plan.timeout_s)
    warm.wait(timeout=30.0)
    period = 1.0 / plan.rate_hz
    due = time.monotonic() + period * index / plan.clients
    while not stop.wait(max(0.0, due - time.monotonic())):
        due = max(due + period, time.monotonic())
        sent = time.monotonic_ns()  # before the routing file is read: a request starts where the gateway's would
        done.append(_one(client, *target(), image, plan.timeout_s, sent))


def _targets(plan: LoadPlan, index: int) -> Callable[[], tuple[int, str]]:
    """Return what names the next request's model: the alias, or in turn the alias and the routed engine."""
    if plan.routing is None:
        return lambda: (VIA_ALIAS, plan.alias)
    reader = RoutingReader(plan.routing)
    turn = index

    def following() -> tuple[int, str]:
        nonlocal turn
        turn += 1
        if turn % 2:
            return VIA_ALIAS, plan.alias
        return VIA_ROUTING, reader.snapshot().models[plan.alias].active.engine

    return following


def _one(
    client: TritonClient, via: int, model: str, image: np.ndarray, timeout_s: float, sent: int | None = None
) -> Request:
    sent = time.monotonic_ns() if sent is None else sent
    try:
        answer = client.infer(model, image, timeout_s=timeout_s)
    except BlurfleetError:
        return via, False, sent, time.monotonic_ns(), 0, 0.0
    low, high = float(answer.matte.min()), float(answer.matte.max())
    scale = low if low == high else float("nan")  # two engines in one picture
    return via, True, sent, time.monotonic_ns(), answer.model_version, scale


if __name__ == "__main__":
    main()
