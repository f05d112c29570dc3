"""A power cut, as far as one machine can have one: SIGKILL to a node's agent and to its Triton."""

from __future__ import annotations

import contextlib
import os
import signal
import time

import httpx
import psutil

from blurfleet.serving.routing import Route
from blurfleet_cli.demo.stage import Stage


def cut_power(stage: Stage, node: str, route: Route) -> float:
    """Kill agent and Triton of `node`; return the seconds until it is ready again. Raises NodeError if it stays off."""
    processes = stage.fleet.processes()
    agent, triton = processes[f"agent-{node}"]["pid"], processes[f"triton-{node}"]["pid"]
    servers = [p.pid for p in psutil.Process(triton).children(recursive=True) if "tritonserver" in p.name()]
    started = time.monotonic()
    for pid in (agent, *servers):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    gateway = next(n.gateway for n in stage.nodes() if n.name == node)

    def back() -> bool:
        known = stage.fleet.processes()
        if known.get(f"agent-{node}", {}).get("pid") in (0, None, agent):
            return False
        now = stage.route(node)
        return now is not None and now.epoch >= route.epoch and _ready(gateway)

    stage.wait(back, 60, f"return of {node} after the power cut")
    return time.monotonic() - started


def _ready(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/readyz", timeout=5.0, trust_env=False).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False
