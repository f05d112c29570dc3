"""Events on the API server: one per transition, repeats counted, said at the time they happened."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from blurfleet.errors import StoreConflict, StoreError
from blurfleet.reasons import Reason
from blurfleet.store import kuberequests as ask
from blurfleet.store.kubeclient import KubeClient
from blurfleet.store.port import Event, Ref

_REMEMBERED = 4096
_OWED = 1000
# The server forgets events after an hour; what still holds is said again before that, and not more often.
_SAID_AGAIN_S = 1800.0


class EventScribe:
    """Writes events as one component. What was said last about an object is not said again for half an hour."""

    def __init__(self, client: KubeClient, component: str, clock: Callable[[], float]) -> None:
        self._client = client
        self._component = component
        self._clock = clock
        self._lock = threading.Lock()
        self._last: OrderedDict[Ref, str] = OrderedDict()
        self._counts: OrderedDict[str, tuple[int, float]] = OrderedDict()
        self._owed: deque[tuple[Event, str]] = deque(maxlen=_OWED)

    def record(self, event: Event, uid: str) -> None:
        """Make the event, or count it where it was made. Raises StoreError; see `settle`."""
        try:
            self._record(event, uid)
        except StoreError:
            self._owed.append((event, uid))
            raise

    def settle(self) -> None:
        """Say again, in order, what could not be said before. Raises StoreError at the first that still cannot."""
        while self._owed:
            self._record(*self._owed[0])
            self._owed.popleft()

    def _record(self, event: Event, uid: str) -> None:
        name = ask.event_name(event, uid)
        now = self._clock()
        with self._lock:
            count, at = self._counts.get(name, (0, -1e12))
            if self._last.get(event.involved) == name and now - at < _SAID_AGAIN_S:
                return
        component = event.source or self._component
        try:
            if count == 0:
                self._client.send(ask.recording(event, uid, component))
            else:
                self._client.send(ask.repeating(event, uid, count + 1))
        except StoreConflict:
            # Made by this component before it was restarted: the time moves on, the count begins anew.
            count = 1
            self._client.send(ask.repeating(event, uid, count + 1))
        with self._lock:
            _put(self._counts, name, (count + 1, now))
            _put(self._last, event.involved, name)


def _put(kept: OrderedDict[Any, Any], key: Any, value: Any) -> None:
    kept[key] = value
    kept.move_to_end(key)
    if len(kept) > _REMEMBERED:
        kept.popitem(last=False)


def event_of(body: Mapping[str, Any]) -> Event | None:
    """Return an event of ours as served, None where somebody else made it."""
    involved = body.get("involvedObject") or {}
    try:
        reason = Reason(body["reason"])
        annotations = body["metadata"].get("annotations") or {}
        said = annotations.get(ask.EXACT_TIME) or body.get("firstTimestamp") or body["metadata"]["creationTimestamp"]
        return Event(
            involved=Ref(kind=involved["kind"], name=involved["name"], namespace=involved.get("namespace")),
            reason=reason,
            message=str(body.get("message", "")),
            type="Warning" if body.get("type") == "Warning" else "Normal",
            at=datetime.fromisoformat(said).timestamp(),
            source=str((body.get("source") or {}).get("component", "")),
        )
    except (KeyError, ValueError, TypeError):
        return None
