"""How our objects read to those that know only kstatus: Flux, `kubectl wait`, Argo CD by its script.

They read `status.observedGeneration` and three conditions: `Ready`, `Reconciling` (work goes on by itself) and
`Stalled` (nothing goes on until a person acts). At most one of the last two is True, and neither where `Ready` is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from blurfleet.api.meta import Condition, ConditionStatus, condition, set_condition
from blurfleet.api.rollout import Phase
from blurfleet.reasons import Reason
from blurfleet_operator.decide.observation import Finding, instant

State = Literal["Current", "InProgress", "Failed"]

# Git's objects arrive one by one: what a rollout or a set names may be a moment behind it.
ARRIVAL_S = 30.0
ARRIVES = frozenset({Reason.UNKNOWN_ENGINE_SET, Reason.UNKNOWN_POLICY, Reason.UNKNOWN_CONTRACT})
_OVER: tuple[Phase, ...] = ("Stalled", "RolledBack", "Aborted")


def rollout_state(phase: Phase, reason: Reason, *, ready: bool, arriving: bool) -> State:
    """Return how a rollout in `phase`, shown for `reason`, reads; `arriving`: what it names may still come.

    A promoted rollout that a trip holds waits for a retry or another set, with no deadline: Failed. Every other hold
    ends by itself or by a gate, and the progress deadline turns it into phase Stalled.
    """
    if ready:
        return "Current"
    if phase == "Stalled" and arriving and reason in ARRIVES:
        return "InProgress"
    if phase in _OVER or (phase == "Promoted" and reason is Reason.HOLD_TRIPPED):
        return "Failed"
    return "InProgress"


def arrival_left(
    conditions: tuple[Condition, ...], reason: Reason, now: float, *, of: str = "ReferencesFound"
) -> float:
    """Return for how many seconds more something that is named and missing may still come; 0 for other reasons.

    30 s, counted from when the condition `of` became False.
    """
    if reason not in ARRIVES:
        return 0.0
    found = condition(conditions, of)
    since = instant(found.last_transition_time) if found is not None and found.status == "False" else None
    return ARRIVAL_S if since is None else max(0.0, since + ARRIVAL_S - now)


def placed(
    conditions: tuple[Condition, ...],
    state: State,
    finding: Finding,
    *,
    generation: int,
    now: float,
    unsure: bool = False,
) -> tuple[Condition, ...]:
    """Return `conditions` with the three of kstatus for `state`. `unsure`: Ready is Unknown rather than False."""
    not_ready: ConditionStatus = "Unknown" if unsure else "False"
    for kind, status in _statuses(state, not_ready):
        new = Condition(
            type=kind,
            status=status,
            reason=finding.reason,
            message=finding.message[:2048],
            observed_generation=generation,
        )
        conditions = set_condition(conditions, new, now)
    return conditions


def _statuses(state: State, not_ready: ConditionStatus) -> Iterable[tuple[str, ConditionStatus]]:
    yield "Ready", "True" if state == "Current" else not_ready
    yield "Reconciling", "True" if state == "InProgress" else "False"
    yield "Stalled", "True" if state == "Failed" else "False"
