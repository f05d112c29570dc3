"""Spans, stages and trace ids of requests over HTTP, engines stood in for; spans are kept in memory."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import structlog
import tritonclient.grpc as triton
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased, TraceIdRatioBased
from tests.gateway.conftest import FALLBACK, PRIMARY, SIZE, Rig, http

from blurfleet.api.contract import contract_at
from blurfleet.contract import contract_hash
from blurfleet.pixels import to_tensor
from blurfleet_preprocess.exchange import Exchange
from blurfleet_preprocess.grpc_door import GrpcDoor
from blurfleet_preprocess.readiness import Readiness
from blurfleet_preprocess.rest import build_app
from blurfleet_preprocess.streams import Streams
from blurfleet_preprocess.tracing import Tracing
from blurfleet_preprocess.work import Workers

CASES = json.loads((Path(__file__).parents[1] / "cases" / "obs" / "traceparent.json").read_text())
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


class Traced:
    """A gateway with stand-in engines, its answers over HTTP, and the spans that ended."""

    def __init__(self, share: float = 1.0) -> None:
        self.rig = Rig()
        self.rig.engines_behave("subject")
        self._kept = InMemorySpanExporter()
        root = ALWAYS_ON if share == 1.0 else TraceIdRatioBased(share)
        provider = TracerProvider(sampler=ParentBased(root), shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._kept))
        exchange = self.exchange = Exchange(
            gateway=self.rig.gateway,
            streams=Streams("test.1"),
            metrics=self.rig.metrics,
            workers=Workers(4, 16),
            max_body_bytes=1 << 20,
            tracing=Tracing(tracer=provider.get_tracer("test")),
        )
        self.app = build_app(exchange, Readiness(self.rig.gateway, cache_s=60))

    def spans(self, name: str = "") -> list[ReadableSpan]:
        return [span for span in self._kept.get_finished_spans() if name in ("", span.name)]

    def request(self, until: Callable[..., None]) -> ReadableSpan:
        """Return the one request's span: it ends after its answer has left."""
        until(lambda: len(self.spans("blur.request")) == 1, what="the request's span")
        return self.spans("blur.request")[0]


@contextmanager
def logged() -> Iterator[list[dict[str, Any]]]:
    """Collect log lines instead of writing them."""
    before, lines = structlog.get_config(), list[dict[str, Any]]()

    def keep(_: Any, __: str, event: Any) -> Any:
        lines.append(dict(event))
        raise structlog.DropEvent

    structlog.configure(processors=[structlog.contextvars.merge_contextvars, keep])
    try:
        yield lines
    finally:
        structlog.configure(**before)


def seconds(span: ReadableSpan) -> float:
    assert span.start_time is not None
    assert span.end_time is not None
    return (span.end_time - span.start_time) / 1e9


def timings(response: httpx.Response) -> dict[str, float]:
    """Return `Server-Timing` in seconds."""
    parts = re.findall(r"(\w+);dur=([\d.]+)", response.headers["server-timing"])
    return {name: float(ms) / 1000 for name, ms in parts}


@pytest.fixture
def traced() -> Traced:
    return Traced()


def test_metrics_spans_and_server_timing_tell_the_same_time_of_every_stage(
    traced: Traced, photo: bytes, until: Callable[..., None]
) -> None:
    with http(traced.app) as client:
        response = client.post("/v1/blur", content=photo)
    request, told = traced.request(until), timings(response)
    assert list(told) == ["queue", "decode", "contract", "infer", "check", "composite", "encode", "total"]
    names = {"infer": "triton.infer"}
    for stage, shown in told.items():
        assert traced.rig.count("blurfleet_request_seconds_count", stage=stage) == 1
        metric = traced.rig.count("blurfleet_request_seconds_sum", stage=stage)
        assert metric == pytest.approx(shown, abs=1e-6)
        if stage != "total":
            [span] = traced.spans(names.get(stage, f"blur.{stage}"))
            assert span.parent is not None
            assert request.context is not None
            assert span.parent.span_id == request.context.span_id
            assert seconds(span) == pytest.approx(metric, abs=1e-6)
    parts = sum(told.values()) - told["total"]
    assert parts <= told["total"] <= seconds(request)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c["id"])
def test_a_valid_parent_is_continued_and_any_other_begins_a_trace_of_its_own(
    case: dict[str, Any], traced: Traced, photo: bytes
) -> None:
    with http(traced.app) as client:
        # httpx refuses blanks around a value, which other clients send.
        line = HTTPConnection(client.base_url.host, client.base_url.port, timeout=20)
        line.request("POST", "/v1/matte", photo, {"traceparent": case["value"]})
        response = line.getresponse()
        response.read()
        line.close()
    assert response.status == 200
    trace_id = response.headers["x-blurfleet-trace"]
    assert re.fullmatch("[0-9a-f]{32}", trace_id)
    assert (trace_id == TRACE) is case["w3c_valid"]
    assert traced.rig.told.samples[0].trace_id == trace_id
    sampled = case["id"] != "flags_hex_0a"  # its lowest bit is not set
    [headers] = traced.rig.engines.headers
    assert (headers.get("traceparent", "")[:36] == f"00-{trace_id}-") is sampled
    assert bool(headers) is bool(traced.rig.told.samples[0].span_id) is sampled


def test_the_engine_is_asked_under_the_infer_span_with_the_callers_tracestate(
    traced: Traced, photo: bytes, until: Callable[..., None]
) -> None:
    with http(traced.app) as client:
        client.post(
            "/v1/matte",
            content=photo,
            headers=[("TraceParent", f"00-{TRACE}-{PARENT}-01"), ("tracestate", "a=1"), ("tracestate", "b=2, bad")],
        )
        client.post("/v1/matte", content=photo, headers={"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "a=1"})
    until(lambda: len(traced.spans("triton.infer")) == 2)
    broken, whole = traced.rig.engines.headers
    asked = [f"00-{TRACE}-{s.context.span_id:016x}-01" for s in traced.spans("triton.infer") if s.context]
    assert broken == {"traceparent": asked[0]}
    assert whole == {"traceparent": asked[1], "tracestate": "a=1"}


def test_two_parents_are_none(traced: Traced, photo: bytes) -> None:
    one = ("traceparent", f"00-{TRACE}-{PARENT}-01")
    with http(traced.app) as client:
        response = client.post("/v1/matte", content=photo, headers=[one, one])
    assert response.status_code == 200
    assert response.headers["x-blurfleet-trace"] != TRACE


def test_a_trace_that_is_not_sampled_here_makes_no_span_and_is_not_forwarded(photo: bytes) -> None:
    traced = Traced(share=0.0)
    with http(traced.app) as client:
        response = client.post("/v1/matte", content=photo)
        asked_for = client.post("/v1/matte", content=photo, headers={"traceparent": f"00-{TRACE}-{PARENT}-01"})
    assert re.fullmatch("[0-9a-f]{32}", response.headers["x-blurfleet-trace"])
    assert asked_for.headers["x-blurfleet-trace"] == TRACE
    assert [bool(headers) for headers in traced.rig.engines.headers] == [False, True]
    assert {s.context.trace_id for s in traced.spans() if s.context} == {int(TRACE, 16)}


def test_a_withheld_matte_shows_both_inferences_and_why(
    traced: Traced, photo: bytes, until: Callable[..., None]
) -> None:
    traced.rig.engines_behave("with NaN")
    with http(traced.app) as client:
        client.post("/v1/matte", content=photo)
    request = traced.request(until)
    assert request.attributes is not None
    assert request.attributes["blurfleet.withheld"] == "NonFiniteOutput"
    assert (request.attributes["blurfleet.engine"], request.attributes["blurfleet.role"]) == (
        FALLBACK.engine,
        "Fallback",
    )
    first, second = sorted(traced.spans("triton.infer"), key=lambda s: s.start_time or 0)
    [check] = traced.spans("blur.check")
    assert first.attributes is not None
    assert second.attributes is not None
    assert (first.attributes["blurfleet.engine"], first.attributes["blurfleet.role"]) == (PRIMARY.engine, "Primary")
    assert (second.attributes["blurfleet.engine"], second.attributes["blurfleet.role"]) == (FALLBACK.engine, "Fallback")
    assert second.parent is not None
    assert check.context is not None
    assert second.parent.span_id == check.context.span_id
    assert second.context is not None
    assert traced.rig.engines.headers[1]["traceparent"].split("-")[2] == f"{second.context.span_id:016x}"


def test_an_engine_that_is_stood_in_for_is_two_inferences_in_one_stage(
    traced: Traced, photo: bytes, until: Callable[..., None]
) -> None:
    traced.rig.engines_behave("missing")
    with http(traced.app) as client:
        told = timings(client.post("/v1/matte", content=photo))
    traced.request(until)
    first, second = traced.spans("triton.infer")
    assert (first.status.is_ok, second.status.is_ok) == (False, True)
    assert first.attributes is not None
    assert first.attributes["error.type"] == "TritonUnreachable"
    assert seconds(first) + seconds(second) == pytest.approx(told["infer"], abs=2e-6)
    assert traced.rig.count("blurfleet_request_seconds_count", stage="infer") == 1


def test_what_a_client_did_wrong_is_no_error_of_the_gateway_and_its_answer_names_the_trace(
    traced: Traced, until: Callable[..., None]
) -> None:
    with http(traced.app) as client:
        response = client.post("/v1/matte", content=b"GIF89a", headers={"traceparent": f"00-{TRACE}-{PARENT}-01"})
    assert response.status_code == 415
    assert response.headers["x-blurfleet-trace"] == TRACE
    request = traced.request(until)
    assert request.attributes is not None
    assert request.attributes["error.type"] == response.json()["reason"] == "UnsupportedImage"
    assert request.attributes["http.response.status_code"] == 415
    assert request.status.is_ok
    [decode] = traced.spans("blur.decode")
    assert decode.attributes is not None
    assert (decode.attributes["error.type"], decode.status.is_ok) == ("UnsupportedImage", True)
    assert traced.rig.count("blurfleet_request_seconds_count", stage="decode") == 0  # figures are of answered requests


def test_an_answer_that_failed_is_an_error_with_its_reason(
    traced: Traced, photo: bytes, until: Callable[..., None]
) -> None:
    traced.rig.engines_behave("missing", "missing")
    with http(traced.app) as client:
        assert client.post("/v1/matte", content=photo).status_code == 503
    request = traced.request(until)
    assert request.attributes is not None
    assert (request.attributes["error.type"], request.status.is_ok) == ("TritonUnreachable", False)


def test_a_defect_is_told_with_its_trace_in_answer_span_and_log(
    traced: Traced, photo: bytes, until: Callable[..., None]
) -> None:
    def broken(tensor: Any) -> Any:
        raise ZeroDivisionError

    traced.rig.engines.behaviours[PRIMARY.engine] = broken
    with logged() as lines, http(traced.app) as client:
        response = client.post("/v1/matte", content=photo, headers={"traceparent": f"00-{TRACE}-{PARENT}-01"})
    assert (response.status_code, response.headers["x-blurfleet-trace"]) == (500, TRACE)
    assert [(line["event"], line["trace_id"]) for line in lines] == [("request.unexpected", TRACE)]
    request = traced.request(until)
    assert request.attributes is not None
    assert (request.attributes["error.type"], request.status.is_ok) == ("ZeroDivisionError", False)


def test_a_request_over_grpc_is_traced_alike(traced: Traced) -> None:
    tensor = to_tensor(np.full((SIZE, SIZE, 3), 90, np.uint8) + np.arange(3, dtype=np.uint8) * 40, contract_at(SIZE))
    wanted = triton.InferInput("image", list(tensor.shape), "FP32")
    wanted.set_data_from_numpy(tensor)
    door = GrpcDoor(traced.exchange, Readiness(traced.rig.gateway, cache_s=60), workers=2, waiting=2)
    address = f"127.0.0.1:{door.listen('127.0.0.1', 0)}"
    headers = {"x-blurfleet-contract": contract_hash(contract_at(SIZE)), "traceparent": f"00-{TRACE}-{PARENT}-01"}
    try:
        with triton.InferenceServerClient(address) as client:
            answer = client.infer("bokeh", [wanted], headers=headers).get_response()
    finally:
        door.stop(5)
        traced.exchange.workers.close()
    assert answer.parameters["x-blurfleet-trace"].string_param == TRACE
    [request] = traced.spans("blur.request")
    assert request.attributes is not None
    assert (request.attributes["rpc.system"], request.attributes["blurfleet.engine"]) == ("grpc", PRIMARY.engine)
    assert {span.name for span in traced.spans()} >= {"blur.queue", "blur.contract", "triton.infer", "blur.check"}
    [asked] = traced.spans("triton.infer")
    assert asked.context is not None
    assert traced.rig.engines.headers == [{"traceparent": f"00-{TRACE}-{asked.context.span_id:016x}-01"}]
    for stage in ("queue", "decode", "contract", "infer", "check", "encode", "total"):
        assert traced.rig.count("blurfleet_request_seconds_count", stage=stage) == 1


def test_probes_metrics_and_the_contract_are_not_traced(traced: Traced) -> None:
    with http(traced.app) as client:
        for path in ("/healthz", "/readyz", "/metrics", "/v1/contract"):
            assert client.get(path).status_code == 200
    assert traced.spans() == []


def test_no_span_holds_a_picture_a_path_or_a_header_of_the_client(
    traced: Traced, photo: bytes, until: Callable[..., None]
) -> None:
    secret = {"authorization": "Bearer hush-hush", "x-blurfleet-stream": "alices-camera", "cookie": "hush-hush"}
    with http(traced.app) as client:
        client.post("/v1/blur?radius=7&format=png", content=photo, headers=secret)
    traced.request(until)
    said = "".join(span.to_json() for span in traced.spans())
    assert "hush" not in said
    assert "alice" not in said
    assert "radius" not in said
    assert len(said) < 30_000


def test_every_line_of_a_failing_request_names_its_trace_and_other_requests_lines_do_not(
    traced: Traced, photo: bytes
) -> None:
    traced.rig.engines_behave("missing", "missing")
    with logged() as lines, http(traced.app) as client:
        client.post("/v1/matte", content=photo, headers={"traceparent": f"00-{TRACE}-{PARENT}-01"})
        other = client.post("/v1/matte", content=photo).headers["x-blurfleet-trace"]
        structlog.get_logger().info("between requests")
    assert [(line["event"], line.get("trace_id")) for line in lines] == [
        ("request.failed", TRACE),
        ("request.failed", other),
        ("between requests", None),
    ]
