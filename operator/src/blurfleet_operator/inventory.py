"""Which nodes there are: one NodeEngine for each Node of a class, owned by it, so that it goes with it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from blurfleet.api.kinds import Resource
from blurfleet.api.meta import ObjectMeta, Owner
from blurfleet.api.nodeengine import NodeEngineSpec, NodeEngineStatus
from blurfleet_operator.settings import ClassRule


@dataclass(frozen=True, kw_only=True)
class Registered:
    """A NodeEngine to write, and why: it is new, its class changed, or only what is copied from the Node did."""

    resource: Resource
    why: str


def class_of(labels: Mapping[str, str], rules: Iterable[ClassRule]) -> str | None:
    """Return the class of the first rule all of whose labels match, None where none does."""
    for rule in rules:
        if all(key in labels and fnmatchcase(labels[key], wanted) for key, wanted in rule.labels.items()):
            return rule.device_class
    return None


def register(
    nodes: Iterable[Mapping[str, Any]], engines: Iterable[Resource], rules: tuple[ClassRule, ...]
) -> tuple[Registered, ...]:
    """Return what to write so that each Node of a class has its NodeEngine.

    A Node that changed its class is drained: it is told nothing, and rollouts prove engines on it anew. A Node that no
    longer matches any rule keeps what it has: labels get lost, and serving must not end by that.
    """
    known = {e.meta.name: e for e in engines}
    found = (_registered(node, known.get(node["metadata"]["name"]), rules) for node in nodes)
    return tuple(f for f in found if f is not None)


def _registered(node: Mapping[str, Any], old: Resource | None, rules: tuple[ClassRule, ...]) -> Registered | None:
    meta = node["metadata"]
    labels = dict(meta.get("labels") or {})
    device_class = class_of(labels, rules)
    if device_class is None or meta.get("deletionTimestamp"):
        return None
    owner = Owner(api_version="v1", kind="Node", name=meta["name"], uid=meta["uid"])
    if old is None:
        fresh = ObjectMeta(name=meta["name"], labels=labels, owner_references=(owner,))
        spec = NodeEngineSpec(device_class=device_class)
        made = Resource(kind="NodeEngine", meta=fresh, spec=spec, status=NodeEngineStatus())
        return Registered(resource=made, why="new")
    assert isinstance(old.spec, NodeEngineSpec)
    kept = old.meta.model_copy(update={"labels": labels, "owner_references": (owner,)})
    moved = old.spec.device_class != device_class
    if not moved and kept == old.meta:
        return None
    spec = NodeEngineSpec(device_class=device_class) if moved else old.spec
    why = f"class {old.spec.device_class} became {device_class}: drained" if moved else "the Node changed"
    return Registered(resource=replace(old, meta=kept, spec=spec), why=why)
