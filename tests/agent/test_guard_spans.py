"""The guard's spans: which requests they link to, what they say, and that nothing depends on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.agent.standins import A, B
from tests.agent.test_guarding import FLAT, NAN, SCENE, STRIPED, OneNode, watch

from blurfleet.errors import EngineError
from blurfleet.reasons import Reason
from blurfleet_agent.guard_spans import GuardSpans

TRACES = ["4bf92f3577b34da6a3ce929d0e0e4736", "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331b7ad6b7169203331"]
SPANS = ["00f067aa0ba902b7", "b7ad6b7169203331", "00f067aa0ba902b8"]


@pytest.fixture
def kept() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def node(tmp_path: Path, kept: InMemorySpanExporter) -> OneNode:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(kept))
    return OneNode(tmp_path, watch(), GuardSpans(provider.get_tracer("test")))


def named(kept: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in kept.get_finished_spans() if span.name == name]


def links(span: ReadableSpan) -> list[tuple[str, str]]:
    return [(f"{k.context.trace_id:032x}", f"{k.context.span_id:016x}") for k in span.links]


def test_a_verdict_links_to_its_request_and_says_figures_and_reason(node: OneNode, kept: InMemorySpanExporter) -> None:
    node.frame(SCENE, trace_id=TRACES[0], span_id=SPANS[0])
    [span] = named(kept, "guard.verdict")
    assert links(span) == [(TRACES[0], SPANS[0])]
    assert span.parent is None
    assert span.context is not None
    assert f"{span.context.trace_id:032x}" != TRACES[0]
    said = dict(span.attributes or {})
    assert said["blurfleet.figure.MaxAbsError"] == 0.0
    assert {k: v for k, v in said.items() if "figure" not in k} == {
        "blurfleet.model": "bokeh",
        "blurfleet.digest": A.digest,
        "blurfleet.frame": "cam#1",
        "blurfleet.source": "Live",
        "blurfleet.verdict": "Pass",
        "blurfleet.reason": "WithinLimits",
    }


def test_a_swap_links_to_every_request_that_led_to_it(node: OneNode, kept: InMemorySpanExporter) -> None:
    node.frame(SCENE, trace_id="1" * 32, span_id="1" * 16)
    for trace, span in zip(TRACES, SPANS, strict=True):
        node.frame(STRIPED, trace_id=trace, span_id=span)
    assert node.serving() == (B.engine, 2)
    [swap] = named(kept, "guard.swap")
    assert links(swap) == list(zip(TRACES, SPANS, strict=True))
    said: dict[str, Any] = dict(swap.attributes or {})
    assert said.pop("blurfleet.swap_ms") >= 0.0
    assert said == {
        "blurfleet.model": "bokeh",
        "blurfleet.reason": "DEERExceeded",
        "blurfleet.digest": B.digest,
        "blurfleet.engine": B.engine,
        "blurfleet.role": "Fallback",
        "blurfleet.instead_of": A.digest,
        "blurfleet.epoch": 2,
    }
    verdicts = [dict(span.attributes or {})["blurfleet.verdict"] for span in named(kept, "guard.verdict")]
    assert verdicts == ["Pass", "Fail", "Fail", "Fail"]


def test_requests_that_are_not_traced_make_no_verdict_span_and_their_swap_still_shows(
    node: OneNode, kept: InMemorySpanExporter
) -> None:
    node.frame(SCENE, trace_id=TRACES[0])
    node.frame(NAN, trace_id=TRACES[1], span_id="not hex")
    assert node.serving() == (B.engine, 2)
    assert named(kept, "guard.verdict") == []
    [swap] = named(kept, "guard.swap")
    assert (links(swap), dict(swap.attributes or {})["blurfleet.reason"]) == ([], "NonFiniteOutput")


def test_a_figure_that_is_no_number_is_a_word(node: OneNode, kept: InMemorySpanExporter) -> None:
    node.answers[B.engine] = FLAT  # edges in the engine's matte alone
    node.frame(SCENE, trace_id=TRACES[0], span_id=SPANS[0])
    [span] = named(kept, "guard.verdict")
    assert dict(span.attributes or {})["blurfleet.figure.DEER"] == "+Inf"


def test_a_swap_that_could_not_be_done_is_an_error_with_its_reason(
    node: OneNode, kept: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> None:
        raise EngineError(Reason.TRITON_UNREACHABLE, "gone")

    monkeypatch.setattr(node.swapper, "swap", refuse)
    node.frame(NAN, trace_id=TRACES[0], span_id=SPANS[0])
    assert node.serving() == (A.engine, 1)
    swap = named(kept, "guard.swap")[0]
    assert (dict(swap.attributes or {})["error.type"], swap.status.is_ok) == ("TritonUnreachable", False)
