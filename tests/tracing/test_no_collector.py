"""A gateway process whose collector is away or hangs: requests are answered, logs stay JSON, a stop is prompt."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from tests.tracing.collector import Collector

STOP_S = 30.0  # two for the spans; the rest is the interpreter's, on a machine that others use too


@contextmanager
def gateway(
    folder: Path, url: str, until: Callable[..., None]
) -> Iterator[tuple[httpx.Client, subprocess.Popen[bytes]]]:
    variables = {
        **os.environ,
        "BLURFLEET_NODE": "orin-0",
        "BLURFLEET_NODE_DIR": str(folder),
        "BLURFLEET_TRITON_GRPC": "127.0.0.1:9",
        "BLURFLEET_GATEWAY_PORT": "0",
        "BLURFLEET_TRACE_URL": url,
    }
    with (folder / "gateway.log").open("wb") as log:
        popen = subprocess.Popen([sys.executable, "-m", "blurfleet_cli", "gateway"], env=variables, stderr=log)
    try:
        told = folder / "gateway.json"
        until(lambda: told.exists() or popen.poll() is not None, what="the gateway")
        base = f"http://{json.loads(told.read_text())['address']}"
        with httpx.Client(base_url=base, timeout=20, trust_env=False) as client:
            yield client, popen
    finally:
        popen.kill()
        popen.wait()


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "gateway.log").read_text().splitlines()]


def test_a_collector_that_is_away_is_said_once_counted_and_harms_nothing(
    tmp_path: Path, until: Callable[..., None]
) -> None:
    with gateway(tmp_path, "http://127.0.0.1:9/v1/traces", until) as (client, popen):

        def failed() -> float:
            assert client.post("/v1/matte", content=b"x").json()["reason"] == "NothingServed"
            page = client.get("/metrics").text
            return float(page.split('blurfleet_spans_total{outcome="Failed"} ')[1].split()[0])

        until(lambda: failed() >= 2, every=0.3, what="two lost batches")
        popen.send_signal(signal.SIGTERM)
        assert popen.wait(STOP_S) == 0
    said = [line for line in lines(tmp_path) if line["event"].startswith("spans.")]
    assert [(line["event"], line["service"]) for line in said] == [("spans.lost", "gateway")]


def test_a_collector_that_hangs_delays_neither_answers_nor_the_stop(
    tmp_path: Path, collector: Collector, until: Callable[..., None]
) -> None:
    collector.slow = threading.Event()
    with gateway(tmp_path, collector.url, until) as (client, popen):
        for _ in range(20):
            assert client.post("/v1/matte", content=b"x").status_code == 503
        until(lambda: collector.asked > 0, what="an export under way")
        assert client.post("/v1/matte", content=b"x").status_code == 503
        popen.send_signal(signal.SIGTERM)
        assert popen.wait(STOP_S) == 0
