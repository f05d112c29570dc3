"""What the guard's state amounts to as a verdict: for a candidate in shadow, and for any stretch of samples."""

from __future__ import annotations

from dataclasses import dataclass

from blurfleet.quality.guard import is_open, is_stale
from blurfleet.quality.state import GuardPolicy, GuardState, Phase
from blurfleet.quality.verdict import Verdict
from blurfleet.reasons import Reason


@dataclass(frozen=True, kw_only=True)
class Assessment:
    """A verdict with its reason, a sentence, and how many valid samples it rests on."""

    verdict: Verdict
    reason: Reason
    message: str
    samples_valid: int
    samples_required: int


def assess(state: GuardState, policy: GuardPolicy, now: float, *, required: int | None = None) -> Assessment:
    """Return the verdict on the engine that `state` guards, judged at `now`.

    Fail at a trip (acted on or held). Pass only with `required` valid samples (default `policy.shadow_samples`), every
    rule's own minimum reached, none of its runs open and the data fresh. Inconclusive otherwise.
    """
    need = policy.shadow_samples if required is None else required
    valid = state.counters.valid
    trip = state.held or (state.last_trip if state.phase in (Phase.SWAPPED, Phase.PROBATION) else None)

    def found(verdict: Verdict, reason: Reason, message: str) -> Assessment:
        return Assessment(verdict=verdict, reason=reason, message=message, samples_valid=valid, samples_required=need)

    if trip is not None:
        return found(Verdict.FAIL, trip.reason, f"{trip.metric} {trip.value:.6g} against {trip.limit:g}")
    if state.holding:
        rule = next(r for r in policy.rules if r.order == state.holding[0])
        return found(Verdict.INCONCLUSIVE, rule.reason, f"{rule.metric} asks to hold")
    if is_open(state, policy):
        return found(Verdict.INCONCLUSIVE, Reason.BREACH_PENDING, "breaches that could still become a trip")
    if valid == 0:
        came = state.counters.invalid + state.counters.sentinel
        reason = Reason.INSUFFICIENT_SAMPLES if came else Reason.NO_DATA
        return found(Verdict.INCONCLUSIVE, reason, "no valid sample")
    short = _short_rule(state, policy)
    if valid < need or short:
        return found(Verdict.INCONCLUSIVE, Reason.INSUFFICIENT_SAMPLES, short or f"{valid}/{need} valid samples")
    if is_stale(state, policy, now):
        return found(Verdict.INCONCLUSIVE, Reason.STREAM_STOPPED, "the last valid sample is too old")
    return found(Verdict.PASS, Reason.WITHIN_LIMITS, f"{valid} valid samples within limits")


def _short_rule(state: GuardState, policy: GuardPolicy) -> str:
    seen = state.valid_by_rule or (0,) * len(policy.rules)
    for rule, count in zip(policy.rules, seen, strict=True):
        if rule.action != "Warn" and count < rule.min_valid:
            return f"{rule.metric} has {count}/{rule.min_valid} valid samples"
    return ""
