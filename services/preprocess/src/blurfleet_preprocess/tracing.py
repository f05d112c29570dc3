"""Every request is a span, in the trace it came with or in a new one; its answer and its log lines name the trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import structlog
from opentelemetry.context import Context
from opentelemetry.trace import (
    NonRecordingSpan,
    NoOpTracer,
    Span,
    SpanKind,
    StatusCode,
    Tracer,
    set_span_in_context,
    use_span,
)
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from blurfleet.serving.propagation import remote_parent
from blurfleet_preprocess.metrics import GatewayMetrics
from blurfleet_preprocess.settings import GatewaySettings
from blurfleet_preprocess.stages import Attributes, Stages, failed, unsampled_context

TRACE_HEADER = "x-blurfleet-trace"
_STAGES = "blurfleet.stages"
_SERVER_ERROR = 500


@dataclass(frozen=True, kw_only=True)
class Tracing:
    """Opens the span of each request. The default records nothing; ids are given out and passed on all the same."""

    tracer: Tracer = field(default_factory=NoOpTracer)
    close: Callable[[], object] = lambda: None

    @contextmanager
    def request(self, headers: Mapping[str, str], attributes: Attributes | None = None) -> Iterator[Stages]:
        """Open `blur.request` under the parent in (lower-case) `headers` or metadata, for a door of any transport.

        It is the current span of this context, and its id is on every log line within. A parent that breaks the rules
        begins a new trace.
        """
        parent = remote_parent(headers)
        around = set_span_in_context(NonRecordingSpan(parent), Context()) if parent is not None else Context()
        span = self.tracer.start_span("blur.request", around, SpanKind.SERVER, attributes)
        if not span.get_span_context().is_valid:
            span = NonRecordingSpan(unsampled_context())
        stages = Stages(span, self.tracer)
        with (
            use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False),
            structlog.contextvars.bound_contextvars(trace_id=stages.trace_id),
        ):
            try:
                yield stages
            except BaseException as error:
                failed(span, error)
                raise


def tracing_to(settings: GatewaySettings, metrics: GatewayMetrics) -> Tracing:
    """Return the tracing that the settings ask for; `close` sends what is left, within a limit."""
    if not settings.trace_url:
        return Tracing()
    from blurfleet.serving.spans import OUTCOMES, CollectorSpans  # half a second of imports, where spans are sent

    for outcome in OUTCOMES:
        metrics.spans.labels(outcome)
    spans = CollectorSpans(
        settings.trace_url,
        service="blurfleet-gateway",
        node=settings.node,
        share=settings.trace_share,
        count=lambda outcome, spans: metrics.spans.labels(outcome).inc(spans),
    )
    return Tracing(tracer=spans.tracer, close=spans.close)


class TracedRequests:
    """ASGI middleware: what is POSTed is traced, and what is answered names its trace. Probes and pages are not."""

    def __init__(self, app: ASGIApp, tracing: Tracing) -> None:
        self._app = app
        self._tracing = tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Open the request's span and hand the request on."""
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        try:
            with self._tracing.request(_headers(scope), {"http.request.method": "POST"}) as stages:
                inner = {**scope, _STAGES: stages}
                await self._app(inner, receive, _named(send, inner, stages))
        except Exception:
            # What a request that broke has to say is said further out, in its own task, which ends with it.
            structlog.contextvars.bind_contextvars(trace_id=stages.trace_id)
            raise


def stages_of(scope: MutableMapping[str, Any]) -> Stages:
    """Return the stages of the request in an ASGI scope."""
    found = scope.get(_STAGES)
    return found if isinstance(found, Stages) else Stages()


def _headers(scope: Scope) -> Mapping[str, str]:
    """Return the request's headers; several `traceparent` make none, several `tracestate` are one list (W3C)."""
    headers = Headers(scope=scope)
    found = {"tracestate": ",".join(headers.getlist("tracestate"))}
    parents = headers.getlist("traceparent")
    return found | {"traceparent": parents[0]} if len(parents) == 1 else {}


def _named(send: Send, scope: Scope, stages: Stages) -> Send:
    async def answer(message: Message) -> None:
        if message["type"] == "http.response.start":
            _answered(stages.span, scope, message["status"])
            MutableHeaders(scope=message).setdefault(TRACE_HEADER, stages.trace_id)
        await send(message)

    return answer


def _answered(span: Span, scope: Scope, status: int) -> None:
    span.set_attribute("http.response.status_code", status)
    route = getattr(scope.get("route"), "path", "")
    if route:
        span.set_attribute("http.route", route)
    if status >= _SERVER_ERROR:
        span.set_status(StatusCode.ERROR)
