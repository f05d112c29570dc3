"""Trace context between processes: the span that a request continues, and what a server behind us continues of it."""

from __future__ import annotations

from collections.abc import Mapping

from opentelemetry.trace import SpanContext, TraceFlags, TraceState

from blurfleet.serving.trace import parse_traceparent

MAX_STATE_CHARACTERS = 512  # what W3C asks every party to be able to pass on; longer lists are dropped whole


def remote_parent(headers: Mapping[str, str]) -> SpanContext | None:
    """Return the span that (lower-case) `headers` or gRPC metadata continue, None where a new trace begins.

    A `tracestate` that breaks the rules is dropped, and the parent kept.
    """
    parent = parse_traceparent(headers.get("traceparent"))
    if parent is None:
        return None
    state = headers.get("tracestate", "")
    return SpanContext(
        trace_id=int(parent.trace_id, 16),
        span_id=int(parent.parent_id, 16),
        is_remote=True,
        trace_flags=TraceFlags(TraceFlags.SAMPLED if parent.sampled else TraceFlags.DEFAULT),
        trace_state=TraceState.from_header([state] if len(state) <= MAX_STATE_CHARACTERS else []),
    )


def forwarded(context: SpanContext) -> dict[str, str]:
    """Return the gRPC metadata (lower-case keys) that make a server's spans children of `context`.

    Empty where the trace is not sampled: Triton traces every request that carries a context, whatever its flags say.
    """
    if not context.is_valid or not context.trace_flags.sampled:
        return {}
    headers = {"traceparent": f"00-{context.trace_id:032x}-{context.span_id:016x}-01"}
    return headers | ({"tracestate": context.trace_state.to_header()} if context.trace_state else {})
