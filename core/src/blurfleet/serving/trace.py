"""W3C trace context: which `traceparent` and `tracestate` headers are continued, and what is sent on."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import urlsplit

from opentelemetry.trace import SpanContext, TraceFlags, TraceState
from pydantic import AfterValidator

_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)
MAX_STATE_CHARACTERS = 512  # what W3C asks every party to be able to pass on; longer lists are dropped whole


def _collector(value: str) -> str:
    parts = urlsplit(value)
    if value and (parts.scheme not in ("http", "https") or not parts.hostname):
        raise ValueError("not an http or https address, such as http://collector:4318/v1/traces")
    return value


TraceUrl = Annotated[str, AfterValidator(_collector)]
"""A collector's OTLP/HTTP address for traces, path included; empty for none."""


@dataclass(frozen=True, kw_only=True)
class TraceParent:
    """A valid parent: 32 and 16 hex digits, and whether the caller sampled it."""

    trace_id: str
    parent_id: str
    flags: str
    sampled: bool

    @property
    def header(self) -> str:
        """Return the header to send on, always in version 00, the one we speak."""
        return f"00-{self.trace_id}-{self.parent_id}-{'01' if self.sampled else '00'}"


def parse_traceparent(value: str | None) -> TraceParent | None:
    """Return the parent in a `traceparent` header, None where it is absent or breaks W3C Trace Context level 1.

    Unknown versions are read as far as version 00 goes; `ff`, all-zero ids, upper-case hex and anything after a
    version 00 header are invalid. Blanks around the value are allowed, as in any HTTP header.
    """
    match = _FORM.fullmatch((value or "").strip(" \t"))
    if match is None:
        return None
    version, trace_id, parent_id, flags, rest = match.groups()
    if version == "ff" or (version == "00" and rest) or not trace_id.strip("0") or not parent_id.strip("0"):
        return None
    return TraceParent(trace_id=trace_id, parent_id=parent_id, flags=flags, sampled=bool(int(flags, 16) & 1))


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
