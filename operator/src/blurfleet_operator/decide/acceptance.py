"""May this spec be started? A chain of named checks, first violation wins; the tables of the tests pin the order."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from blurfleet.api.admission import quarantines_hitting
from blurfleet.api.engineset import Interface
from blurfleet.api.nodeengine import DEVICE_CLASSES
from blurfleet.api.policy import UNAVAILABLE, PolicySpec
from blurfleet.api.quarantine import QuarantineSpec
from blurfleet.api.record import Tensor
from blurfleet.identity import digest12
from blurfleet.reasons import Reason
from blurfleet_operator.decide.choice import selects, source_of, variants_for
from blurfleet_operator.decide.observation import Finding, NodeView, Observation


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What is asked for: the observation, the nodes it selects, and whether an attempt would begin."""

    obs: Observation
    selected: tuple[NodeView, ...]
    starting: bool
    now: float

    @property
    def classes(self) -> tuple[str, ...]:
        """Return the classes of the selected nodes."""
        return tuple(sorted({n.device_class for n in self.selected}))


Check = Callable[[Asked], Finding | None]


def policy_problem(name: str, policy: PolicySpec, classes: Iterable[str]) -> Finding | None:
    """Return why `policy` cannot judge engines on `classes`, None where it can."""
    unknown = sorted({c for rule in policy.metrics for c in rule.classes} - set(DEVICE_CLASSES))
    if unknown:
        known = ", ".join(DEVICE_CLASSES)
        return Finding(reason=Reason.UNKNOWN_CLASS, message=f"policy {name} names class {unknown[0]!r}; one of {known}")
    missing = sorted({rule.metric for rule in policy.metrics} & UNAVAILABLE)
    if missing:
        message = f"policy {name} names {missing[0]}, which cannot be measured yet; remove that rule"
        return Finding(reason=Reason.METRIC_UNAVAILABLE, message=message)
    bare = [c for c in classes if not any(not r.classes or c in r.classes for r in policy.metrics)]
    if bare or not policy.metrics:
        where = f" for {', '.join(bare)}" if bare else ""
        message = f"policy {name} has no limits{where}; nothing would ever be judged"
        return Finding(reason=Reason.POLICY_WITHOUT_LIMITS, message=message)
    return None


def known_set(asked: Asked) -> Finding | None:
    """The engine set exists and is of this model."""
    spec = asked.obs.rollout.spec
    found = asked.obs.sets.get(spec.engine_set)
    if found is None:
        return Finding(reason=Reason.UNKNOWN_ENGINE_SET, message=f"no EngineSet named {spec.engine_set}")
    if found.model != spec.model:
        message = f"EngineSet {spec.engine_set} is of model {found.model}, not {spec.model}"
        return Finding(reason=Reason.UNKNOWN_ENGINE_SET, message=message)
    return None


def known_policy(asked: Asked) -> Finding | None:
    """The policy exists, once it is needed: a running attempt keeps its snapshot."""
    spec, status = asked.obs.rollout.spec, asked.obs.rollout.status
    if not asked.starting and status.policy_name == spec.policy_ref:
        return None
    if spec.policy_ref not in asked.obs.policies:
        return Finding(reason=Reason.UNKNOWN_POLICY, message=f"no QualityPolicy named {spec.policy_ref}")
    return policy_problem(spec.policy_ref, asked.obs.policies[spec.policy_ref], asked.classes)


def known_classes(asked: Asked) -> Finding | None:
    """The selector names classes that exist."""
    unknown = sorted(set(asked.obs.rollout.spec.selector.classes) - set(DEVICE_CLASSES))
    if not unknown:
        return None
    known = ", ".join(DEVICE_CLASSES)
    return Finding(reason=Reason.UNKNOWN_CLASS, message=f"selector names class {unknown[0]!r}; one of {known}")


def known_contract(asked: Asked) -> Finding | None:
    """The set's contract exists."""
    spec = asked.obs.rollout.spec
    ref = asked.obs.sets[spec.engine_set].contract_ref
    if ref in asked.obs.contracts:
        return None
    message = f"EngineSet {spec.engine_set} needs PreprocessContract {ref}, which does not exist"
    return Finding(reason=Reason.UNKNOWN_CONTRACT, message=message)


def not_owned(asked: Asked) -> Finding | None:
    """No older rollout of the model selects one of the nodes."""
    me = asked.obs.rollout
    older = [o for o in asked.obs.others if o.spec.model == me.spec.model and o.age_key < me.age_key]
    for node in asked.selected:
        owner = next((o for o in older if selects(o.spec.selector, node)), None)
        if owner is not None:
            message = f"{me.spec.model} on {node.name} belongs to the older rollout {owner.namespace}/{owner.name}"
            return Finding(reason=Reason.MODEL_OWNED, message=message)
    return None


def not_quarantined(asked: Asked) -> Finding | None:
    """The set holds no digest that is quarantined for a selected class."""
    spec = asked.obs.rollout.spec
    if not asked.starting:
        return None
    hits = quarantines_hitting(asked.obs.sets[spec.engine_set], asked.obs.quarantines, asked.classes)
    if not hits:
        return None
    return Finding(reason=Reason.QUARANTINED, message=quarantine_words(spec.engine_set, hits))


def quarantine_words(set_name: str, hits: Iterable[tuple[QuarantineSpec, str]]) -> str:
    """Return the sentence that names every quarantined variant of a set, its class and its reason."""
    parts = {f"{name} ({q.digest}, {q.device_class or 'every class'}: {q.reason})" for q, name in hits}
    return f"EngineSet {set_name} holds quarantined engines: {', '.join(sorted(parts))}"


def same_contract(asked: Asked) -> Finding | None:
    """The set's contract is the one that the selected nodes serve under now: another one is another alias."""
    spec = asked.obs.rollout.spec
    if not asked.starting:
        return None
    new = asked.obs.contract_hashes[asked.obs.sets[spec.engine_set].contract_ref]
    for node in asked.selected:
        served = node.wanted(spec.model)
        if served is not None and served.primary is not None and served.contract_hash not in ("", new):
            message = (
                f"EngineSet {spec.engine_set} has contract {digest12(new)}, {node.name} serves {spec.model} under "
                f"{digest12(served.contract_hash)}; clients would break: use another model name"
            )
            return Finding(reason=Reason.CONTRACT_CHANGED, message=message)
    return None


def same_interface(asked: Asked) -> Finding | None:
    """Tensors keep their names, dtypes and shapes, as far as the new set and the served ones say what they are."""
    spec, sets = asked.obs.rollout.spec, asked.obs.sets
    new = sets[spec.engine_set].interface
    if not asked.starting or new is None:
        return None
    for node in asked.selected:
        served = node.wanted(spec.model)
        source = source_of(sets, served.primary) if served is not None and served.primary is not None else None
        if source is None or source.interface in (None, new):
            continue
        message = (
            f"EngineSet {spec.engine_set} has {_tensors(new)}, {node.name} serves {spec.model} with "
            f"{_tensors(source.interface)}; clients would break: use another model name"
        )
        return Finding(reason=Reason.CONTRACT_CHANGED, message=message)
    return None


def _tensors(interface: Interface) -> str:
    def one(tensor: Tensor) -> str:
        return f"{tensor.name} {tensor.dtype}{list(tensor.shape)}"

    return f"{', '.join(map(one, interface.inputs))} -> {', '.join(map(one, interface.outputs))}"


def compatible(asked: Asked) -> Finding | None:
    """Every selected node that was heard from has a variant; checked before anything is written."""
    spec = asked.obs.rollout.spec
    lone = [
        n for n in asked.selected if n.reachable(asked.now) and not variants_for(asked.obs.sets[spec.engine_set], n)
    ]
    if not lone:
        return None
    facts = lone[0].status.facts
    message = (
        f"EngineSet {spec.engine_set} has no variant for {', '.join(n.name for n in lone)}: "
        f"needs class {lone[0].device_class}, sm {facts.sm}, platform {facts.platform!r}, "
        f"runtime {facts.runtime_version!r} exactly"
    )
    return Finding(reason=Reason.NO_VARIANT_FOR_NODE, message=message)


# Each check may rely on the ones before it: the set and its contract are there once validity holds.
CHAIN: tuple[Check, ...] = (
    known_set,
    known_policy,
    known_classes,
    known_contract,
    not_owned,
    not_quarantined,
    same_contract,
    same_interface,
    compatible,
)


def refusal(asked: Asked) -> Finding | None:
    """Return the first violation of the chain, None where the spec is accepted."""
    for check in CHAIN:
        found = check(asked)
        if found is not None:
            return found
    return None
