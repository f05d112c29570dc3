"""Spans on their way to a collector: all that fit arrive, what does not is counted, nobody waits for it."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from tests.tracing.collector import Collector

from blurfleet.serving import spans as module
from blurfleet.serving.spans import CollectorSpans

CLOSE_S = 1.0


@pytest.fixture
def counted() -> Counter[str]:
    return Counter()


@pytest.fixture
def spans(collector: Collector, counted: Counter[str]) -> Iterator[CollectorSpans]:
    made = exporting(collector.url, counted)
    yield made
    made.close(CLOSE_S)


def exporting(url: str, counted: Counter[str]) -> CollectorSpans:
    lock = threading.Lock()

    def count(outcome: str, spans: int) -> None:
        with lock:
            counted[outcome] += spans

    return CollectorSpans(url, service="gateway", node="orin-0", share=1.0, count=count)


def test_what_ends_arrives_and_is_counted(
    spans: CollectorSpans, collector: Collector, counted: Counter[str], until: Callable[..., None]
) -> None:
    for _ in range(3):
        with spans.tracer.start_as_current_span("one", attributes={"text": "x" * 1000}):
            pass
    until(lambda: counted["Exported"] == 3, what="the export")
    assert [(s.service, s.name, len(s.attributes["text"])) for s in collector.spans] == [("gateway", "one", 256)] * 3
    assert counted == {"Exported": 3}


def test_a_slow_collector_slows_nobody_and_what_does_not_fit_is_counted(
    spans: CollectorSpans, collector: Collector, counted: Counter[str]
) -> None:
    collector.slow = threading.Event()
    began, sent = time.perf_counter(), 2 * module.QUEUED_SPANS
    for _ in range(sent):
        spans.tracer.start_span("one").end()
    took = time.perf_counter() - began
    # Some batches may have been taken and given up meanwhile; nothing is ever held beyond the queue.
    assert counted["Dropped"] >= sent - module.QUEUED_SPANS - counted["Failed"] - counted["Exported"] > 0
    assert took / sent < 0.002  # a request has eight spans; it waits 2 s where one waits for its collector
    began = time.perf_counter()
    assert spans.close(CLOSE_S) is False
    assert time.perf_counter() - began < CLOSE_S + 5.0


def test_a_collector_that_is_ill_or_gone_costs_its_spans_and_is_used_again_when_it_is_back(
    spans: CollectorSpans, collector: Collector, counted: Counter[str], until: Callable[..., None]
) -> None:
    collector.ill = True
    spans.tracer.start_span("lost").end()
    until(lambda: counted["Failed"] == 1, what="the failure")
    collector.ill = False
    spans.tracer.start_span("found").end()
    until(lambda: counted["Exported"] == 1, what="the export")
    assert [s.name for s in collector.spans] == ["found"]


def test_a_stop_sends_what_is_queued(collector: Collector, counted: Counter[str]) -> None:
    spans = exporting(collector.url, counted)
    for _ in range(700):
        spans.tracer.start_span("one").end()
    assert spans.close(10.0) is True
    assert (len(collector.spans), counted) == (700, {"Exported": 700})
    spans.tracer.start_span("late").end()
    assert len(collector.spans) == 700


def test_without_anybody_at_the_address_a_stop_is_still_bounded(counted: Counter[str]) -> None:
    spans = exporting("http://127.0.0.1:9/v1/traces", counted)
    spans.tracer.start_span("one").end()
    began = time.perf_counter()
    spans.close(CLOSE_S)
    assert time.perf_counter() - began < CLOSE_S + 5.0
