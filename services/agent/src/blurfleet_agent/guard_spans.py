"""What the guard decided, as spans that link to the requests it decided by."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from opentelemetry.context import Context
from opentelemetry.trace import Link, NoOpTracer, Span, StatusCode, Tracer

from blurfleet.check import finite_json
from blurfleet.errors import BlurfleetError
from blurfleet.serving.propagation import remote_parent
from blurfleet_agent.exporter import Metrics
from blurfleet_agent.frame_figures import Compared
from blurfleet_agent.settings import AgentSettings

Attributes = Mapping[str, str | int | float | bool]


class GuardSpans:
    """Opens the guard's spans, each in a trace of its own: a verdict may come when the request's is long complete.

    A verdict is traced where its request is; a swap always. The default records nothing.
    """

    def __init__(self, tracer: Tracer | None = None, close: Callable[[], object] = lambda: None) -> None:
        self._tracer = tracer or NoOpTracer()
        self.close = close

    def verdict(self, found: Compared, attributes: Attributes) -> None:
        """Write the verdict on one frame, which took `found.took_s` seconds until now."""
        links = links_to((found,))
        if not links:
            return
        sample, now = found.sample, time.time_ns()
        figures = {f"blurfleet.figure.{n}": _plain(v) for n, v in sample.figures.items() if v is not None}
        span = self._tracer.start_span(
            "guard.verdict",
            Context(),
            attributes={
                "blurfleet.digest": sample.digest,
                "blurfleet.frame": f"{sample.stream}#{sample.frame}",
                **figures,
                **attributes,
            },
            links=links,
            start_time=now - round(found.took_s * 1e9),
        )
        span.end(now)

    @contextmanager
    def swap(self, frames: Iterable[Compared], attributes: Attributes) -> Iterator[Span]:
        """Open `guard.swap` around a swap that `frames` led to."""
        span = self._tracer.start_span("guard.swap", Context(), attributes=attributes, links=links_to(frames))
        try:
            yield span
        except BlurfleetError as error:
            span.set_attribute("error.type", error.reason.value)
            span.set_status(StatusCode.ERROR, error.reason.value)
            raise
        finally:
            span.end()


def links_to(frames: Iterable[Compared]) -> list[Link]:
    """Return a link to the request's span of every frame whose trace is sampled."""
    parents = (remote_parent({"traceparent": f"00-{f.sample.trace}-{f.span_id}-01"}) for f in frames)
    return [Link(parent) for parent in parents if parent is not None]


def guard_spans_to(settings: AgentSettings, metrics: Metrics) -> GuardSpans:
    """Return the guard's spans as the settings ask for them; `close` sends what is left, within a limit."""
    if not settings.trace_url:
        return GuardSpans()
    from blurfleet.serving.spans import OUTCOMES, CollectorSpans  # half a second of imports, where spans are sent

    for outcome in OUTCOMES:
        metrics.spans(outcome, 0)
    spans = CollectorSpans(
        settings.trace_url, service="blurfleet-agent", node=settings.node, share=1.0, count=metrics.spans
    )
    return GuardSpans(spans.tracer, spans.close)


def _plain(value: float) -> str | float:
    """Return a figure as collectors can keep it: NaN and infinities are words."""
    shown = finite_json(value)
    return shown if isinstance(shown, str) else value
