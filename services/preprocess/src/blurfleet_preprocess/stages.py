"""Where one request's time goes: each stage is measured once, and the one figure goes to span, metric and header."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext

from opentelemetry.trace import NonRecordingSpan, NoOpTracer, Span, SpanContext, SpanKind, StatusCode, Tracer, use_span

from blurfleet.errors import BlurfleetError, InvalidInput
from blurfleet_preprocess.metrics import GatewayMetrics, Stage

Attributes = Mapping[str, str | int | bool]
_SPANS: dict[Stage, str] = {"infer": "triton.infer"}  # what another process does is named after it
_ELSEWHERE = frozenset(_SPANS.values())


class Stages:
    """One request's span and stages. Belongs to whichever thread works on the request; without a span none is opened.

    `seconds` are by stage, in the order of their first begin; a stage that ran twice has the sum.
    """

    def __init__(self, span: Span | None = None, tracer: Tracer | None = None) -> None:
        self.span = span if span is not None else NonRecordingSpan(unsampled_context())
        self.seconds: dict[Stage, float] = {}
        self._tracer = tracer or NoOpTracer()

    @property
    def trace_id(self) -> str:
        """Return the trace's id, 32 hex digits: there is one whether or not anything is recorded."""
        return f"{self.span.get_span_context().trace_id:032x}"

    @property
    def span_id(self) -> str:
        """Return the id of the request's span, 16 hex digits, empty where its trace is not sampled."""
        context = self.span.get_span_context()
        return f"{context.span_id:016x}" if context.trace_flags.sampled else ""

    @contextmanager
    def timed(self, stage: Stage, attributes: Attributes | None = None) -> Iterator[Span]:
        """Measure a stage, and open a span around it that ends when the figure says."""
        began_ns, began = time.time_ns(), time.perf_counter_ns()
        span = self._opened(_SPANS.get(stage, f"blur.{stage}"), attributes, began_ns)
        try:
            with _within(span) if span is not self.span else nullcontext():
                yield span
        finally:
            took = time.perf_counter_ns() - began
            self.seconds[stage] = self.seconds.get(stage, 0.0) + took / 1e9
            if span is not self.span:
                span.end(began_ns + took)

    @contextmanager
    def within(self, name: str, attributes: Attributes | None = None) -> Iterator[Span]:
        """Open a span for a part of a stage; its time is the stage's."""
        span = self._opened(name, attributes, time.time_ns())
        try:
            with _within(span) if span is not self.span else nullcontext():
                yield span
        finally:
            if span is not self.span:
                span.end()

    def waited(self, stage: Stage, seconds: float) -> None:
        """Note a stage that has just ended and took `seconds`."""
        self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds
        now = time.time_ns()
        span = self._opened(f"blur.{stage}", None, now - round(seconds * 1e9))
        if span is not self.span:
            span.end(now)

    def _opened(self, name: str, attributes: Attributes | None, at_ns: int) -> Span:
        """Return a new span, or the request's own where nothing is recorded: most requests of a busy node."""
        if not self.span.is_recording():
            return self.span
        kind = SpanKind.CLIENT if name in _ELSEWHERE else SpanKind.INTERNAL
        return self._tracer.start_span(name, attributes=attributes, kind=kind, start_time=at_ns)

    def observe(self, metrics: GatewayMetrics) -> None:
        """Count the stages of a request that was answered."""
        for stage, seconds in self.seconds.items():
            metrics.seconds.labels(stage).observe(seconds)

    def header(self) -> str:
        """Return `Server-Timing`: milliseconds by stage."""
        return ", ".join(f"{stage};dur={1000 * seconds:.3f}" for stage, seconds in self.seconds.items())


def unsampled_context() -> SpanContext:
    """Return a new trace that nobody records: it gives logs and answers an id to be found by."""
    return SpanContext(trace_id=secrets.randbits(128) or 1, span_id=secrets.randbits(64) or 1, is_remote=False)


def failed(span: Span, error: BaseException) -> None:
    """Write `error`'s reason on a span; what the client did wrong is not the gateway's error."""
    reason = error.reason.value if isinstance(error, BlurfleetError) else type(error).__name__
    span.set_attribute("error.type", reason)
    if not isinstance(error, InvalidInput):
        span.set_status(StatusCode.ERROR, reason)


@contextmanager
def _within(span: Span) -> Iterator[None]:
    with use_span(span, record_exception=False, set_status_on_exception=False):
        try:
            yield
        except BaseException as error:
            failed(span, error)
            raise
