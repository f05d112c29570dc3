"""Rollouts as the command line sees and changes them, on either store. Reading is pure; each change sets one field."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from blurfleet.api.engineset import EngineSetSpec
from blurfleet.api.kinds import Resource
from blurfleet.api.meta import condition
from blurfleet.api.nodeengine import NodeEngineSpec, NodeEngineStatus
from blurfleet.api.rollout import RolloutSpec, RolloutStatus
from blurfleet.errors import InvalidInput, UnknownName
from blurfleet.identity import digest12
from blurfleet.reasons import Reason
from blurfleet.store.port import Ref, Store, ref_of
from blurfleet_cli.where import open_store

MANAGER = "blurfleet-cli"


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where the objects are: a kubeconfig (and context), else a local fleet's folder."""

    fleet: Path
    kubeconfig: Path | None = None
    context: str | None = None


@contextmanager
def opened(place: Place) -> Iterator[Store]:
    """Yield the store of `place`. Raises UnknownName or StoreError where there is none."""
    if place.kubeconfig is None:
        yield open_store(place.fleet)
        return
    from blurfleet.store.kube import KubeStore
    from blurfleet.store.kubeclient import Access, KubeClient

    client = KubeClient(Access(kubeconfig=place.kubeconfig, context=place.context))
    with KubeStore(client, manager=MANAGER) as store:
        yield store


def find(store: Store, name: str, namespace: str) -> Resource:
    """Return the rollout. Raises UnknownName."""
    found = store.get(Ref(kind="EngineRollout", name=name, namespace=namespace))
    if found is None:
        others = [f"{r.meta.namespace}/{r.meta.name}" for r in store.objects("EngineRollout")]
        there = f"there is {', '.join(others[:5])}" + (", ..." if others[5:] else "") if others else "there is none yet"
        raise UnknownName(Reason.NOT_FOUND, f"EngineRollout {namespace}/{name} does not exist", fix=there)
    return found


def change(store: Store, rollout: Resource, fields: dict[str, Any]) -> Resource:
    """Set fields of the rollout's spec, named as on the wire, and no others. Raises InvalidSpec, AdmissionRefused."""
    ref = ref_of(rollout)
    merge = getattr(store, "merge", None)
    if merge is not None:
        changed: Resource = merge(ref, {"spec": fields})
        return changed
    body = rollout.spec.wire()
    for key, value in fields.items():
        body[key] = {**body.get(key, {}), **value} if isinstance(value, dict) else value
    return store.apply(replace(rollout, spec=RolloutSpec.model_validate(body)))


def undo_target(rollout: Resource) -> str:
    """Return the set that was good before: one that was promoted, never merely the one before.

    Raises InvalidInput where there is none.
    """
    spec, status = parts(rollout)
    earlier = [k for k in status.known_good if k.set != spec.engine_set]
    if not earlier:
        raise InvalidInput(
            Reason.NOT_FOUND,
            f"no other set was ever promoted by {rollout.key}",
            fix="point spec.engineSet at a set yourself",
        )
    return max(earlier, key=lambda k: k.at).set


def parts(rollout: Resource) -> tuple[RolloutSpec, RolloutStatus]:
    """Return spec and status, typed."""
    assert isinstance(rollout.spec, RolloutSpec)
    assert isinstance(rollout.status, RolloutStatus)
    return rollout.spec, rollout.status


@dataclass(frozen=True, kw_only=True)
class NodeLine:
    """One node of a rollout: what it is told, what it says it serves, and how far its candidate is."""

    name: str
    device_class: str
    wanted: str
    wanted_digest: str
    serving: str
    serving_digest: str
    role: str
    precision: str
    epoch: int
    candidate: str
    tripped: str
    connected: str

    @property
    def differs(self) -> bool:
        """Tell whether clients are answered by another engine than the one wanted."""
        return self.wanted_digest != self.serving_digest


def node_lines(rollout: Resource, nodes: Iterable[Resource]) -> list[NodeLine]:
    """Return the nodes that the rollout selects, by class and name. Pure."""
    spec, _ = parts(rollout)
    lines = []
    for node in nodes:
        assert isinstance(node.spec, NodeEngineSpec)
        selector = spec.selector
        if selector.classes and node.spec.device_class not in selector.classes:
            continue
        if selector.nodes and node.meta.name not in selector.nodes:
            continue
        if any(node.meta.labels.get(k) != v for k, v in selector.match_labels.items()):
            continue
        lines.append(_line(spec.model, node))
    return sorted(lines, key=lambda n: (n.device_class, n.name))


def _line(model: str, node: Resource) -> NodeLine:
    assert isinstance(node.spec, NodeEngineSpec)
    assert isinstance(node.status, NodeEngineStatus)
    told = next((m for m in node.spec.models if m.name == model), None)
    seen = next((m for m in node.status.models if m.name == model), None)
    primary = told.primary if told is not None else None
    serving = seen.serving if seen is not None else None
    candidate = seen.candidate if seen is not None else None
    trip = seen.last_trip if seen is not None else None
    return NodeLine(
        name=node.meta.name,
        device_class=node.spec.device_class,
        wanted=primary.set if primary is not None else "",
        wanted_digest=digest12(primary.digest) if primary is not None else "",
        serving=serving.set if serving is not None else "",
        serving_digest=digest12(serving.digest) if serving is not None else "",
        role=serving.role if serving is not None else "",
        precision=serving.precision if serving is not None else "",
        epoch=serving.epoch if serving is not None else 0,
        candidate=f"{candidate.phase} {candidate.samples_valid}/{candidate.samples_required}" if candidate else "",
        tripped=f"{trip.reason} at {trip.at}" if trip is not None else "",
        connected=node.status.connected,
    )


def summary(rollout: Resource) -> dict[str, Any]:
    """Return the rollout in a few fields, for people and scripts. Pure."""
    spec, status = parts(rollout)
    ready = condition(status.conditions, "Ready")
    return {
        "name": rollout.meta.name,
        "namespace": rollout.meta.namespace,
        "phase": status.phase,
        "set": status.set or spec.engine_set,
        "wave": status.wave,
        "nodes": status.nodes,
        "tripped": status.tripped,
        "fallback": status.fallback,
        "lastKnownGood": status.last_known_good,
        "reason": ready.reason if ready is not None else "",
        "message": ready.message if ready is not None else "",
        "current": status.observed_generation == rollout.meta.generation,
    }


def set_difference(old: EngineSetSpec | None, new: EngineSetSpec | None) -> list[dict[str, str]]:
    """Return the variants that differ between two sets: added, removed or with other bytes. Pure."""
    before = {_variant_key(v): v for v in old.variants} if old is not None else {}
    after = {_variant_key(v): v for v in new.variants} if new is not None else {}
    rows = []
    for key in sorted(before.keys() | after.keys()):
        was, now = before.get(key), after.get(key)
        if was is not None and now is not None and was.artifact.digest == now.artifact.digest:
            continue
        rows.append(
            {
                "target": key,
                "from": digest12(was.artifact.digest) if was is not None else "",
                "to": digest12(now.artifact.digest) if now is not None else "",
            }
        )
    return rows


def _variant_key(variant: Any) -> str:
    t = variant.target
    return f"{t.device_class} sm{t.sm} {t.platform} {t.runtime_version} {variant.precision}"
