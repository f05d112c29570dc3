"""The store in memory: for tests and for deciding about objects that are nowhere else. One process, many threads."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace

from blurfleet.api.base import Model
from blurfleet.api.kinds import KINDS, Resource
from blurfleet.api.meta import timestamp
from blurfleet.errors import StoreError
from blurfleet.reasons import Reason
from blurfleet.store.admit import admit, admit_deletion
from blurfleet.store.port import Broken, Event, Ref, ref_of

_HEARTBEAT_S = 1.0


class MemoryStore:
    """A Store in a dictionary. `writes` counts what changed: an idle controller leaves it alone."""

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._objects: dict[Ref, Resource] = {}
        self._events: list[Event] = []
        self._revision = 0
        self._touched: dict[str, int] = {}
        self._changed = threading.Condition()
        self.writes = 0

    def get(self, ref: Ref) -> Resource | None:
        """Return the object, None where it does not exist."""
        with self._changed:
            return self._objects.get(ref)

    def objects(self, kind: str) -> list[Resource]:
        """Return all objects of a kind, ordered by namespace and name."""
        with self._changed:
            found = [r for r in self._objects.values() if r.kind == kind]
        return sorted(found, key=lambda r: (r.meta.namespace or "", r.meta.name))

    def broken(self, kind: str) -> list[Broken]:  # noqa: ARG002  nothing unparseable can get in
        """Return no object: what is in memory was parsed."""
        return []

    def apply(self, resource: Resource) -> Resource:
        """Create the object or replace its spec. Raises InvalidSpec and AdmissionRefused."""
        ref = ref_of(resource)
        with self._changed:
            old = self._objects.get(ref)
            admit(self, resource, old)
            if old is not None and _written(old) == _written(resource):
                return old
            generation = (old.meta.generation if old else 0) + (old is None or old.spec != resource.spec)
            meta = resource.meta.model_copy(
                update={
                    "uid": old.meta.uid if old else str(uuid.uuid4()),
                    "generation": generation,
                    "creation_timestamp": old.meta.creation_timestamp if old else timestamp(self._clock()),
                    "resource_version": str(self._revision + 1),
                }
            )
            status = old.status if old else KINDS[resource.kind].status()
            stored = replace(resource, meta=meta, status=status)
            self._put(ref, stored)
            return stored

    def write_status(self, ref: Ref, status: Model) -> None:
        """Replace the status. Raises StoreError(NotFound) where the object does not exist."""
        with self._changed:
            old = self._objects.get(ref)
            if old is None:
                raise StoreError(Reason.NOT_FOUND, f"{ref} does not exist", where=str(ref))
            self._put(ref, old.with_status(status))

    def delete(self, ref: Ref) -> bool:
        """Delete the object; tell whether it existed. Raises AdmissionRefused."""
        with self._changed:
            admit_deletion(self, self._objects.get(ref))
            existed = self._objects.pop(ref, None) is not None
            if existed:
                self._touch(ref.kind)
            return existed

    def record(self, event: Event) -> None:
        """Keep an event, unless the newest about its object says the same or its transition was said."""
        with self._changed:
            if any(event.repeats(e) for e in self._events):
                return
            last = next((e for e in reversed(self._events) if e.involved == event.involved), None)
            if last is None or (last.reason, last.message) != (event.reason, event.message):
                self._events.append(event)
                self.writes += 1

    def events(self, ref: Ref | None = None) -> list[Event]:
        """Return the kept events in order of time."""
        with self._changed:
            return sorted((e for e in self._events if ref is None or e.involved == ref), key=lambda e: e.at)

    def watch(self, kinds: tuple[str, ...], stopped: Callable[[], bool]) -> Iterator[frozenset[str]]:
        """Yield the kinds that changed; all of `kinds` first, and all again every second."""
        with self._changed:
            seen = self._revision
        yield frozenset(kinds)
        while not stopped():
            with self._changed:
                moved = self._changed.wait_for(self._newer_than(seen), _HEARTBEAT_S)
                touched = frozenset(k for k in kinds if self._touched.get(k, 0) > seen)
                seen = self._revision
            if stopped():
                return
            if not moved:
                yield frozenset(kinds)
            elif touched:
                yield touched

    def _newer_than(self, revision: int) -> Callable[[], bool]:
        return lambda: self._revision > revision

    def _put(self, ref: Ref, resource: Resource) -> None:
        self._objects[ref] = resource
        self._touch(ref.kind)

    def _touch(self, kind: str) -> None:
        self.writes += 1
        self._revision += 1
        self._touched[kind] = self._revision
        self._changed.notify_all()


def _written(resource: Resource) -> tuple[object, ...]:
    return (resource.spec, resource.meta.labels, resource.meta.annotations)
