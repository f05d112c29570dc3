"""Statuses of the kinds that a rollout only reads: sets, policies, contracts, quarantines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from blurfleet.api.admission import quarantines_hitting
from blurfleet.api.contract import ContractSpec, ContractStatus
from blurfleet.api.engineset import EngineSetSpec, EngineSetStatus
from blurfleet.api.kinds import Resource
from blurfleet.api.meta import Condition, ConditionStatus, set_condition
from blurfleet.api.nodeengine import DEVICE_CLASSES
from blurfleet.api.policy import PolicySpec, PolicyStatus
from blurfleet.api.quarantine import MOST_SETS, QuarantineSpec, QuarantineStatus
from blurfleet.contract import contract_hash
from blurfleet.reasons import Reason
from blurfleet_operator.decide.acceptance import policy_problem, quarantine_words
from blurfleet_operator.decide.choice import variants_for
from blurfleet_operator.decide.kstatus import State, arrival_left, placed
from blurfleet_operator.decide.observation import Finding, NodeView, instant


def policy_status(resource: Resource, now: float) -> PolicyStatus:
    """Return the status of a QualityPolicy: Ready when every class it names is judged by rules that can be measured."""
    spec, old = resource.spec, resource.status
    assert isinstance(spec, PolicySpec)
    assert isinstance(old, PolicyStatus)
    named = {c for r in spec.metrics for c in r.classes} & set(DEVICE_CLASSES)
    problem = policy_problem(resource.meta.name, spec, sorted(named))
    fine = Finding(reason=Reason.ACCEPTED, message="every rule can be evaluated")
    return PolicyStatus(
        observed_generation=resource.meta.generation,
        conditions=_standing(resource, old.conditions, "Failed" if problem else "Current", problem or fine, now),
    )


def contract_status(resource: Resource, now: float) -> ContractStatus:
    """Return the status of a PreprocessContract: its hash. One that was accepted is Ready, for it cannot change."""
    spec, old = resource.spec, resource.status
    assert isinstance(spec, ContractSpec)
    assert isinstance(old, ContractStatus)
    fine = Finding(reason=Reason.ACCEPTED, message="hashed")
    return ContractStatus(
        observed_generation=resource.meta.generation,
        hash=contract_hash(spec),
        conditions=_standing(resource, old.conditions, "Current", fine, now),
    )


def set_status(
    resource: Resource,
    nodes: Iterable[NodeView],
    quarantines: Iterable[QuarantineSpec],
    contracts: Mapping[str, object],
    now: float,
) -> EngineSetStatus:
    """Return the status of an EngineSet: Verified (nothing known against it), Compatible (nodes have a variant)."""
    spec, old = resource.spec, resource.status
    assert isinstance(spec, EngineSetSpec)
    assert isinstance(old, EngineSetStatus)
    verified = _verified(resource, spec, quarantines, contracts)
    finding = Finding(reason=verified.reason, message=verified.message)
    conditions = _standing(resource, old.conditions, _set_state(verified, old.conditions, now), finding, now)
    conditions = set_condition(conditions, verified, now)
    conditions = set_condition(conditions, _compatible(resource, spec, nodes, now), now)
    return EngineSetStatus(observed_generation=resource.meta.generation, conditions=conditions)


def _set_state(verified: Condition, conditions: tuple[Condition, ...], now: float) -> State:
    if verified.status == "True":
        return "Current"
    return "InProgress" if arrival_left(conditions, verified.reason, now, of="Verified") > 0 else "Failed"


def _verified(
    resource: Resource, spec: EngineSetSpec, quarantines: Iterable[QuarantineSpec], contracts: Mapping[str, object]
) -> Condition:
    hits = quarantines_hitting(spec, quarantines)
    if hits:
        words = quarantine_words(resource.meta.name, hits)
        return _said(resource, "Verified", "False", Reason.QUARANTINED, words)
    if spec.contract_ref not in contracts:
        words = f"no PreprocessContract named {spec.contract_ref}"
        return _said(resource, "Verified", "False", Reason.UNKNOWN_CONTRACT, words)
    words = "no variant is quarantined; bytes are checked against their digests on each node before they are loaded"
    return _said(resource, "Verified", "True", Reason.ACCEPTED, words)


def _compatible(resource: Resource, spec: EngineSetSpec, nodes: Iterable[NodeView], now: float) -> Condition:
    classes = {v.target.device_class for v in spec.variants}
    heard = [n for n in nodes if n.device_class in classes and n.reachable(now)]
    lone = [n.name for n in heard if not variants_for(spec, n)]
    if lone:
        words = f"no variant for {', '.join(lone)}: class, sm, platform and runtime version must match exactly"
        return _said(resource, "Compatible", "False", Reason.NO_VARIANT_FOR_NODE, words)
    if not heard:
        words = f"no node of {', '.join(sorted(classes))} was heard from"
        return _said(resource, "Compatible", "Unknown", Reason.STALE_HEARTBEAT, words)
    return _said(resource, "Compatible", "True", Reason.ACCEPTED, f"{len(heard)} nodes have a variant")


def quarantine_status(resource: Resource, sets: Iterable[Resource], now: float) -> QuarantineStatus:
    """Return the status of an EngineQuarantine: the sets that hold its digest, as namespace/name."""
    old = resource.status
    assert isinstance(resource.spec, QuarantineSpec)
    assert isinstance(old, QuarantineStatus)
    held = [
        f"{s.meta.namespace}/{s.meta.name}"
        for s in sets
        if isinstance(s.spec, EngineSetSpec) and quarantines_hitting(s.spec, [resource.spec])
    ]
    fine = Finding(reason=Reason.ACCEPTED, message=f"{len(held)} engine sets hold the digest")
    return QuarantineStatus(
        observed_generation=resource.meta.generation,
        engine_sets=tuple(sorted(held)[:MOST_SETS]),
        conditions=_standing(resource, old.conditions, "Current", fine, now),
    )


def expired(spec: QuarantineSpec, now: float) -> bool:
    """Tell whether the quarantine is over. An unreadable expiry never is: the safe side is to refuse."""
    until = instant(spec.expiry or "")
    return until is not None and until <= now


def _standing(
    resource: Resource, conditions: tuple[Condition, ...], state: State, finding: Finding, now: float
) -> tuple[Condition, ...]:
    return placed(conditions, state, finding, generation=resource.meta.generation, now=now)


def _said(resource: Resource, kind: str, status: ConditionStatus, reason: Reason, message: str) -> Condition:
    return Condition(
        type=kind, status=status, reason=reason, message=message[:2048], observed_generation=resource.meta.generation
    )
