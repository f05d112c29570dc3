"""W3C trace context as text: which `traceparent` headers are valid, and where spans may be sent."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator

_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)
_UNFIT = re.compile(r"""[\s"'\\]""")  # it goes into command lines and supervisors' files


def collector(value: str) -> str:
    """Return a collector's address as it is, or empty. Raises ValueError for what is neither."""
    parts = urlsplit(value)
    if value and (parts.scheme not in ("http", "https") or not parts.hostname or _UNFIT.search(value)):
        raise ValueError("not an http or https address, such as http://collector:4318/v1/traces")
    if "@" in parts.netloc:
        raise ValueError(
            "no place for credentials: they would be seen in process lists; see OTEL_EXPORTER_OTLP_HEADERS"
        )
    return value


TraceUrl = Annotated[str, AfterValidator(collector)]
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
