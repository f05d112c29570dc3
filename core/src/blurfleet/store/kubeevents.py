"""Events on the API server: one per transition, repeats counted, said at the time they happened."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
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


@dataclass(frozen=True, kw_only=True)
class _Made:
    """An event on the server: how often it was said, when last by this process (its clock), of which transition."""

    count: int
    at: float = -1e12
    transition: str

    def is_of(self, event: Event) -> bool:
        """Tell whether the event was last said of this very transition."""
        return bool(event.transition) and self.transition == event.transition


def _made(body: Mapping[str, Any]) -> _Made:
    annotations = body["metadata"].get("annotations") or {}
    return _Made(count=int(body.get("count") or 1), transition=str(annotations.get(ask.TRANSITION, "")))


class EventScribe:
    """Writes events as one component.

    What was said last about an object is not said again for half an hour, and a transition never, whoever said it.
    """

    def __init__(self, client: KubeClient, component: str, clock: Callable[[], float]) -> None:
        self._client = client
        self._component = component
        self._clock = clock
        self._lock = threading.Lock()
        self._last: OrderedDict[Ref, str] = OrderedDict()
        self._made: OrderedDict[str, _Made] = OrderedDict()
        self._owed: deque[tuple[Event, str]] = deque(maxlen=_OWED)

    def record(self, event: Event, uid: str) -> None:
        """Make the event, or count it where it was made. Raises StoreError; see `settle`."""
        try:
            self._record(event, uid)
        except StoreError as error:
            if error.reason is not Reason.NOT_FOUND:
                self._owed.append((event, uid))
            raise

    def settle(self) -> None:
        """Say again, in order, what could not be said before. Raises StoreError at the first that still cannot.

        What has no place any more, as its namespace is gone, is owed no longer.
        """
        while self._owed:
            try:
                self._record(*self._owed[0])
            except StoreError as error:
                if error.reason is not Reason.NOT_FOUND:
                    raise
            self._owed.popleft()

    def _record(self, event: Event, uid: str) -> None:
        name = ask.event_name(event, uid)
        now = self._clock()
        with self._lock:
            made = self._made.get(name)
            again = made is not None and self._last.get(event.involved) == name and now - made.at < _SAID_AGAIN_S
        if again or (made is not None and made.is_of(event)):
            return
        count = self._count(event, uid, made) if made is not None else self._make(event, uid)
        with self._lock:
            _put(self._made, name, _Made(count=count, at=now, transition=event.transition))
            _put(self._last, event.involved, name)

    def _make(self, event: Event, uid: str) -> int:
        """Make the event and return how often it was said; one made before this process began is looked at first."""
        try:
            self._client.send(ask.recording(event, uid, event.source or self._component))
        except StoreConflict:
            made = _made(self._client.send(ask.looking_up(event, uid)))
            return made.count if made.is_of(event) else self._count(event, uid, made)
        return 1

    def _count(self, event: Event, uid: str, made: _Made) -> int:
        """Count the event once more and return how often it was said; the server forgets events, then it is new."""
        try:
            self._client.send(ask.repeating(event, uid, made.count + 1))
        except StoreError as error:
            if error.reason is not Reason.NOT_FOUND:
                raise
            self._client.send(ask.recording(event, uid, event.source or self._component))
            return 1
        return made.count + 1


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
            transition=str(annotations.get(ask.TRANSITION, "")),
        )
    except (KeyError, ValueError, TypeError):
        return None
