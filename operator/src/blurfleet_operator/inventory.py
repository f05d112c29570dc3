"""Which nodes there are: one NodeEngine for each Node of a class, owned by it, so that it goes with it. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from blurfleet.api.kinds import Resource
from blurfleet.api.meta import ObjectMeta, Owner
from blurfleet.api.nodeengine import NodeEngineSpec, NodeEngineStatus
from blurfleet_operator.settings import ClassRule

# Which labels of a NodeEngine are copies of its Node's: one that the Node loses goes, one that a person adds stays.
COPIED = "blurfleet.dev/node-labels"


@dataclass(frozen=True, kw_only=True)
class Registered:
    """A NodeEngine to write, and why: it is new, its class changed, or only what is copied from the Node did.

    `moved` is the object as it was, where its class changed: what it says of its models no longer holds.
    """

    resource: Resource
    why: str
    moved: Resource | None = None


def class_of(labels: Mapping[str, str], rules: Iterable[ClassRule]) -> str | None:
    """Return the class of the first rule all of whose labels match, None where none does."""
    for rule in rules:
        if all(key in labels and fnmatchcase(labels[key], wanted) for key, wanted in rule.labels.items()):
            return rule.device_class
    return None


def register(
    nodes: Iterable[Mapping[str, Any]],
    engines: Iterable[Resource],
    rules: tuple[ClassRule, ...],
    unreadable: Container[str] = (),
) -> tuple[Registered, ...]:
    """Return what to write so that each Node of a class has its NodeEngine.

    A Node that changed its class is drained: it is told nothing, and rollouts prove engines on it anew. A Node that no
    longer matches any rule keeps what it has: labels get lost, and serving must not end by that. `unreadable` names the
    NodeEngines that are there though this version cannot read them: made anew, they would lose their models.
    """
    known = {e.meta.name: e for e in engines}
    readable = (n for n in nodes if n["metadata"]["name"] not in unreadable)
    found = (_registered(node, known.get(node["metadata"]["name"]), rules) for node in readable)
    return tuple(f for f in found if f is not None)


def owned(meta: ObjectMeta) -> ObjectMeta:
    """Return `meta` with only the labels and annotations that come from the Node: what others put there is theirs.

    An apply that named theirs too would own it with them, and one that no longer did would change nothing: such an
    object differed for ever.
    """
    copied = meta.annotations.get(COPIED)
    if copied is None:
        return meta
    keys = frozenset(copied.split(","))
    labels = {k: v for k, v in meta.labels.items() if k in keys}
    return meta.model_copy(update={"labels": labels, "annotations": {COPIED: copied}})


def _copied(labels: Mapping[str, str]) -> dict[str, str]:
    return {COPIED: ",".join(sorted(labels))}


def _owner(meta: Mapping[str, Any]) -> Owner:
    return Owner(api_version="v1", kind="Node", name=meta["name"], uid=meta["uid"])


def _registered(node: Mapping[str, Any], old: Resource | None, rules: tuple[ClassRule, ...]) -> Registered | None:
    meta = node["metadata"]
    labels = dict(meta.get("labels") or {})
    device_class = class_of(labels, rules)
    if device_class is None or meta.get("deletionTimestamp"):
        return None
    if old is None:
        owners = (_owner(meta),)
        fresh = ObjectMeta(name=meta["name"], labels=labels, annotations=_copied(labels), owner_references=owners)
        spec = NodeEngineSpec(device_class=device_class)
        made = Resource(kind="NodeEngine", meta=fresh, spec=spec, status=NodeEngineStatus())
        return Registered(resource=made, why="new")
    assert isinstance(old.spec, NodeEngineSpec)
    moved = old.spec.device_class != device_class
    # Looked at at every turn for every node of the fleet, so nothing is built to compare.
    copied = old.meta.annotations.get(COPIED) == _copied(labels)[COPIED]
    same = copied and all(old.meta.labels.get(key) == value for key, value in labels.items())
    if not moved and same and any(o.uid == meta["uid"] for o in old.meta.owner_references or ()):
        return None
    kept = old.meta.model_copy(
        update={"labels": labels, "annotations": _copied(labels), "owner_references": (_owner(meta),)}
    )
    spec = NodeEngineSpec(device_class=device_class) if moved else old.spec
    why = f"class {old.spec.device_class} became {device_class}: drained" if moved else "the Node changed"
    return Registered(resource=replace(old, meta=kept, spec=spec), why=why, moved=old if moved else None)
