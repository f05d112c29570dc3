"""The event log of a folder store: JSON lines, bounded, repeats merged at reading."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from blurfleet.reasons import Reason
from blurfleet.store.port import Event, Ref

_MAX_BYTES = 1 << 20
_KEPT_LINES = 2000


class EventLog:
    """Appends events under the store's lock; keeps the newest when the file outgrows 1 MiB."""

    def __init__(self, path: Path, lock: Callable[[], AbstractContextManager[None]]) -> None:
        self._path = path
        self._lock = lock

    def add(self, event: Event) -> None:
        """Append `event`, unless the newest of its object says the same or its transition was said. Raises OSError."""
        with self._lock():
            said = [e for e in self._lines() if e.involved == event.involved]
            if any(event.repeats(e) for e in said):
                return
            last = said[-1] if said else None
            if last is not None and (last.reason, last.message) == (event.reason, event.message):
                return
            with self._path.open("ab") as handle:
                handle.write(_line(event))
            if self._path.stat().st_size > _MAX_BYTES:
                kept = self._lines()[-_KEPT_LINES:]
                self._path.write_bytes(b"".join(map(_line, kept)))

    def read(self) -> list[Event]:
        """Return the kept events in order of time."""
        return sorted(self._lines(), key=lambda e: e.at)

    def _lines(self) -> list[Event]:
        try:
            raw = self._path.read_bytes()
        except FileNotFoundError:
            return []
        events = (_event(line) for line in raw.splitlines())
        return [e for e in events if e is not None]


def _line(event: Event) -> bytes:
    body = {
        "kind": event.involved.kind,
        "namespace": event.involved.namespace,
        "name": event.involved.name,
        "reason": event.reason.value,
        "message": event.message,
        "type": event.type,
        "at": event.at,
        "source": event.source,
        "transition": event.transition,
    }
    return json.dumps(body).encode() + b"\n"


def _event(line: bytes) -> Event | None:
    # A torn or foreign line is skipped: events are a courtesy, never the truth.
    try:
        body = json.loads(line)
        return Event(
            involved=Ref(kind=body["kind"], name=body["name"], namespace=body["namespace"]),
            reason=Reason(body["reason"]),
            message=body["message"],
            type=body["type"],
            at=float(body["at"]),
            source=body["source"],
            transition=body.get("transition", ""),
        )
    except (ValueError, KeyError, TypeError):
        return None
