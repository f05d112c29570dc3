"""OpenTelemetry mode: a request's trace context goes through the real server into its exported spans."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from blurfleet_agent.tritonenv import TritonEnvironment
from blurfleet_agent.tritonserver import TritonServer
from blurfleet_cli.swap_bench import SwapBench

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"


@pytest.fixture
def collector() -> Iterator[tuple[str, list[str]]]:
    """A trace collector: its address, and the bodies it was sent."""
    bodies: list[str] = []

    class Collect(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Collect) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1/traces", bodies
        server.shutdown()
        thread.join()


def test_a_propagated_trace_is_exported_with_the_engine_that_served_and_others_are_not(
    triton_environment: TritonEnvironment,
    tmp_path: Path,
    collector: tuple[str, list[str]],
    until: Callable[..., None],
) -> None:
    url, bodies = collector
    bench = SwapBench(triton_environment, tmp_path, size=32)
    settings = replace(bench.server.settings, trace_url=url, service_name="triton-test")
    bench.server = TritonServer(triton_environment, settings, log=tmp_path / "triton.log")
    with bench:
        flip = bench.flip()
        headers = {"traceparent": f"00-{TRACE_ID}-b7ad6b7169203331-01"}

        def exported() -> bool:
            # Asked again at every look: Triton's exporter drops a batch that its collector is too slow to take.
            answer = bench.client.infer(bench.alias, bench.probe, timeout_s=30.0, headers=headers)
            assert answer.model_version == flip.epoch
            return bench.engines[flip.epoch % 2].name in "".join(bodies)

        until(exported, every=0.5)
    sent = "".join(bodies)
    assert TRACE_ID in sent
    assert "b7ad6b7169203331" in sent
    assert "triton-test" in sent
    assert sent.count('"traceId"') == sent.count(TRACE_ID)  # the flip's own probe carried no context: not traced
