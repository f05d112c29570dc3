"""W3C trace context: which `traceparent` headers are worth passing on."""

from __future__ import annotations

import re
from dataclasses import dataclass

_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)


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
