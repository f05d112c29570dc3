"""Spans on their way to a collector over OTLP/HTTP: in batches, off the request's path, lost rather than waited for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Literal

import structlog
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import Tracer

from blurfleet import __version__

Outcome = Literal["Exported", "Failed", "Dropped"]
Count = Callable[[Outcome, int], None]
OUTCOMES: tuple[Outcome, ...] = ("Exported", "Failed", "Dropped")
QUEUED_SPANS = 4096  # some 500 requests of eight spans, 12 MB; more are dropped and counted
_BATCH_SPANS = 512
_EXPORT_S = 2.0  # a collector that takes longer loses the batch
_DELAY_MS = 500.0  # as Triton's own exporter is started
_ATTRIBUTE_CHARACTERS = 256


class CollectorSpans:
    """A tracer whose spans go to the collector at `url`, and the end of it.

    `share` (0 to 1) of the traces that begin here are sampled; a trace that came with a request keeps its caller's
    decision. `count` hears what became of spans; it is called from any thread and must not raise.
    """

    def __init__(self, url: str, *, service: str, node: str, share: float, count: Count) -> None:
        exporter = _Counted(OTLPSpanExporter(endpoint=url, timeout=_EXPORT_S), url, count)
        resource = {"service.name": service, "service.version": __version__, "service.instance.id": node}
        self._provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(share)),
            resource=Resource.create(resource),
            shutdown_on_exit=False,  # `close` does it, within a limit
            span_limits=SpanLimits(max_span_attribute_length=_ATTRIBUTE_CHARACTERS),
        )
        self._provider.add_span_processor(_Bounded(exporter, count, QUEUED_SPANS))

    @property
    def tracer(self) -> Tracer:
        """Return what opens spans; safe for many threads."""
        return self._provider.get_tracer("blurfleet", __version__)

    def close(self, limit_s: float = 2.0) -> bool:
        """Send what is queued, for at most `limit_s` seconds; tell whether it is done. Later spans are dropped."""
        closing = threading.Thread(target=self._provider.shutdown, name="spans-close", daemon=True)
        closing.start()
        closing.join(limit_s)
        return not closing.is_alive()


class _Counted(SpanExporter):
    """Counts what its exporter did, and says once when a collector is lost and when it is back."""

    def __init__(self, exporter: SpanExporter, url: str, count: Count) -> None:
        self._exporter = exporter
        self._count = count
        self._lost = False
        self._log = structlog.get_logger("blurfleet.spans").bind(collector=url)
        self.on_taken: Callable[[int], None] = lambda _: None

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        try:
            result = self._exporter.export(spans)
        finally:
            self.on_taken(len(spans))
        lost = result is not SpanExportResult.SUCCESS
        self._count("Failed" if lost else "Exported", len(spans))
        if lost is not self._lost:
            self._lost = lost
            self._log.warning("spans.lost" if lost else "spans.back", spans=len(spans))
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        return self._exporter.force_flush(timeout_millis)


class _Bounded(BatchSpanProcessor):
    """A batch processor that never overflows: what is too much is counted and left."""

    def __init__(self, exporter: _Counted, count: Count, limit: int) -> None:
        super().__init__(
            exporter, max_queue_size=limit, schedule_delay_millis=_DELAY_MS, max_export_batch_size=_BATCH_SPANS
        )
        self._count = count
        self._limit = limit
        self._lock = threading.Lock()
        self._held = 0
        exporter.on_taken = self._taken

    def on_end(self, span: ReadableSpan) -> None:
        if span.context is None or not span.context.trace_flags.sampled:
            return
        with self._lock:
            full = self._held >= self._limit
            self._held += not full
        if full:
            self._count("Dropped", 1)
        else:
            super().on_end(span)

    def _taken(self, spans: int) -> None:
        with self._lock:
            self._held -= spans
