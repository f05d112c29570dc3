"""Cross-object rules, judged before a write: what a store refuses, and the sentence a person can act on.

The same rules stand as ValidatingAdmissionPolicy in a cluster. They have no clock: an expired quarantine refuses until
the controller deletes it. Shape and cross-field rules live in the models.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import cast

from blurfleet.api.engineset import EngineSetSpec
from blurfleet.api.kinds import KINDS, Resource
from blurfleet.api.nodeengine import DEVICE_CLASSES, NodeEngineSpec
from blurfleet.api.quarantine import QuarantineSpec, QuarantineStatus
from blurfleet.api.rollout import RolloutSpec, RolloutStatus
from blurfleet.identity import digest12
from blurfleet.reasons import Reason

# By this annotation a person says that a set may go though a rollout may need it.
LET_GO = "blurfleet.dev/let-go"


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """Why a write is refused."""

    reason: Reason
    message: str


def review(
    new: Resource,
    old: Resource | None,
    *,
    quarantines: Sequence[Resource],
    sets: Sequence[Resource],
    rollouts: Sequence[Resource] = (),  # noqa: ARG001  a store passes all that a policy engine could read
) -> list[Refusal]:
    """Return every rule that refuses replacing `old` (None: create) by `new`; empty means admitted.

    An unchanged spec always passes, so that labels can change and a re-apply is a no-op.
    """
    if old is not None and old.spec == new.spec:
        return []
    if old is not None and KINDS[new.kind].immutable:
        return [Refusal(reason=Reason.IMMUTABLE, message=f"{new.key} is immutable; create one with another name")]
    if new.kind == "EngineSet":
        return _set_refusals(new, quarantines)
    if new.kind == "EngineRollout":
        return _fixed_in_rollout(new, old) + _rollout_refusals(new, old, quarantines, sets)
    if new.kind == "EngineQuarantine":
        return _fixed_in_quarantine(new, old)
    if new.kind == "NodeEngine":
        return _node_refusals(cast(NodeEngineSpec, new.spec))
    return []


def review_deletion(old: Resource, rollouts: Iterable[Resource]) -> list[Refusal]:
    """Return every rule that refuses deleting `old`; empty means admitted.

    A set that a rollout of its namespace serves or would go back to stays: without it a class goes back to less.
    """
    if old.kind != "EngineSet" or old.meta.annotations.get(LET_GO) == "true":
        return []
    name, space = old.meta.name, old.meta.namespace
    holders = [
        r.meta.name for r in rollouts if r.meta.namespace == space and name in cast(RolloutStatus, r.status).keeps
    ]
    return [
        Refusal(
            reason=Reason.IN_USE,
            message=(
                f"EngineSet {name} is what EngineRollout {holder} serves or would go back to; delete it once another "
                f"set is promoted and spec.rollbackWindow is over, or annotate it {LET_GO}=true first"
            ),
        )
        for holder in holders
    ]


def quarantines_hitting(
    spec: EngineSetSpec, quarantines: Iterable[QuarantineSpec], classes: Iterable[str] | None = None
) -> list[tuple[QuarantineSpec, str]]:
    """Return (quarantine, variant name) for every variant whose digest is refused for its own class.

    `classes` None looks at every variant, else only at those built for one of `classes`.
    """
    wanted = None if classes is None else frozenset(classes)
    return [
        (q, v.name)
        for q in quarantines
        for v in spec.variants
        if v.artifact.digest == q.digest
        and (q.device_class is None or q.device_class == v.target.device_class)
        and (wanted is None or v.target.device_class in wanted)
    ]


def _words(q: QuarantineSpec, what: str) -> str:
    scope = f"on {q.device_class}" if q.device_class else "everywhere"
    note = f" ({q.note})" if q.note else ""
    return (
        f"{what} {q.digest} is quarantined {scope}: {q.reason}{note}; "
        f"delete the EngineQuarantine of {digest12(q.digest)} to lift it, or use another set"
    )


def _set_refusals(new: Resource, quarantines: Sequence[Resource]) -> list[Refusal]:
    specs = [cast(QuarantineSpec, q.spec) for q in quarantines]
    hits = quarantines_hitting(cast(EngineSetSpec, new.spec), specs)
    return [Refusal(reason=Reason.QUARANTINED, message=_words(q, f"{new.key}: variant {name}")) for q, name in hits]


def _rollout_refusals(
    new: Resource, old: Resource | None, quarantines: Sequence[Resource], sets: Sequence[Resource]
) -> list[Refusal]:
    spec = cast(RolloutSpec, new.spec)
    before = cast(RolloutSpec, old.spec) if old is not None else None
    if before is not None and before.engine_set == spec.engine_set:
        return []
    classes = frozenset(spec.selector.classes) or None
    found = next((s for s in sets if s.meta.name == spec.engine_set and s.meta.namespace == new.meta.namespace), None)
    label = f"{new.meta.namespace}/{spec.engine_set}"
    refusals = []
    for resource in quarantines:
        q = cast(QuarantineSpec, resource.spec)
        listed = label in cast(QuarantineStatus, resource.status).engine_sets
        selected = q.device_class is None or classes is None or q.device_class in classes
        held = found is not None and quarantines_hitting(cast(EngineSetSpec, found.spec), [q], classes)
        if (listed and selected) or held:
            refusals.append(
                Refusal(reason=Reason.QUARANTINED, message=_words(q, f"engine set {spec.engine_set}: digest"))
            )
    return refusals


def _fixed_in_rollout(new: Resource, old: Resource | None) -> list[Refusal]:
    if old is None:
        return []
    spec, before, status = cast(RolloutSpec, new.spec), cast(RolloutSpec, old.spec), cast(RolloutStatus, old.status)
    refusals = []
    if spec.model != before.model:
        message = f"{new.key}: model cannot change; create another EngineRollout for another model"
        refusals.append(Refusal(reason=Reason.IMMUTABLE, message=message))
    swapped = spec.policy_ref != before.policy_ref and spec.engine_set == before.engine_set
    if swapped and _under_way(status, before):
        message = (
            f"{new.key} is {status.phase} under policy {before.policy_ref}, which was read at its start; "
            "abort it first, or change engineSet with it"
        )
        refusals.append(Refusal(reason=Reason.IMMUTABLE, message=message))
    return refusals


def _under_way(status: RolloutStatus, spec: RolloutSpec) -> bool:
    """Tell whether the policy that was read at the start of the attempt still judges, however the phase reads."""
    return (status.set == spec.engine_set and not status.outcome) or status.phase == "RollingBack"


def _fixed_in_quarantine(new: Resource, old: Resource | None) -> list[Refusal]:
    if old is None:
        return []
    spec, before = cast(QuarantineSpec, new.spec), cast(QuarantineSpec, old.spec)
    if (spec.digest, spec.device_class) == (before.digest, before.device_class):
        return []
    message = (
        f"{new.key}: digest and class of a quarantine cannot change; delete it to lift it, create another for more"
    )
    return [Refusal(reason=Reason.IMMUTABLE, message=message)]


def _node_refusals(spec: NodeEngineSpec) -> list[Refusal]:
    if spec.device_class in DEVICE_CLASSES:
        return []
    known = ", ".join(DEVICE_CLASSES)
    message = f"deviceClass {spec.device_class!r} is unknown; one of {known}"
    return [Refusal(reason=Reason.UNKNOWN_CLASS, message=message)]
