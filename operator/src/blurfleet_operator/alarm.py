"""What no writing may delay: a node that says that an engine is bad."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from blurfleet.answers import BAD_NEWS


class Alarm:
    """Rings when a node reports a trip or a candidate's failure that it did not report before. Safe for threads."""

    def __init__(self) -> None:
        self._said: dict[str, frozenset[str]] = {}
        self._bell = threading.Event()

    def heard(self, body: Mapping[str, Any]) -> None:
        """Take a NodeEngine as the server sends it."""
        name, said = str(body["metadata"]["name"]), bad_news(body)
        before = self._said.get(name, frozenset())
        self._said[name] = said
        if said - before:
            self._bell.set()

    def ring(self) -> None:
        """Ring for another reason."""
        self._bell.set()

    def hush(self) -> None:
        """Be still until something new is heard. What was heard so far is in the store already."""
        self._bell.clear()

    def rings(self) -> bool:
        """Tell whether it rings."""
        return self._bell.is_set()

    def wait(self, timeout_s: float) -> None:
        """Return when it rings, or after `timeout_s` seconds."""
        self._bell.wait(timeout_s)


def bad_news(body: Mapping[str, Any]) -> frozenset[str]:
    """Return what a NodeEngine's status says is bad, one word for each trip and each failed candidate. Pure."""
    found = set()
    for model in (body.get("status") or {}).get("models") or ():
        trip, candidate = model.get("lastTrip"), model.get("candidate")
        if trip:
            found.add(f"{model.get('name')} trip {trip.get('digest')} {trip.get('at')}")
        if candidate and candidate.get("phase") in BAD_NEWS:
            found.add(f"{model.get('name')} {candidate['phase']} {candidate.get('digest')} {candidate.get('attempt')}")
    return frozenset(found)
