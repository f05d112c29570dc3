"""Reading the store once, and what one rollout's decision sees of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from blurfleet.api.contract import ContractSpec
from blurfleet.api.engineset import EngineSetSpec
from blurfleet.api.kinds import KINDS, Resource
from blurfleet.api.nodeengine import NodeEngineSpec, NodeEngineStatus
from blurfleet.api.policy import PolicySpec
from blurfleet.api.quarantine import QuarantineSpec
from blurfleet.api.rollout import RolloutSpec, RolloutStatus
from blurfleet.contract import contract_hash
from blurfleet.store.port import Broken, Store
from blurfleet_operator.decide.hearing import Hearing
from blurfleet_operator.decide.housekeeping import expired
from blurfleet_operator.decide.observation import NodeView, Observation, RolloutView

WATCHED = (
    "EngineRollout",
    "NodeEngine",
    "EngineSet",
    "QualityPolicy",
    "PreprocessContract",
    "EngineQuarantine",
)


@dataclass(frozen=True, kw_only=True)
class World:
    """Everything in the store at one moment, by kind; what cannot be read is in `broken`."""

    objects: Mapping[str, tuple[Resource, ...]]
    broken: tuple[Broken, ...]
    now: float
    hearing: Hearing | None = None

    def of(self, kind: str) -> tuple[Resource, ...]:
        """Return the readable objects of a kind."""
        return self.objects.get(kind, ())

    @cached_property
    def nodes(self) -> tuple[NodeView, ...]:
        """Return the nodes."""
        return tuple(node_view(r, self.hearing) for r in self.of("NodeEngine"))

    @cached_property
    def rollouts(self) -> tuple[RolloutView, ...]:
        """Return the rollouts, the oldest first."""
        return tuple(sorted((rollout_view(r) for r in self.of("EngineRollout")), key=lambda r: r.age_key))

    @property
    def quarantines(self) -> tuple[QuarantineSpec, ...]:
        """Return the quarantines in force."""
        specs = [r.spec for r in self.of("EngineQuarantine")]
        return tuple(s for s in specs if isinstance(s, QuarantineSpec) and not expired(s, self.now))


def read_world(store: Store, now: float, hearing: Hearing | None = None) -> World:
    """Return all objects, nodes as `hearing` hears them. Raises StoreError where the store itself is away."""
    objects = {kind: tuple(store.objects(kind)) for kind in KINDS}
    broken = tuple(b for kind in KINDS for b in store.broken(kind))
    return World(objects=objects, broken=broken, now=now, hearing=hearing)


def node_view(resource: Resource, hearing: Hearing | None = None) -> NodeView:
    """Return a NodeEngine as decisions see it."""
    assert isinstance(resource.spec, NodeEngineSpec)
    assert isinstance(resource.status, NodeEngineStatus)
    name = resource.meta.name
    return NodeView(
        name=name,
        labels=resource.meta.labels,
        spec=resource.spec,
        status=resource.status,
        heard=None if hearing is None else hearing.hears(name),
        behind=0.0 if hearing is None else hearing.behind(name),
    )


def rollout_view(resource: Resource) -> RolloutView:
    """Return an EngineRollout as decisions see it."""
    assert isinstance(resource.spec, RolloutSpec)
    assert isinstance(resource.status, RolloutStatus)
    meta = resource.meta
    return RolloutView(
        name=meta.name,
        namespace=meta.namespace or "",
        uid=meta.uid,
        generation=meta.generation,
        created=meta.creation_timestamp,
        spec=resource.spec,
        status=resource.status,
    )


def observation(
    world: World,
    rollout: RolloutView,
    nodes: tuple[NodeView, ...],
    quarantines: tuple[QuarantineSpec, ...],
) -> Observation:
    """Return what the decision about `rollout` sees; `nodes` and `quarantines` hold what this pass already decided."""
    space = rollout.namespace

    def named(kind: str) -> dict[str, Resource]:
        return {r.meta.name: r for r in world.of(kind) if r.meta.namespace == space}

    contracts = {n: r.spec for n, r in named("PreprocessContract").items() if isinstance(r.spec, ContractSpec)}
    return Observation(
        rollout=rollout,
        others=tuple(o for o in world.rollouts if (o.namespace, o.name) != (space, rollout.name)),
        sets={n: r.spec for n, r in named("EngineSet").items() if isinstance(r.spec, EngineSetSpec)},
        policies={n: r.spec for n, r in named("QualityPolicy").items() if isinstance(r.spec, PolicySpec)},
        contracts=contracts,
        contract_hashes={n: contract_hash(c) for n, c in contracts.items()},
        nodes=nodes,
        unreadable=tuple(b.ref.name for b in world.broken if b.ref.kind == "NodeEngine"),
        quarantines=quarantines,
    )
