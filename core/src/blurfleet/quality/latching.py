"""Taking an engine off, keeping it off, and letting it serve again."""

from __future__ import annotations

from dataclasses import replace

from blurfleet.quality.judging import says
from blurfleet.quality.state import Act, Breach, GuardAction, GuardPolicy, GuardState, Latch, LatchKind, Phase, Trip
from blurfleet.reasons import Reason

HOUR_S = 3600.0
Outcome = tuple[GuardState, GuardAction]


def swap(state: GuardState, policy: GuardPolicy, now: float, trip: Trip, breaches: tuple[Breach, ...]) -> Outcome:
    """Return the state latched off by `trip`, and the Swap. The caller has made sure that the fallback is proven."""
    swaps = (*(at for at in state.swaps_at if now - at < HOUR_S), now)[-(policy.max_swaps_per_hour + 1) :]
    state = replace(state, swaps_at=swaps)
    flapping = len(swaps) > policy.max_swaps_per_hour
    latched, latch = _latched(state, policy, now, trip, flapping=flapping)
    message = says(trip)
    if flapping:
        message += f"; more than {policy.max_swaps_per_hour} swaps within an hour, so it stays off"
    action = GuardAction(
        act=Act.SWAP, reason=trip.reason, message=message, trip=trip, breaches=breaches, latch=latch.kind, page=True
    )
    return latched, action


def relatch(state: GuardState, policy: GuardPolicy, now: float, trip: Trip, breaches: tuple[Breach, ...]) -> Outcome:
    """Return the state after a trip in Probation: off again, for twice as long. Nothing served changes."""
    latched, latch = _latched(state, policy, now, trip, flapping=False)
    message = f"tripped again in shadow: {trip.metric} {trip.value:.6g} against {trip.limit:g}"
    return latched, GuardAction(
        act=Act.ALERT, reason=trip.reason, message=message, trip=trip, breaches=breaches, latch=latch.kind
    )


def rearm(state: GuardState, policy: GuardPolicy, now: float, *, opened: bool, breaches: tuple[Breach, ...]) -> Outcome:
    """Return the state after a valid shadow sample in Probation; Rearm once enough were sound and no run is open."""
    proven = state.proven_samples + (0 if breaches else 1)
    if opened or proven < policy.probation_samples:
        message = f"{min(proven, policy.probation_samples)}/{policy.probation_samples} sound samples"
        reason = Reason.BREACH_PENDING if opened else Reason.PROBATION
        return replace(state, proven_samples=proven), GuardAction(reason=reason, message=message, breaches=breaches)
    served = replace(state, phase=Phase.MONITOR, proven_samples=0, latch=None, streams=(), begun_at=now)
    message = f"{proven} sound samples in shadow; serve it again"
    return served, GuardAction(act=Act.REARM, reason=Reason.REPROVEN, message=message)


def _latched(
    state: GuardState, policy: GuardPolicy, now: float, trip: Trip, *, flapping: bool
) -> tuple[GuardState, Latch]:
    kind = LatchKind.DRIFT
    if trip.sentinel:
        kind = LatchKind.SENTINEL
    elif flapping:
        kind = LatchKind.FLAPPING
    wait = state.back_off_s or policy.back_off_s
    again = now + wait if kind is LatchKind.DRIFT and policy.probation_enabled else None
    latch = Latch(kind=kind, reason=trip.reason, at=now, probation_at=again)
    after = replace(
        state,
        phase=Phase.SWAPPED,
        streams=(),
        valid_by_rule=(),
        held=None,
        holding=(),
        warned=(),
        stale=False,
        last_trip=trip,
        latch=latch,
        back_off_s=min(2 * wait, policy.max_back_off_s),
        proven_samples=0,
    )
    return after, latch
