"""One request, one tree: the gateway process and the real Triton export to one collector."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cv2
import httpx
import numpy as np
import pytest
from tests.tracing.collector import Collector, SeenSpan, collecting
from tests.whole_lines import whole_lines

from blurfleet.api.contract import ContractSpec, contract_at
from blurfleet.cache import cache_dir
from blurfleet.contract import contract_hash
from blurfleet.serving.routing import Route, RoutedEngine, RoutingTable, write_routing
from blurfleet_agent.tritonenv import ensure_environment
from blurfleet_agent.tritonserver import TritonServer
from blurfleet_cli.swap_bench import SwapBench

SIZE = 32
SPEC = contract_at(SIZE, ContractSpec(mean=("0",) * 3, std=("1",) * 3))  # the tiny engines' answer is then a matte
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
DIRECT = "c7ad6b7169203331b7ad6b7169203331"
FAILING = "a7ad6b7169203331b7ad6b7169203331"
OTHER, THIRD = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331b7ad6b7169203331"
EPOCH = 7
STAGES = ("blur.queue", "blur.decode", "blur.contract", "triton.infer", "blur.check", "blur.composite", "blur.encode")


@dataclass
class Node:
    """A gateway process before a real Triton, both traced."""

    bench: SwapBench
    folder: Path
    collector: Collector
    client: httpx.Client
    popen: subprocess.Popen[bytes]

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in whole_lines(self.folder / "gateway.log")]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, until: Callable[..., None]) -> Iterator[Node]:
    with collecting() as collector, running(tmp_path_factory.mktemp("node"), collector, until) as made:
        yield made


@pytest.fixture
def collector(node: Node) -> Collector:
    """The node's collector, with what earlier tests sent forgotten."""
    node.collector.spans.clear()
    return node.collector


@contextmanager
def running(tmp_path: Path, collector: Collector, until: Callable[..., None]) -> Iterator[Node]:
    environment = ensure_environment(cache_dir())
    bench = SwapBench(environment, tmp_path, size=SIZE)
    settings = replace(bench.server.settings, trace_url=collector.url, node="orin-0")
    bench.server = TritonServer(environment, settings, log=tmp_path / "triton.log")
    with bench:
        serve(bench, bench.engines[0].name)
        told = tmp_path / "gateway.json"
        variables = {
            **os.environ,
            "BLURFLEET_NODE": "orin-0",
            "BLURFLEET_NODE_DIR": str(tmp_path),
            "BLURFLEET_TRITON_GRPC": bench.server.grpc_address,
            "BLURFLEET_GATEWAY_PORT": "0",
            "BLURFLEET_TRACE_URL": collector.url,
        }
        with (tmp_path / "gateway.log").open("wb") as log:
            popen = subprocess.Popen([sys.executable, "-m", "blurfleet_cli", "gateway"], env=variables, stderr=log)
        try:
            until(lambda: told.exists() or popen.poll() is not None, what="the gateway")
            base = f"http://{json.loads(told.read_text())['address']}"
            with httpx.Client(base_url=base, timeout=20, trust_env=False) as client:
                yield Node(bench, tmp_path, collector, client, popen)
        finally:
            popen.send_signal(signal.SIGTERM)
            assert popen.wait(30) == 0


def serve(bench: SwapBench, primary: str, *, fallback: bool = True) -> None:
    routed = [RoutedEngine(engine=e.name, digest=e.digest, precision="FP32") for e in bench.engines]
    route = Route(
        alias=bench.alias, epoch=EPOCH, serving="Primary", contract=SPEC, model_id="0123456789ab",
        primary=routed[0].model_copy(update={"engine": primary}), fallback=routed[1] if fallback else None,
    )  # fmt: skip
    write_routing(bench.routing, RoutingTable(simulated=True).with_route(route))


def photo() -> bytes:
    rgb = np.random.default_rng(1).integers(0, 256, (40, 60, 3), dtype=np.uint8)
    return bytes(cv2.imencode(".png", rgb)[1])


def blurred(node: Node, traceparent: str, **headers: str) -> httpx.Response:
    response = node.client.post("/v1/blur", content=photo(), headers={"traceparent": traceparent, **headers})
    assert response.status_code == 200, response.text
    return response


def by_id(collector: Collector, trace_id: str) -> dict[str, SeenSpan]:
    return {s.span_id: s for s in collector.of(trace_id)}


def children(spans: dict[str, SeenSpan], parent: SeenSpan) -> list[SeenSpan]:
    return sorted((s for s in spans.values() if s.parent_id == parent.span_id), key=lambda s: s.start)


def ancestor(spans: dict[str, SeenSpan], span: SeenSpan, name: str) -> SeenSpan:
    while span.name != name:
        span = spans[span.parent_id]
    return span


def test_gateway_and_triton_make_one_tree_under_the_callers_span(
    node: Node, collector: Collector, until: Callable[..., None]
) -> None:
    def exported() -> bool:
        # Asked again at every look: Triton's exporter drops a batch that its collector is too slow to take.
        blurred(node, f"00-{TRACE}-{PARENT}-01")
        return any(s.service == "blurfleet-triton" for s in collector.of(TRACE))

    def whole() -> bool:
        spans = by_id(collector, TRACE)
        return all(s.parent_id in spans or s.parent_id == PARENT for s in spans.values())

    until(exported, every=1.0, what="a span of Triton")
    until(whole, what="every span's parent")
    spans = by_id(collector, TRACE)
    served = next(s for s in spans.values() if s.service == "blurfleet-triton" and s.name == node.bench.engines[0].name)
    asked = ancestor(spans, served, "triton.infer")
    request = spans[asked.parent_id]
    assert (request.name, request.parent_id, request.service) == ("blur.request", PARENT, "blurfleet-gateway")
    assert {s.instance for s in spans.values()} == {"orin-0"}
    engine = node.bench.engines[0]
    wanted = {
        "blurfleet.model": "bokeh",
        "blurfleet.model_id": "0123456789ab",
        "blurfleet.engine": engine.name,
        "blurfleet.digest": engine.digest,
        "blurfleet.precision": "FP32",
        "blurfleet.role": "Primary",
        "blurfleet.epoch": EPOCH,
        "blurfleet.contract": contract_hash(SPEC),
        "blurfleet.simulated": True,
    }
    assert {k: v for k, v in asked.attributes.items() if k.startswith("blurfleet.")} == wanted
    assert {k: request.attributes[k] for k in wanted} == wanted
    assert (request.attributes["http.route"], request.attributes["http.response.status_code"]) == ("/v1/blur", 200)
    assert tuple(s.name for s in children(spans, request)) == STAGES
    assert asked.start <= served.start <= asked.end  # Triton ends its spans after it has answered


def test_triton_traces_whatever_carries_a_context_so_that_the_gateway_must_not_pass_on_all(
    node: Node, collector: Collector, until: Callable[..., None]
) -> None:
    bench = node.bench

    def exported() -> bool:
        bench.client.infer(bench.engines[0].name, bench.probe, timeout_s=30.0)
        bench.client.infer(
            bench.engines[0].name, bench.probe, timeout_s=30.0, headers={"traceparent": f"00-{DIRECT}-{PARENT}-00"}
        )
        return collector.of(DIRECT) != []

    until(exported, every=1.0, what="a span of a context that says it is not sampled")
    # Without a context there is none; spans of earlier tests may still be on their way.
    assert {s.trace_id for s in collector.spans} <= {DIRECT, TRACE, THIRD, FAILING}


def test_every_line_of_a_failing_request_is_json_with_trace_and_network(node: Node, until: Callable[..., None]) -> None:
    serve(node.bench, "bokeh__000000000000", fallback=False)
    try:
        answer = node.client.post("/v1/blur", content=photo(), headers={"traceparent": f"00-{FAILING}-{PARENT}-01"})
    finally:
        serve(node.bench, node.bench.engines[0].name)
    assert (answer.status_code, answer.headers["x-blurfleet-trace"]) == (503, FAILING)

    def failed() -> list[dict[str, Any]]:
        return [line for line in node.lines() if line["event"] == "request.failed"]

    until(lambda: failed() != [], what="the line of the log")
    assert [(line["trace_id"], line["model_id"], line["model"], line["reason"]) for line in failed()] == [
        (FAILING, "0123456789ab", "bokeh", answer.json()["reason"])
    ]


def test_an_unsampled_parent_is_not_forwarded_and_triton_makes_no_span_of_it(
    node: Node, collector: Collector, until: Callable[..., None]
) -> None:
    unsampled = blurred(node, f"00-{OTHER}-{PARENT}-00")
    assert unsampled.headers["x-blurfleet-trace"] == OTHER

    def exported() -> bool:
        blurred(node, f"00-{OTHER}-{PARENT}-00")
        blurred(node, f"00-{THIRD}-{PARENT}-01")
        return any(s.service == "blurfleet-triton" for s in collector.of(THIRD))

    until(exported, every=1.0, what="a span of Triton")
    assert collector.of(OTHER) == []
