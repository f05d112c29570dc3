"""What is asked of a Kubernetes API server, built without asking: paths, queries and bodies of our kinds."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from blurfleet.api.base import GROUP, VERSION, Model
from blurfleet.api.kinds import KINDS, Resource
from blurfleet.api.meta import timestamp
from blurfleet.store.port import Event, Ref, ref_of

APPLY = "application/apply-patch+yaml"
JSON_PATCH = "application/json-patch+json"
MERGE = "application/merge-patch+json"
EXACT_TIME = "blurfleet.dev/at"
TRANSITION = "blurfleet.dev/transition"
_PAGE = 500
_WATCH_S = 300


@dataclass(frozen=True, kw_only=True)
class Request:
    """One request: everything but the server's address and the caller's identity."""

    method: str
    path: str
    query: tuple[tuple[str, str], ...] = ()
    body: Any = None
    content: str = "application/json"

    @property
    def writes(self) -> bool:
        """Tell whether the request changes something."""
        return self.method != "GET"


@dataclass(frozen=True, kw_only=True)
class Collection:
    """The objects that are listed and watched together; `fields` is a field selector such as metadata.name=orin-0."""

    kind: str
    path: str
    fields: str = ""

    def listing(self, continued: str = "") -> Request:
        """Return the request for one page of at most 500 objects."""
        more = (("continue", continued),) if continued else ()
        return Request(method="GET", path=self.path, query=(("limit", str(_PAGE)), *self._selector(), *more))

    def watching(self, version: str) -> Request:
        """Return the request for the changes after `version`; the server ends it after five minutes."""
        query = (
            ("watch", "1"),
            ("resourceVersion", version),
            ("allowWatchBookmarks", "true"),
            ("timeoutSeconds", str(_WATCH_S)),
            *self._selector(),
        )
        return Request(method="GET", path=self.path, query=query)

    def _selector(self) -> tuple[tuple[str, str], ...]:
        return (("fieldSelector", self.fields),) if self.fields else ()


def collection(kind: str, *, name: str = "") -> Collection:
    """Return all objects of one of our kinds in all namespaces, or the one named `name` (cluster-scoped kinds)."""
    path = f"/apis/{GROUP}/{VERSION}/{KINDS[kind].plural}"
    return Collection(kind=kind, path=path, fields=f"metadata.name={name}" if name else "")


def nodes() -> Collection:
    """Return the cluster's Node objects."""
    return Collection(kind="Node", path="/api/v1/nodes")


def leases(namespace: str) -> Collection:
    """Return the Leases of `namespace`: the agents' heartbeats."""
    return Collection(kind="Lease", path=f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases")


def path_of(ref: Ref, subresource: str = "") -> str:
    """Return the path of one object of ours, or of its subresource."""
    kind = KINDS[ref.kind]
    scope = f"namespaces/{ref.namespace or 'default'}/" if kind.namespaced else ""
    tail = f"/{subresource}" if subresource else ""
    return f"/apis/{GROUP}/{VERSION}/{scope}{kind.plural}/{ref.name}{tail}"


def getting(ref: Ref) -> Request:
    """Return the request for one object."""
    return Request(method="GET", path=path_of(ref))


def applying(resource: Resource, manager: str) -> Request:
    """Return the server-side apply of `resource`'s spec, labels, annotations and owners as `manager`."""
    ref = ref_of(resource)
    meta = resource.meta.wire()
    kept = {k: meta[k] for k in ("name", "namespace", "labels", "annotations", "ownerReferences") if meta.get(k)}
    body = {"apiVersion": f"{GROUP}/{VERSION}", "kind": resource.kind, "metadata": kept}
    body["spec"] = _said(resource.kind, resource.spec)
    query = (("fieldManager", manager), ("force", "true"))
    return Request(method="PATCH", path=path_of(ref), query=query, body=body, content=APPLY)


def replacing(served: Mapping[str, Any], resource: Resource, manager: str) -> Request:
    """Return the replacement, field by field, of what `resource`'s spec says otherwise than the object as served.

    It costs the server less than an apply: nothing is merged. Fields that this version does not know are not touched,
    whether the copy shows them or not: a watch from before a new definition does not.
    """
    said, old = _said(resource.kind, resource.spec), served["spec"]
    ours = [f.serialization_alias or f.alias or name for name, f in type(resource.spec).model_fields.items()]
    body: list[dict[str, Any]] = [{"op": "remove", "path": f"/spec/{k}"} for k in ours if k in old and k not in said]
    body += [{"op": "add", "path": f"/spec/{k}", "value": said[k]} for k in ours if k in said and said[k] != old.get(k)]
    ref = ref_of(resource)
    return Request(method="PATCH", path=path_of(ref), query=(("fieldManager", manager),), body=body, content=JSON_PATCH)


def _said(kind: str, part: Model) -> dict[str, Any]:
    # The kind that a fleet writes most has no defaults on the server either: see `crd`.
    return part.sparse() if kind == "NodeEngine" else part.wire()


def creating(resource: Resource, manager: str) -> Request:
    """Return the request that makes `resource` and refuses to touch one that is there."""
    made = applying(resource, manager)
    path = made.path.rsplit("/", 1)[0]
    return Request(method="POST", path=path, query=(("fieldManager", manager),), body=made.body)


def merging(ref: Ref, patch: dict[str, Any], manager: str) -> Request:
    """Return the merge of `patch` into the object: for a person's command that sets one field."""
    return Request(method="PATCH", path=path_of(ref), query=(("fieldManager", manager),), body=patch, content=MERGE)


def replacing_status(ref: Ref, status: Model, manager: str) -> Request:
    """Return the replacement of the whole status.

    A merge would keep what the new status no longer says, and an update needs the version of a spec that another
    writes; the status has one writer, so it is put in place as a whole.
    """
    body = [{"op": "add", "path": "/status", "value": _said(ref.kind, status)}]
    query = (("fieldManager", manager),)
    return Request(method="PATCH", path=path_of(ref, "status"), query=query, body=body, content=JSON_PATCH)


def amending_status(ref: Ref, version: str, changes: Mapping[str, Any], manager: str) -> Request:
    """Return the replacement of single values in the status, by JSON pointer, unless somebody wrote since `version`."""
    body = [{"op": "test", "path": "/metadata/resourceVersion", "value": version}]
    body += [{"op": "add", "path": path, "value": value} for path, value in changes.items()]
    query = (("fieldManager", manager),)
    return Request(method="PATCH", path=path_of(ref, "status"), query=query, body=body, content=JSON_PATCH)


def deleting(ref: Ref) -> Request:
    """Return the request that deletes one object."""
    return Request(method="DELETE", path=path_of(ref))


def event_path(event: Event, name: str = "") -> str:
    """Return where an event is kept: beside its object, those of cluster-scoped objects in `default`."""
    space = event.involved.namespace or "default"
    return f"/api/v1/namespaces/{space}/events" + (f"/{name}" if name else "")


def event_name(event: Event, uid: str) -> str:
    """Return the event's name: the same transition of the same object has the same name, whoever says it again."""
    said = "\n".join((str(event.involved), uid, event.reason, event.message))
    return f"{event.involved.name[:200]}.{hashlib.sha256(said.encode()).hexdigest()[:16]}"


def recording(event: Event, uid: str, component: str) -> Request:
    """Return the request that makes a core/v1 Event with the time at which it happened."""
    ref, at = event.involved, timestamp(event.at)
    whole_second = at.split(".")[0] + "Z"
    involved = {"apiVersion": f"{GROUP}/{VERSION}", "kind": ref.kind, "name": ref.name}
    involved |= {k: v for k, v in (("namespace", ref.namespace), ("uid", uid)) if v}
    body = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": event_name(event, uid),
            "namespace": ref.namespace or "default",
            "annotations": {EXACT_TIME: at, TRANSITION: event.transition},
        },
        "involvedObject": involved,
        "reason": event.reason.value,
        "message": event.message[:1024],
        "type": event.type,
        "source": {"component": component},
        "reportingComponent": component,
        "firstTimestamp": whole_second,
        "lastTimestamp": whole_second,
        "count": 1,
    }
    return Request(method="POST", path=event_path(event), body=body)


def repeating(event: Event, uid: str, count: int) -> Request:
    """Return the request that counts the same event once more."""
    whole_second = timestamp(event.at).split(".")[0] + "Z"
    annotations = {TRANSITION: event.transition}
    body = {"count": count, "lastTimestamp": whole_second, "metadata": {"annotations": annotations}}
    return Request(method="PATCH", path=event_path(event, event_name(event, uid)), body=body, content=MERGE)


def looking_up(event: Event, uid: str) -> Request:
    """Return the request for the event as it was made: a patch of nothing, as the roles let nobody read events."""
    return Request(method="PATCH", path=event_path(event, event_name(event, uid)), body={}, content=MERGE)


def events_of(ref: Ref | None) -> Collection:
    """Return the events about one object, or about anything."""
    if ref is None:
        return Collection(kind="Event", path="/api/v1/events")
    fields = f"involvedObject.kind={ref.kind},involvedObject.name={ref.name}"
    return Collection(kind="Event", path=f"/api/v1/namespaces/{ref.namespace or 'default'}/events", fields=fields)


def beating(node: str, namespace: str, now: float, *, every_s: float) -> Request:
    """Return the server-side apply of a node's Lease: made if absent, renewed else. `now`: seconds since the epoch."""
    body = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": node, "namespace": namespace},
        "spec": {
            "holderIdentity": node,
            "leaseDurationSeconds": int(3 * every_s),
            "renewTime": timestamp(now).replace("Z", "000Z"),
        },
    }
    path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{node}"
    query = (("fieldManager", "blurfleet-agent"), ("force", "true"))
    return Request(method="PATCH", path=path, query=query, body=body, content=APPLY)
