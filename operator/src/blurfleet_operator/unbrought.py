"""Changes that a listing found and no watch had brought: a watch that stays behind is dead, though nothing says so."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

Key = tuple[str, str]

# A watch whose connection died is noticed after 70 s without a bookmark (kopf's own limit) and then catches up.
BROUGHT_WITHIN_S = 120.0


class Unbrought:
    """What listings found, by kind, until the watch of that kind brings it too. Any thread may call it."""

    def __init__(self, *, within_s: float = BROUGHT_WITHIN_S) -> None:
        self._within_s = within_s
        self._lock = threading.Lock()
        self._found: dict[tuple[str, Key], tuple[int, float]] = {}

    def forget(self) -> None:
        """Begin anew: nobody watched until now."""
        with self._lock:
            self._found.clear()

    def found(self, kind: str, versions: Mapping[Key, int], now: float) -> None:
        """Note that a listing of `kind` brought what no watch had, at `now` (monotonic seconds)."""
        with self._lock:
            for key, version in versions.items():
                since = self._found.get((kind, key), (0, now))[1]
                self._found[(kind, key)] = (version, since)

    def brought(self, kind: str, body: Mapping[str, Any]) -> None:
        """Note that the watch of `kind` brought an object; also an older version shows that it lives."""
        meta = body["metadata"]
        key = (str(meta.get("namespace", "")), str(meta["name"]))
        with self._lock:
            self._found.pop((kind, key), None)

    def overdue(self, now: float, stands: Callable[[str, Key], bool]) -> dict[str, int]:
        """Return by kind how many objects the watch should have brought by now.

        What does not stand any more was deleted meanwhile: a watch that begins anew never tells of it.
        """
        with self._lock:
            late = [k for k, (_, since) in self._found.items() if now - since > self._within_s]
        counts: dict[str, int] = {}
        for kind, key in late:
            if stands(kind, key):
                counts[kind] = counts.get(kind, 0) + 1
            else:
                with self._lock:
                    self._found.pop((kind, key), None)
        return counts
