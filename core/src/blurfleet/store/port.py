"""The store port: what every store can do, and what a change and an event are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

from blurfleet.api.base import Model
from blurfleet.api.kinds import Resource
from blurfleet.errors import BlurfleetError
from blurfleet.reasons import Reason

EventType = Literal["Normal", "Warning"]


@dataclass(frozen=True, kw_only=True)
class Ref:
    """Names one object. `namespace` is None for cluster-scoped kinds."""

    kind: str
    name: str
    namespace: str | None = None

    def __str__(self) -> str:
        return "/".join(p for p in (self.kind, self.namespace, self.name) if p)


def ref_of(resource: Resource) -> Ref:
    """Return the name under which a store keeps `resource`."""
    return Ref(kind=resource.kind, name=resource.meta.name, namespace=resource.meta.namespace)


@dataclass(frozen=True, kw_only=True)
class Event:
    """One transition, said once: what happened to which object, why, and when (seconds since the epoch).

    `transition` tells apart transitions of the same words, and is the same however often one of them is said: who was
    killed before noting that it spoke says it again, and that is no second event. Empty where nothing tells them apart.
    """

    involved: Ref
    reason: Reason
    message: str
    type: EventType = "Normal"
    at: float
    source: str = ""
    transition: str = ""

    def repeats(self, said: Event) -> bool:
        """Tell whether `said` was about this very transition."""
        mine, theirs = (self.involved, self.reason, self.message), (said.involved, said.reason, said.message)
        return bool(self.transition) and self.transition == said.transition and mine == theirs


@dataclass(frozen=True, kw_only=True)
class Broken:
    """An object that is there but cannot be read: who, and the error that says why."""

    ref: Ref
    error: BlurfleetError


class Store(Protocol):
    """Get, list and watch objects; write spec and status apart. Every method may raise StoreError."""

    def get(self, ref: Ref) -> Resource | None:
        """Return the object, None where it does not exist. Raises StoreError or InvalidSpec where it is unreadable."""

    def objects(self, kind: str) -> list[Resource]:
        """Return all readable objects of a kind, ordered by namespace and name."""

    def broken(self, kind: str) -> list[Broken]:
        """Return the objects of a kind that cannot be read: one bad object never hides the others."""

    def apply(self, resource: Resource) -> Resource:
        """Create the object or replace its spec, labels and annotations; status is left alone.

        An unchanged spec is a no-op. Raises InvalidSpec (immutable kinds) and AdmissionRefused.
        """

    def write_status(self, ref: Ref, status: Model) -> None:
        """Replace the status. Raises StoreError(NotFound) where the object does not exist."""

    def delete(self, ref: Ref) -> bool:
        """Delete the object; tell whether it existed."""

    def record(self, event: Event) -> None:
        """Keep an event; repeats of (object, reason, message) are counted, not repeated; a transition is said once."""

    def events(self, ref: Ref | None = None) -> list[Event]:
        """Return the kept events in order of time, of one object or all."""

    def watch(self, kinds: tuple[str, ...], stopped: Callable[[], bool]) -> Iterator[frozenset[str]]:
        """Yield the kinds that may have changed: once at once, then after every change, and at least every second.

        Ends when `stopped()` is true. A consumer lists again what it needs: changes may be merged, none is lost.
        """
