"""One pass: read the store, decide about every object, write only what differs.

Quarantines are written before nodes are told anything and nodes before the rollout's status: a pass that dies half-way
leaves what the next one completes. What is decided is said before it is written as well: until the status holds it the
next pass decides it again, of the same status, and is not heard twice.

A pass over thousands of nodes must not write for so long that it is blind meanwhile: what takes an engine away is
written to the end, what brings one, and what is only recorded, for as long as it took to decide. Then it is decided
anew.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import structlog

from blurfleet.api.kinds import Resource
from blurfleet.api.meta import ObjectMeta
from blurfleet.api.nodeengine import NodeEngineSpec, NodeModel
from blurfleet.api.quarantine import QuarantineSpec, QuarantineStatus
from blurfleet.errors import BlurfleetError
from blurfleet.identity import digest12, digest_bytes
from blurfleet.reasons import Reason
from blurfleet.store.port import Ref, Store
from blurfleet_operator.decide import kstatus, verdicts
from blurfleet_operator.decide.choice import quarantined_digests
from blurfleet_operator.decide.hearing import Hearing
from blurfleet_operator.decide.nodeplan import advances, scrub_spec, spread_answers
from blurfleet_operator.decide.observation import Decision, Finding, NodeView, RolloutView
from blurfleet_operator.decide.rollout import decide
from blurfleet_operator.inventory import owned
from blurfleet_operator.observe import World, observation, read_world
from blurfleet_operator.recording import keep_house, write_verdicts
from blurfleet_operator.spread import always
from blurfleet_operator.writer import Writer

_LONGEST_WAIT_S = 60.0
_log = structlog.get_logger("blurfleet.controller")


@dataclass(frozen=True, kw_only=True)
class Reverted:
    """A class of nodes that a rollout of `model` sent back."""

    device_class: str
    model: str
    reason: Reason


@dataclass(frozen=True, kw_only=True)
class Pass:
    """What a pass did: how many objects it changed and failed to handle, when to look again, what went back.

    `owed` are the verdicts, by key, that it had no time to record: they are for the next pass, as a node may no longer
    report them by then.
    """

    writes: int
    failures: int
    requeue_after: float
    reverted: tuple[Reverted, ...] = ()
    owed: Mapping[str, Resource] = field(default_factory=dict)


def reconcile(
    store: Store,
    now: float,
    *,
    writers: int = 1,
    hearing: Hearing | None = None,
    history_limit: int = verdicts.HISTORY_LIMIT,
    patience_s: float | None = None,
    owed: Mapping[str, Resource] | None = None,
    alarmed: Callable[[], bool] = lambda: False,
    monotonic: Callable[[], float] = time.monotonic,
) -> Pass:
    """Bring the store one step closer to what its rollouts ask for. Raises StoreError where it cannot be read at all.

    Idempotent: when nothing changed nothing is written. `now` is in seconds since the epoch; `writers` is how many
    nodes may be written at the same time; `hearing` says who is heard, None where heartbeats are of this clock;
    `history_limit` is how many QualityRuns of a rollout are kept. What can wait is written for `patience_s`, or for as
    long as it took to decide where that is longer, None to the end, and no longer once `alarmed`; `owed` is what the
    pass before returned as such.
    """
    began = monotonic()
    world = read_world(store, now, hearing)
    writer = Writer(store, now, writers)
    _tell_broken(world, writer)
    nodes = {n.name: n for n in world.nodes}
    quarantines = world.quarantines
    decided: list[tuple[RolloutView, Decision]] = []
    for rollout in world.rollouts:
        try:
            decision = decide(observation(world, rollout, tuple(nodes.values()), quarantines), now)
        except (BlurfleetError, ValueError, KeyError, AssertionError) as error:
            # One object that no rule foresaw must not stop the fleet; it says so itself and is tried again.
            writer.failures += 1
            _tell_undecided(world, rollout, error, writer)
            _log.exception(
                "rollout could not be decided", rollout=f"{rollout.namespace}/{rollout.name}", error=str(error)
            )
            continue
        quarantines = (*quarantines, *decision.quarantines)
        for name, entry in decision.models.items():
            nodes[name] = _told(nodes[name], entry)
        decided.append((rollout, decision))
    _write_quarantines(decided, writer)
    decided_after = monotonic() - began

    def patience() -> Callable[[], bool]:
        if patience_s is None:
            return always
        until = monotonic() + max(patience_s, decided_after)
        return lambda: monotonic() < until and not alarmed()

    untold = _write_nodes(world, nodes, quarantines, writer, patience())
    # A status says what its nodes were told.
    told = [(r, d) for r, d in decided if untold.isdisjoint(d.models)]
    reverted = _write_rollouts(world, told, writer)
    left, more = write_verdicts(world, writer, history_limit, owed or {}, patience())
    keep_house(world, quarantines, writer)
    waits = [0.0] if untold or more else [d.requeue_after for _, d in decided]
    return Pass(
        writes=writer.writes,
        failures=writer.failures,
        requeue_after=min([_LONGEST_WAIT_S, *waits]),
        reverted=reverted,
        owed=left,
    )


def _told(node: NodeView, entry: NodeModel) -> NodeView:
    models = {m.name: m for m in node.spec.models} | {entry.name: entry}
    return replace(node, spec=node.spec.model_copy(update={"models": tuple(models.values())}))


def _tell_undecided(world: World, rollout: RolloutView, error: Exception, writer: Writer) -> None:
    key = (rollout.namespace, rollout.name)
    resource = next(r for r in world.of("EngineRollout") if (r.meta.namespace or "", r.meta.name) == key)
    finding = Finding(reason=Reason.CHECK_FAILED, message=f"cannot be decided about: {error}")
    old, generation = rollout.status, rollout.generation
    conditions = kstatus.placed(old.conditions, "Failed", finding, generation=generation, now=world.now)
    writer.status(resource, old.model_copy(update={"conditions": conditions, "observed_generation": generation}))


def _tell_broken(world: World, writer: Writer) -> None:
    for broken in world.broken:
        writer.say(broken.ref, broken.error.reason, str(broken.error), warning=True)


def quarantine_resource(spec: QuarantineSpec) -> Resource:
    """Return the object of a quarantine, named by digest and class: the same fault makes the same object."""
    name = f"{digest12(spec.digest)}-{spec.device_class or 'all'}"
    return Resource(kind="EngineQuarantine", meta=ObjectMeta(name=name), spec=spec, status=QuarantineStatus())


def _write_quarantines(decided: Iterable[tuple[RolloutView, Decision]], writer: Writer) -> None:
    for _, decision in decided:
        for spec in decision.quarantines:
            writer.apply(quarantine_resource(spec))


def _write_nodes(
    world: World,
    nodes: dict[str, NodeView],
    quarantines: tuple[QuarantineSpec, ...],
    writer: Writer,
    patience: Callable[[], bool],
) -> frozenset[str]:
    """Tell the nodes what is new to them; return the names of those that there was no time to tell."""
    urgent: list[Resource] = []
    patient: list[Resource] = []
    sizes = Counter(n.device_class for n in nodes.values())
    for resource in world.of("NodeEngine"):
        node = nodes[resource.meta.name]
        if not node.known_class:
            continue
        assert isinstance(resource.spec, NodeEngineSpec)
        spec = scrub_spec(node.spec, quarantined_digests(quarantines, node.device_class))
        spec = spread_answers(spec, sizes[node.device_class])
        if spec != resource.spec:
            changed = replace(resource, meta=owned(resource.meta), spec=spec)
            (patient if advances(resource.spec, spec) else urgent).append(changed)
    writer.apply_all(urgent)
    return frozenset(r.meta.name for r in writer.apply_all(patient, patience))


def _write_rollouts(
    world: World, decided: Iterable[tuple[RolloutView, Decision]], writer: Writer
) -> tuple[Reverted, ...]:
    """Write events, then status; return what went back. A status that was refused is decided, and counted, again."""
    resources = {(r.meta.namespace, r.meta.name): r for r in world.of("EngineRollout")}
    reverted: list[Reverted] = []
    for rollout, decision in decided:
        resource = resources[(rollout.namespace, rollout.name)]
        ref = Ref(kind="EngineRollout", name=rollout.name, namespace=rollout.namespace)
        before = _state(resource) if decision.events else ""
        for said in decision.events:
            writer.say(ref, said.reason, said.message, warning=said.type == "Warning", transition=before)
        written = writer.status(resource, decision.status)
        reverted += [
            Reverted(device_class=s.reverted, model=rollout.spec.model, reason=s.reason)
            for s in decision.events
            if written and s.reverted
        ]
    return tuple(reverted)


def _state(resource: Resource) -> str:
    """Return what names the state that a transition leaves: the object and its status, of which alone it is decided."""
    status = json.dumps([resource.meta.uid, resource.status.sparse()], sort_keys=True)
    return digest12(digest_bytes(status.encode()))
