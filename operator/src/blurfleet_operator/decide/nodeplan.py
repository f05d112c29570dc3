"""What one node is told about the model. Every branch returns the whole entry, or the one it has: no half changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from blurfleet.answers import spread_s
from blurfleet.api.base import seconds
from blurfleet.api.capabilities import lacking, needed, within
from blurfleet.api.contract import DEFAULT_CONTRACT
from blurfleet.api.engineset import InputProfile
from blurfleet.api.nodeengine import EngineRef, NodeEngineSpec, NodeModel
from blurfleet.api.policy import PolicySpec
from blurfleet.api.rollout import RolloutStatus
from blurfleet_operator.decide.attempt import is_mine
from blurfleet_operator.decide.choice import (
    best,
    good_engine,
    known_good_for,
    quarantined_digests,
    revert_target,
    source_of,
)
from blurfleet_operator.decide.observation import NodeView, Observation, instant


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The attempt as the nodes feel it."""

    obs: Observation
    status: RolloutStatus
    reached: frozenset[str]
    tripped: frozenset[str]
    may_assign: bool
    may_promote: bool
    quick: frozenset[str]
    now: float

    @property
    def model(self) -> str:
        """Return the model's name."""
        return self.obs.rollout.spec.model

    @cached_property
    def drained(self) -> frozenset[str]:
        """Return the names of the drained nodes."""
        return frozenset(self.status.drained)

    @cached_property
    def sound(self) -> Mapping[str, frozenset[str]]:
        """Return the names of the nodes of each class that answer clients and are not suspect."""
        found: dict[str, set[str]] = {}
        for node in self.obs.nodes:
            if _sound(self, node):
                found.setdefault(node.device_class, set()).add(node.name)
        return {device_class: frozenset(names) for device_class, names in found.items()}

    def refused(self, node: NodeView) -> frozenset[str]:
        """Return the digests quarantined for the node."""
        return quarantined_digests(self.obs.quarantines, node.device_class) | frozenset(node.spec.quarantined)


def plan_node(plan: Plan, node: NodeView) -> NodeModel | None:
    """Return the node's entry for the model, None where it is told nothing about it."""
    entry = _planned(plan, node)
    return entry.model_copy(update={"drained": yields(plan, node)}) if entry is not None else None


def released(plan: Plan, node: NodeView) -> NodeModel | None:
    """Return the entry of a node that is selected no more: what it serves stays, a candidate of this rollout goes."""
    has = node.wanted(plan.model)
    if has is None or has.candidate is None or not is_mine(plan.obs, has.attempt):
        return None
    return _without_candidate(plan, node, has)


def yields(plan: Plan, node: NodeView) -> bool:
    """Tell whether a suspect node's gateway sends its clients away: only where a sound node of the class answers them.

    The last one stays: its pictures are still screened, and none at all is an outage on a suspicion. Once drained, a
    node stays so through a new attempt or a rollback until its standby passes golden frames again.
    """
    suspect = node.name in plan.drained or _still_fails(plan, node)
    return suspect and bool(plan.sound.get(node.device_class, frozenset()) - {node.name})


def _still_fails(plan: Plan, node: NodeView) -> bool:
    told, said = node.wanted(plan.model), node.said(plan.model, "FallbackReady")
    return (
        told is not None and told.drained and told.fallback is not None and said is not None and said.status == "False"
    )


def _sound(plan: Plan, node: NodeView) -> bool:
    suspect = node.name in plan.drained or _still_fails(plan, node)
    return not suspect and node.reachable(plan.now) and bool(node.serving_digest(plan.model))


def _planned(plan: Plan, node: NodeView) -> NodeModel | None:
    has = _of_its_class(plan, node)
    if node.device_class in plan.status.reverted_classes or plan.status.outcome == "Aborted":
        return _reverted(plan, node, has)
    if plan.status.outcome == "RolledBack":
        return _finished(plan, node, has)
    if node.name not in plan.reached or (not node.reachable(plan.now) and has is None):
        return _spared(plan, node, has)
    return _advanced(plan, node, has)


def _of_its_class(plan: Plan, node: NodeView) -> NodeModel | None:
    """Return what the node is told, nothing where that was built for another class: a moved node is proven anew."""
    has = node.wanted(plan.model)
    primary = has.primary or has.candidate if has else None
    source = source_of(plan.obs.sets, primary) if primary else None
    variant = next((v for v in source.variants if primary and v.name == primary.variant), None) if source else None
    if has is None or variant is None or variant.target.device_class == node.device_class:
        return has
    return has.model_copy(update={"primary": None, "fallback": None, "candidate": None, "oracle": None, "golden": None})


def _advanced(plan: Plan, node: NodeView, has: NodeModel | None) -> NodeModel | None:
    want = best(plan.obs.sets, plan.status.set, node, plan.refused(node))
    if want is None or lacking(needed(plan.status.policy), node.status.facts.capabilities):
        return _spared(plan, node, has)
    primary = has.primary if has else None
    if primary is not None and primary.digest == want.digest:
        return _entry(plan, node, primary=want, candidate=None)
    if primary is not None and node.device_class in plan.quick and plan.may_promote:
        return _entry(plan, node, primary=want, candidate=None)
    # A node that serves nothing starts with the set's FP32: there must be something to shadow, and to fall back to.
    step = want if primary is not None else best(plan.obs.sets, plan.status.set, node, plan.refused(node), fp32=True)
    if step is None:
        return _spared(plan, node, has)
    if plan.may_promote and proven(plan, node, step):
        after = want if step.digest != want.digest else None
        return _entry(plan, node, primary=step, candidate=after if plan.may_assign else None)
    given = has.candidate if has else None
    if given is not None and given.digest == step.digest and has is not None and has.attempt == plan.status.attempt:
        return _entry(plan, node, primary=_kept(plan, node, has), candidate=step)
    swap = node.said(plan.model, "SwapProven")
    if plan.may_assign and not (primary is not None and swap is not None and swap.status == "False"):
        return _entry(plan, node, primary=_kept(plan, node, has), candidate=step)
    return _spared(plan, node, has)


def proven(plan: Plan, node: NodeView, engine: EngineRef) -> bool:
    """Tell whether `node` proved `engine` in this attempt on enough valid samples, and stands on a ready fallback."""
    candidate = node.candidate(plan.model, engine.digest, plan.status.attempt)
    has = node.wanted(plan.model)
    if candidate is None or has is None or not node.reachable(plan.now) or has.attempt != plan.status.attempt:
        return False
    given = has.candidate
    if given is None or given.digest != engine.digest:
        return False
    ready = node.said(plan.model, "FallbackReady")
    if ready is None or ready.status != "True":
        return False
    return candidate.phase == "Proven" and candidate.samples_valid >= candidate.samples_required


def _kept(plan: Plan, node: NodeView, has: NodeModel | None) -> EngineRef | None:
    """Return the primary that stays while a candidate is tried, never one that tripped or is quarantined.

    A new attempt clears the node's latch, so a primary that tripped must not be left in place under it.
    """
    primary = has.primary if has else None
    if primary is None:
        return None
    observed = node.observed(plan.model)
    trip = observed.last_trip if observed else None
    latched = (
        trip is not None
        and (trip.digest, trip.attempt != plan.status.attempt) == (primary.digest, True)
        and not node.stands_on(plan.model, primary.digest)
    )
    if primary.digest not in plan.refused(node) and not latched:
        return primary
    bad = plan.refused(node) | {primary.digest}
    target = revert_target(plan.obs.sets, plan.status.known_good, node, bad, has)
    return target[1] if target else None


def _reverted(plan: Plan, node: NodeView, has: NodeModel | None) -> NodeModel | None:
    bad = plan.refused(node)
    target = revert_target(plan.obs.sets, plan.status.known_good, node, bad, has)
    if target is not None:
        good, engine = target
        return _entry(plan, node, primary=engine, candidate=None, policy_name=good.policy_name)
    if has is None:
        return None
    return _entry(plan, node, primary=_last_resort(plan, node, has), candidate=None)


def _last_resort(plan: Plan, node: NodeView, has: NodeModel) -> EngineRef | None:
    """Return what a node serves that cannot go back to a promoted set: what was only tried goes away.

    Its own primary where that is not of the set that is given up, then the fallback it holds, then the set's FP32. The
    given-up engine itself comes last, where it is not refused: an abort must not end serving.
    """
    if has.primary is None:
        return None
    spared = has.primary if not _of_attempt(plan, has.primary) else None
    own = best(plan.obs.sets, plan.status.set, node, plan.refused(node), fp32=True)
    order = (spared, has.fallback, own, has.primary)
    return next((e for e in order if e is not None and e.digest not in plan.refused(node)), None)


def _of_attempt(plan: Plan, engine: EngineRef) -> bool:
    """Tell whether `engine` is of the attempt's set: by its digest where the set is there to tell."""
    return engine.set == plan.status.set and (
        plan.status.set not in plan.obs.sets or source_of(plan.obs.sets, engine) is not None
    )


def _finished(plan: Plan, node: NodeView, has: NodeModel | None) -> NodeModel | None:
    """Leave an untouched class as it is; a candidate under test is dropped once its verdict is in."""
    kept = _spared(plan, node, has)
    if kept is None or kept.candidate is None or pending(plan, node, kept):
        return kept
    return _without_candidate(plan, node, kept)


def _without_candidate(plan: Plan, node: NodeView, has: NodeModel) -> NodeModel:
    """Return the entry with golden frames and oracle of the primary's own set again."""
    source = source_of(plan.obs.sets, has.primary) if has.primary else None
    oracle = _oracle(plan, node, has.primary, has.fallback)
    own = {"golden": source.golden if source else None, "profile": source.profile if source else InputProfile()}
    return has.model_copy(update={"candidate": None, "oracle": oracle, **own})


def _oracle(plan: Plan, node: NodeView, judged: EngineRef | None, fallback: EngineRef | None) -> EngineRef | None:
    """Return the FP32 engine of the set of `judged`; of a set that is gone, the one the node holds as its fallback."""
    if judged is None:
        return None
    if source_of(plan.obs.sets, judged) is not None:
        return best(plan.obs.sets, judged.set, node, plan.refused(node), fp32=True)
    held = fallback is not None and (fallback.set, fallback.precision) == (judged.set, "FP32")
    return fallback if held else None


def pending(plan: Plan, node: NodeView, has: NodeModel) -> bool:
    """Tell whether the node still tests its candidate of this attempt."""
    if has.candidate is None or has.attempt != plan.status.attempt or not node.reachable(plan.now):
        return False
    since = instant(plan.status.progress_at)
    if since is None or plan.now - since > seconds(plan.obs.rollout.spec.progress_deadline):
        return False
    candidate = node.candidate(plan.model, has.candidate.digest, plan.status.attempt)
    return candidate is None or candidate.phase in ("Staging", "Loading", "Golden")


def _spared(plan: Plan, node: NodeView, has: NodeModel | None) -> NodeModel | None:
    """Return the entry as it is, save engines that are quarantined and a candidate of an attempt that is over."""
    if has is None:
        return None
    bad = plan.refused(node)
    if has.candidate is not None and has.attempt != plan.status.attempt:
        has = _without_candidate(plan, node, has)
    if has.primary is not None and has.primary.digest in bad:
        target = revert_target(plan.obs.sets, plan.status.known_good, node, bad, has)
        if target is not None:
            return _entry(plan, node, primary=target[1], candidate=None, policy_name=target[0].policy_name)
    return scrubbed(has, bad)


def _entry(
    plan: Plan, node: NodeView, *, primary: EngineRef | None, candidate: EngineRef | None, policy_name: str = ""
) -> NodeModel:
    judged = candidate or primary
    source = source_of(plan.obs.sets, judged) if judged else None
    has = node.wanted(plan.model)
    fallback = _fallback(plan, node, primary, has)
    # Of a set that is gone the node has the golden frames still, where it is told of no other.
    same = has is not None and judged is not None and has.candidate is None and has.primary == judged
    golden = source.golden if source else has.golden if has is not None and same else None
    policy = plan.obs.policies.get(policy_name) if policy_name else None
    ref = source.contract_ref if source else ""
    return NodeModel(
        name=plan.model,
        attempt=plan.status.attempt,
        primary=primary,
        fallback=fallback,
        candidate=candidate,
        oracle=_oracle(plan, node, judged, fallback),
        golden=golden,
        profile=source.profile if source else has.profile if has is not None and same else InputProfile(),
        policy=within(policy or plan.status.policy or PolicySpec(), node.status.facts.capabilities),
        policy_name=policy_name if policy else plan.status.policy_name,
        contract=plan.obs.contracts.get(ref, has.contract if has else DEFAULT_CONTRACT),
        contract_hash=plan.obs.contract_hashes.get(ref, has.contract_hash if has else ""),
    )


def _fallback(plan: Plan, node: NodeView, primary: EngineRef | None, has: NodeModel | None) -> EngineRef | None:
    """Return the FP32 to swap to: the newest promoted set's that is usable, else the attempt's own.

    Once the attempt is Promoted its set is the newest promoted one. A class that goes back has lost the set from its
    list, so that primary and fallback come from the same known-good set.
    """
    bad = plan.refused(node)
    for good in known_good_for(plan.status.known_good, node.device_class):
        engine = good_engine(plan.obs.sets, good, node, bad, has, fp32=True)
        if engine is not None:
            return engine
    kept = has.fallback if has else None
    if kept is not None and kept.digest not in bad and source_of(plan.obs.sets, kept) is None:
        return kept
    if primary is None and plan.status.outcome in ("RolledBack", "Aborted"):
        return None
    return best(plan.obs.sets, plan.status.set, node, bad, fp32=True)


def scrubbed(entry: NodeModel, bad: frozenset[str]) -> NodeModel:
    """Return `entry` without quarantined engines: a bad primary gives way to the fallback, any other to nothing."""

    def allowed(engine: EngineRef | None) -> EngineRef | None:
        return engine if engine is not None and engine.digest not in bad else None

    fallback = allowed(entry.fallback)
    return entry.model_copy(
        update={
            "primary": allowed(entry.primary) or (fallback if entry.primary is not None else None),
            "fallback": fallback,
            "candidate": allowed(entry.candidate),
            "oracle": allowed(entry.oracle),
        }
    )


def scrub_spec(spec: NodeEngineSpec, bad: frozenset[str]) -> NodeEngineSpec:
    """Return the node's spec with `bad` listed as quarantined and in no entry."""
    if not bad and not spec.quarantined:
        return spec
    return spec.model_copy(
        update={"quarantined": tuple(sorted(bad)), "models": tuple(scrubbed(m, bad) for m in spec.models)}
    )


def advances(old: NodeEngineSpec, new: NodeEngineSpec) -> bool:
    """Tell whether `new` only brings engines: a candidate, or one to the primary's place. What takes one cannot wait.

    An entry that is new altogether brings one; so does what changes nothing of engines.
    """
    if not set(new.quarantined) <= set(old.quarantined):
        return False
    before = {m.name: m for m in old.models}
    if not before.keys() <= {m.name for m in new.models}:
        return False
    return all(_brings(before[m.name], m) for m in new.models if m.name in before)


def _brings(old: NodeModel, new: NodeModel) -> bool:
    if new.drained and not old.drained:
        return False
    stays = new.primary == old.primary or old.primary is None
    gains = new.candidate is not None or old.candidate is None
    return (stays and gains) or (new.primary is not None and new.primary == old.candidate)


def spread_answers(spec: NodeEngineSpec, nodes: int) -> NodeEngineSpec:
    """Return the spec with how long after an order this node, one of `nodes` of its class, reports it."""
    held = seconds(spec.answer_after) if spec.answer_after is not None else 0.0
    wanted = spread_s(nodes, held)
    return spec if wanted == held else spec.model_copy(update={"answer_after": f"{wanted:.0f}s" if wanted else None})
