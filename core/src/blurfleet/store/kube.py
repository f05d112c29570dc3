"""The store on the Kubernetes API: the same port as the folder, over an API server.

Kinds that are followed are kept in memory and read from there; others are asked for. A write's answer goes into the
copy at once, so that whoever wrote also reads it. While the server cannot be reached, reads raise: nothing is decided
on what may be old.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

from pydantic import ValidationError

from blurfleet.api.base import Model
from blurfleet.api.kinds import KINDS, Resource, invalid
from blurfleet.api.meta import ObjectMeta
from blurfleet.api.nodeengine import NodeEngineStatus
from blurfleet.errors import BlurfleetError, InvalidSpec, StoreConflict, StoreError
from blurfleet.reasons import Reason
from blurfleet.store import kuberequests as ask
from blurfleet.store.kubeclient import KubeClient
from blurfleet.store.kubeevents import EventScribe, event_of
from blurfleet.store.kubemirror import Key, Mirror, Reflector, listed
from blurfleet.store.port import Broken, Event, Ref, ref_of
from blurfleet.store.tolerance import parse_status

M = TypeVar("M", bound=Model)

# Kinds whose spec has one writer, thousands of objects at a time: replaced whole where the copy is fresh.
_WRITTEN_BY_ONE = frozenset({"NodeEngine"})
_HEARTBEAT_S = 1.0
_SYNC_S = 30.0
# Who lists every kind in a row hardly ever comes to the end on a server that refuses each second request.
_PATIENCE_S = 0.5
_REMEMBERED = 20_000


class KubeStore:
    """A Store on one API server, writing as `manager`. Close it: it may hold watches.

    `node` narrows NodeEngine to the one of that name: an agent follows nothing else. Objects of the kinds in `once` are
    made and never changed by this store, so that its account needs no right to change them. `clock` gives seconds since
    the epoch.
    """

    def __init__(
        self,
        client: KubeClient,
        *,
        manager: str,
        node: str = "",
        once: tuple[str, ...] = (),
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._manager = manager
        self._node = node
        self._once = frozenset(once)
        self._lease_space = ""
        self._beaten: dict[str, tuple[Resource, str, Resource]] = {}
        self._scribe = EventScribe(client, manager, clock)
        self._mirrors: dict[str, Mirror] = {}
        self._reflectors: dict[str, Reflector] = {}
        self._changed = threading.Condition()
        self._revisions: dict[str, int] = {}
        self._opening = threading.Lock()

    def __enter__(self) -> KubeStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all watches and connections."""
        for reflector in self._reflectors.values():
            reflector.close()
        self._client.close()

    # The port.

    def get(self, ref: Ref) -> Resource | None:
        """Return the object, None where it does not exist. Raises StoreError or InvalidSpec where unreadable."""
        mirror = self._mirrors.get(ref.kind)
        if mirror is not None:
            self._trust(mirror)
            found = mirror.get(_key(ref))
        else:
            try:
                found = parse_served(self._client.send(ask.getting(ref)))
            except StoreError as error:
                if error.reason is Reason.NOT_FOUND:
                    return None
                raise
        return None if found is None else self._seen(found)

    def objects(self, kind: str) -> list[Resource]:
        """Return all readable objects of a kind, ordered by namespace and name. Raises StoreError."""
        return [self._seen(r) for r in self._all(kind)[0]]

    def broken(self, kind: str) -> list[Broken]:
        """Return the objects of a kind that this version cannot read. Raises StoreError."""
        return [
            Broken(ref=Ref(kind=kind, name=name, namespace=space or None), error=error)
            for (space, name), error in self._all(kind)[1]
        ]

    def apply(self, resource: Resource) -> Resource:
        """Create the object or replace what this manager says of it. Raises InvalidSpec and AdmissionRefused."""
        if resource.kind not in self._once:
            return self._replaced(resource) or self._wrote(
                resource.kind, self._client.send(ask.applying(resource, self._manager))
            )
        try:
            return self._wrote(resource.kind, self._client.send(ask.creating(resource, self._manager)))
        except StoreConflict:
            # Made by an earlier try whose answer was lost. It is written once, so what stands is what was asked for;
            # the watch brings its uid. Asking for it would need a right to `get` that nothing else does.
            return resource

    def _replaced(self, resource: Resource) -> Resource | None:
        """Write the spec over the copy's; None where that cannot be: no copy, other labels, or it is not as copied."""
        mirror = self._mirrors.get(resource.kind)
        if resource.kind not in _WRITTEN_BY_ONE or mirror is None:
            return None
        served = mirror.served((resource.meta.namespace or "", resource.meta.name))
        if served is None or not _labelled_alike(served, resource):
            return None
        try:
            body = self._client.send(ask.replacing(served, resource, self._manager))
        except (StoreConflict, InvalidSpec):
            return None  # an apply says the same, and says what is wrong with it
        return self._wrote(resource.kind, body)

    def merge(self, ref: Ref, patch: dict[str, Any]) -> Resource:
        """Set single fields of an object, as a person's command does. Raises as `apply`, and StoreError(NotFound)."""
        return self._wrote(ref.kind, self._client.send(ask.merging(ref, patch, self._manager)))

    def write_status(self, ref: Ref, status: Model) -> None:
        """Replace the status. Raises StoreError(NotFound) where the object does not exist."""
        body = self._client.send(ask.replacing_status(ref, status, self._manager))
        if ref.kind in self._mirrors:
            self._mirrors[ref.kind].take("MODIFIED", body)

    def amend_status(self, resource: Resource, changes: Mapping[str, Any]) -> None:
        """Set single values in the status that another writes, by JSON pointer (`/status/armed`).

        Raises InvalidSpec where `resource` was written since it was read, AdmissionRefused, and StoreError.
        """
        ref = ref_of(resource)
        self._wrote(
            ref.kind,
            self._client.send(ask.amending_status(ref, resource.meta.resource_version, changes, self._manager)),
        )

    def delete(self, ref: Ref) -> bool:
        """Delete the object; tell whether it existed. Raises AdmissionRefused and StoreError."""
        try:
            self._client.send(ask.deleting(ref))
            existed = True
        except StoreError as error:
            if error.reason is not Reason.NOT_FOUND:
                raise
            existed = False
        if ref.kind in self._mirrors:
            self._mirrors[ref.kind].forget(_key(ref))
        return existed

    def record(self, event: Event) -> None:
        """Keep an event as a core/v1 Event; repeats are counted. Raises StoreError."""
        self._scribe.record(event, self._uid(event.involved))

    def settle_events(self) -> None:
        """Say again what `record` failed to say. Raises StoreError where it still fails."""
        self._scribe.settle()

    def events(self, ref: Ref | None = None) -> list[Event]:
        """Return the kept events in order of time. Raises StoreError."""
        bodies, _ = listed(self._client, ask.events_of(ref))
        found = [e for e in (event_of(b) for b in bodies) if e is not None and ref in (None, e.involved)]
        return sorted(found, key=lambda e: e.at)

    def watch(self, kinds: tuple[str, ...], stopped: Callable[[], bool]) -> Iterator[frozenset[str]]:
        """Yield the kinds that may have changed: at once, after every change, and all each second."""
        for kind in kinds:
            self.follow(kind)
        with self._changed:
            seen = dict(self._revisions)
        yield frozenset(kinds)
        while not stopped():
            with self._changed:
                moved = self._changed.wait_for(partial(self._moved, kinds, seen), _HEARTBEAT_S)
                touched = self._moved(kinds, seen)
                seen = dict(self._revisions)
            if stopped():
                return
            yield touched if moved else frozenset(kinds)

    # What only this store can do.

    def follow(
        self,
        kind: str,
        told: Callable[[], None] = lambda: None,
        saw: Callable[[Mapping[str, Any]], None] | None = None,
    ) -> None:
        """Keep a copy of a kind by a watch of its own.

        `told` is called, on any thread, after every change, `saw` before it with an object as served that is new.
        """
        name = self._node if kind == "NodeEngine" else ""
        self._start(kind, ask.collection(kind, name=name), parse_served, told, saw)

    def follow_leases(self, namespace: str) -> None:
        """Follow the agents' Leases: a node's heartbeat is then the newer of its status's and its Lease's."""
        self._lease_space = namespace
        self._start("Lease", ask.leases(namespace), dict)

    def follow_nodes(self) -> None:
        """Follow the cluster's Node objects; see `nodes`."""
        self._start("Node", ask.nodes(), dict)

    def feed(self, kind: str) -> None:
        """Keep a copy of a kind that somebody else watches: see `offer` and `relist`."""
        with self._opening:
            self._mirrors.setdefault(kind, Mirror(_parser(kind), lambda: self._touch(kind)))

    def offer(self, kind: str, change: str, body: Mapping[str, Any]) -> None:
        """Take a change that somebody else saw: ADDED, MODIFIED or DELETED."""
        self._mirrors[kind].take(change, body)

    def relist(self, kind: str) -> dict[Key, int]:
        """Make the copy of a kind whole: what vanished while nobody watched goes. Raises StoreError.

        Returns what no watch had brought by then: the versions of new and changed objects, by namespace and name.
        """
        if kind == "Lease":
            what = ask.leases(self._lease_space)
        else:
            what = ask.nodes() if kind == "Node" else ask.collection(kind)
        bodies, version = listed(self._client, what, patience_s=_PATIENCE_S)
        return self._mirrors[kind].replace(bodies, version)

    def holds(self, kind: str, key: Key) -> bool:
        """Tell whether the copy of a kind has an object of that namespace and name."""
        return self._mirrors[kind].version(key) is not None

    def heartbeats(self) -> dict[str, str]:
        """Return by node what changes whenever it speaks, empty before it ever did. Raises StoreError.

        That is the times of its Lease and of its status, with a space between, each by the node's own clock.
        """
        leases = {
            lease["metadata"]["name"]: str(lease["spec"].get("renewTime") or "") for lease in self._all("Lease")[0]
        }
        found = {}
        for node in self._all("NodeEngine")[0]:
            said = (leases.get(node.meta.name, ""), node.status.heartbeat)
            found[node.meta.name] = " ".join(text for text in said if text)
        return found

    def nodes(self) -> list[Mapping[str, Any]]:
        """Return the cluster's Node objects as served, ordered by name. Raises StoreError."""
        return self._all("Node")[0]

    @property
    def recoveries(self) -> int:
        """Return how often an own watch came back after the server was away."""
        return sum(r.recoveries for r in self._reflectors.values())

    @property
    def trouble(self) -> StoreError | None:
        """Return why the server cannot be reached now, as an own watch found, None where all is well."""
        return next((m.trouble for k, m in self._mirrors.items() if k in self._reflectors and m.trouble), None)

    @property
    def requests(self) -> int:
        """Return how many requests were sent."""
        return self._client.requests

    def beat(self, node: str, namespace: str, now: float, *, every_s: float) -> None:
        """Renew the Lease of `node`. Raises StoreError."""
        self._client.send(ask.beating(node, namespace, now, every_s=every_s))

    def _start(
        self,
        kind: str,
        what: ask.Collection,
        parse: Callable[[Mapping[str, Any]], Any],
        told: Callable[[], None] = lambda: None,
        saw: Callable[[Mapping[str, Any]], None] | None = None,
    ) -> None:
        def changed() -> None:
            self._touch(kind)
            told()

        with self._opening:
            if kind in self._mirrors:
                return
            mirror = Mirror(parse, changed, saw)
            self._reflectors[kind] = Reflector(self._client, what, mirror)
            self._mirrors[kind] = mirror
            self._reflectors[kind].start()

    def _all(self, kind: str) -> tuple[list[Any], list[tuple[Key, BlurfleetError]]]:
        mirror = self._mirrors.get(kind)
        if mirror is None:
            mirror = Mirror(_parser(kind), lambda: None)
            what = ask.nodes() if kind == "Node" else ask.collection(kind, name=self._node_of(kind))
            mirror.replace(*listed(self._client, what))
        else:
            self._trust(mirror)
        return mirror.all()

    def _node_of(self, kind: str) -> str:
        return self._node if kind == "NodeEngine" else ""

    def _trust(self, mirror: Mirror) -> None:
        trouble = mirror.trouble or self.trouble
        if trouble is not None:
            raise trouble
        # All that is followed belongs together: nodes without their Leases would all look silent.
        needed = [mirror, *(self._mirrors[k] for k in self._reflectors)]
        if not all(m.synced.wait(_SYNC_S) for m in needed):
            raise self.trouble or StoreError(Reason.STORE_UNREADABLE, f"nothing was listed within {_SYNC_S:.0f} s")

    def _seen(self, resource: Resource) -> Resource:
        """Return a NodeEngine with the heartbeat of its Lease where that is newer."""
        mirror = self._mirrors.get("Lease")
        if mirror is None or resource.kind != "NodeEngine":
            return resource
        assert isinstance(resource.status, NodeEngineStatus)
        lease = mirror.get((self._lease_space, resource.meta.name))
        renewed = str(lease["spec"].get("renewTime") or "") if lease else ""
        # Both are RFC 3339 in UTC with at least milliseconds, so text compares as time.
        if renewed[:23] <= resource.status.heartbeat[:23]:
            return resource
        # Asked for many times between two beats: an object is parsed once a version, so the same one needs no new copy.
        held = self._beaten.get(resource.meta.name)
        if held is None or held[0] is not resource or held[1] != renewed:
            if len(self._beaten) > _REMEMBERED:
                self._beaten.clear()  # of nodes that are gone
            heard = resource.with_status(resource.status.model_copy(update={"heartbeat": renewed}))
            held = self._beaten[resource.meta.name] = (resource, renewed, heard)
        return held[2]

    def _uid(self, ref: Ref) -> str:
        mirror = self._mirrors.get(ref.kind)
        try:
            found = mirror.get(_key(ref)) if mirror is not None else self.get(ref)
        except BlurfleetError:
            return ""
        return found.meta.uid if found is not None else ""

    def _wrote(self, kind: str, body: Mapping[str, Any]) -> Resource:
        mirror = self._mirrors.get(kind)
        if mirror is None:
            return self._seen(parse_served(body))
        mirror.take("MODIFIED", body)
        # Parsed once for all who look; gone again already where somebody deleted it in this moment.
        meta = body["metadata"]
        found = mirror.get((str(meta.get("namespace", "")), str(meta["name"])))
        return self._seen(found if found is not None else parse_served(body))

    def _moved(self, kinds: tuple[str, ...], seen: Mapping[str, int]) -> frozenset[str]:
        return frozenset(k for k in kinds if self._revisions.get(k, 0) != seen.get(k, 0))

    def _touch(self, kind: str) -> None:
        with self._changed:
            self._revisions[kind] = self._revisions.get(kind, 0) + 1
            self._changed.notify_all()


def _labelled_alike(served: Mapping[str, Any], resource: Resource) -> bool:
    ours, theirs = resource.meta.wire(), served["metadata"]
    return all((ours.get(k) or None) == (theirs.get(k) or None) for k in ("labels", "annotations", "ownerReferences"))


def _key(ref: Ref) -> Key:
    return (ref.namespace or "default" if KINDS[ref.kind].namespaced else "", ref.name)


def _parser(kind: str) -> Callable[[Mapping[str, Any]], Any]:
    return parse_served if kind in KINDS else dict


def parse_served(body: Mapping[str, Any]) -> Resource:
    """Return an object that an API server serves. Raises InvalidSpec naming the field.

    The server already checked it against its kind. What a newer version added is passed over, a reason that this
    version does not know is Unexpected, its name kept in the message, and any other such word of a status allows
    nothing (see `tolerance`): a fleet is never upgraded all at once.
    """
    kind = KINDS[body["kind"]]
    meta = {k: v for k, v in body["metadata"].items() if v is not None}
    label = f"{kind.name}/{meta.get('name', '?')}"
    return Resource(
        kind=kind.name,
        meta=_tolerant(ObjectMeta, meta, f"{label} metadata"),
        spec=_tolerant(kind.spec, body.get("spec") or {}, f"{label} spec"),
        status=_status(kind.status, _known_reasons(body.get("status") or {}), f"{label} status"),
    )


def _tolerant(model: type[M], raw: object, where: str) -> M:
    try:
        return model.model_validate(raw, extra="ignore")
    except ValidationError as error:
        raise invalid(error, where) from error


def _status(model: type[M], raw: dict[str, Any], where: str) -> M:
    try:
        return parse_status(model, raw)
    except ValidationError as error:
        raise invalid(error, where) from error


_REASONS = frozenset(Reason)


def _known_reasons(value: Any) -> Any:
    if isinstance(value, list):
        return [_known_reasons(v) for v in value]
    if not isinstance(value, Mapping):
        return value
    found = {k: _known_reasons(v) for k, v in value.items()}
    if {"type", "status", "reason"} <= found.keys() and found["reason"] not in _REASONS:
        found["message"] = f"{found['reason']}: {found.get('message', '')}"[:2048]
        found["reason"] = Reason.UNEXPECTED.value
    return found
