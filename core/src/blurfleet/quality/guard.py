"""The guard: one sample in, the next state and an action out. Pure; the clock comes in as `now` (seconds).

Idle -> Monitor -> Alert -> Swapped -> Probation -> Monitor. A swap needs a proven fallback, always.
"""

from __future__ import annotations

from dataclasses import replace

from blurfleet.quality.judging import breaches_of, drift_seen, fatal_trip, is_fatal, marks_of, says, trip_of
from blurfleet.quality.latching import rearm, relatch, swap
from blurfleet.quality.runs import Entry
from blurfleet.quality.state import (
    RECENT_SAMPLES,
    Act,
    Breach,
    GuardAction,
    GuardPolicy,
    GuardState,
    Phase,
    Sample,
    Trip,
)
from blurfleet.quality.streams import admit, find, keep
from blurfleet.quality.verdict import Mark
from blurfleet.reasons import Reason

GAP_PERIODS = 2.0
"""Sampling periods without a breach that leave a `for` run open where its rule names no maxGap (DESIGN 6)."""
FORGET_AFTER = 10
"""A stream silent for this many stale times is forgotten, open run and all: its client is gone."""


def begin(digest: str, attempt: str, now: float, previous: GuardState | None = None) -> GuardState:
    """Return the state for guarding `digest` under `attempt`.

    The same digest and attempt go on as they were, latch and all. Anything else starts with empty windows and no latch;
    only the times of earlier swaps are kept, so that a node cannot flap by changing engines.
    """
    if previous is not None and (previous.digest, previous.attempt) == (digest, attempt):
        return previous
    swaps = previous.swaps_at if previous else ()
    return GuardState(digest=digest, attempt=attempt, begun_at=now, swaps_at=swaps)


def rebind(state: GuardState) -> GuardState:
    """Return the state for other rules: windows and counts are one a rule and mean nothing under another list."""
    return replace(state, streams=(), valid_by_rule=(), holding=(), warned=())


def rest(state: GuardState, now: float) -> GuardState:
    """Return the state while its engine serves nobody and is not shadowed: nothing waits, no silence counts."""
    return replace(rebind(state), phase=Phase.IDLE, held=None, begun_at=now, last_valid_at=None, stale=False)


def step(
    state: GuardState, sample: Sample, policy: GuardPolicy, now: float, *, fallback_ready: bool
) -> tuple[GuardState, GuardAction]:
    """Return the state after `sample`, which arrived at `now`, and what to do.

    A sample of another digest changes nothing but a counter. While Swapped nothing is judged; in Probation the samples
    are shadow ones. With `fallback_ready` false a trip Holds (FallbackNotProven) and is kept until it can be acted on.
    """
    if sample.digest != state.digest:
        message = "the sample is another engine's"
        return _count(state, "foreign"), GuardAction(reason=Reason.INVALID_SAMPLE, message=message)
    if state.phase is Phase.SWAPPED:
        return state, GuardAction(reason=Reason.LATCHED, message="this engine is off")
    if is_fatal(sample):
        return _fatal(state, sample, policy, now, fallback_ready)
    marks = marks_of(sample, policy.rules)
    if not sample.valid or (marks and all(mark is Mark.INVALID for mark in marks)):
        reason = Reason.INVALID_SAMPLE if sample.valid else Reason.ORACLE_UNAVAILABLE
        return _count(state, "invalid"), GuardAction(reason=reason, message="nothing could be judged")
    # Never less than the policy's own period: frames that come 50 ms apart may well come 200 ms apart now and then.
    period = max(policy.sampling_period_s, sample.period_s or 0.0)
    entry = Entry(frame=sample.frame, at=now, marks="".join(marks), gap_s=GAP_PERIODS * period)
    arrival = admit(find(state.streams, sample.stream, policy.rules), entry, policy.rules)
    streams, evicted = keep(state.streams, arrival.stream, policy.max_streams)
    news = tuple(Mark(mark) for mark in arrival.news)
    fate = arrival.fate if arrival.fate != "valid" or drift_seen(policy, news) else "sentinel"
    state = _count(replace(state, streams=streams), fate, evicted)
    if arrival.fate != "valid":
        return state, GuardAction(message=f"{arrival.fate} frame")
    state = _learn(state, policy, news, now)
    breaches = breaches_of(sample, policy.rules)
    trips = {
        rule.order: trip_of(rule, sample, took, now)
        for rule, took, seen in zip(policy.rules, arrival.frames_to_detect, state.valid_by_rule, strict=True)
        if took and seen >= rule.min_valid
    }
    return _act(state, policy, now, trips, marks, breaches, fallback_ready)


def is_open(state: GuardState, policy: GuardPolicy) -> bool:
    """Tell whether breaches of a rule that swaps or holds are waiting to become a trip."""
    grave = [rule.action != "Warn" for rule in policy.rules]
    return any(p and g for stream in state.streams for p, g in zip(stream.pending, grave, strict=True))


def _count(state: GuardState, name: str, evicted: int = 0) -> GuardState:
    counters = replace(state.counters, **{name: getattr(state.counters, name) + 1})
    return replace(state, counters=replace(counters, evicted=counters.evicted + evicted))


def _learn(state: GuardState, policy: GuardPolicy, marks: tuple[Mark, ...], now: float) -> GuardState:
    before = state.valid_by_rule or (0,) * len(policy.rules)
    valid = tuple(n + (mark is not Mark.INVALID) for n, mark in zip(before, marks, strict=True))
    state = replace(state, valid_by_rule=valid)
    breached = Mark.BREACH in marks
    return _seen(state, breached, now) if breached or drift_seen(policy, marks) else state


def _seen(state: GuardState, breached: bool, now: float) -> GuardState:
    counters = replace(state.counters, breached=state.counters.breached + breached)
    recent = (state.recent + (Mark.BREACH if breached else Mark.PASS))[-RECENT_SAMPLES:]
    return replace(state, counters=counters, recent=recent, last_valid_at=now, stale=False)


def _fatal(
    state: GuardState, sample: Sample, policy: GuardPolicy, now: float, fallback_ready: bool
) -> tuple[GuardState, GuardAction]:
    trip = fatal_trip(sample, now)
    state = _seen(_count(state, "valid"), True, now)
    return _off(state, policy, now, trip, breaches_of(sample, policy.rules), fallback_ready)


def _act(
    state: GuardState,
    policy: GuardPolicy,
    now: float,
    trips: dict[int, Trip],
    marks: tuple[Mark, ...],
    breaches: tuple[Breach, ...],
    fallback_ready: bool,
) -> tuple[GuardState, GuardAction]:
    by_action = {
        a: [r.order for r in policy.rules if r.action == a and r.order in trips] for a in ("Swap", "Hold", "Warn")
    }
    if by_action["Swap"]:
        return _off(state, policy, now, trips[by_action["Swap"][0]], breaches, fallback_ready)
    held_before, warned_before = state.holding, state.warned
    state = _released(state, policy, marks, by_action)
    opened = is_open(state, policy) or bool(state.holding)
    if state.phase is Phase.PROBATION:
        return rearm(state, policy, now, opened=opened, breaches=breaches)
    was, phase = state.phase, Phase.ALERT if opened or state.held else Phase.MONITOR
    state = replace(state, phase=phase)
    for act, orders, before in (
        (Act.HOLD, by_action["Hold"], held_before),
        (Act.WARN, by_action["Warn"], warned_before),
    ):
        fresh = [order for order in orders if order not in before]
        if fresh:
            trip = trips[fresh[0]]
            return state, GuardAction(act=act, reason=trip.reason, message=says(trip), trip=trip, breaches=breaches)
    reason = Reason.BREACH_PENDING if opened else Reason.WITHIN_LIMITS
    if phase is Phase.ALERT and was is not Phase.ALERT:
        first = f"first breach: {breaches[0].metric}" if breaches else "an open run"
        return state, GuardAction(act=Act.ALERT, reason=reason, message=first, breaches=breaches)
    return state, GuardAction(reason=reason, breaches=breaches)


def _released(
    state: GuardState, policy: GuardPolicy, marks: tuple[Mark, ...], by_action: dict[str, list[int]]
) -> GuardState:
    """Add the rules that tripped, and drop those that pass again with no run of theirs open on any stream."""
    done = {
        rule.order
        for i, rule in enumerate(policy.rules)
        if marks[i] is Mark.PASS and not any(stream.pending[i] for stream in state.streams)
    }
    holding = sorted((set(state.holding) | set(by_action["Hold"])) - done)
    warned = sorted((set(state.warned) | set(by_action["Warn"])) - done)
    return replace(state, holding=tuple(holding), warned=tuple(warned))


def _off(
    state: GuardState, policy: GuardPolicy, now: float, trip: Trip, breaches: tuple[Breach, ...], fallback_ready: bool
) -> tuple[GuardState, GuardAction]:
    if state.phase is Phase.PROBATION:
        return relatch(state, policy, now, trip, breaches)
    if fallback_ready:
        return swap(state, policy, now, trip, breaches)
    first = state.held is None
    kept = trip if state.held is None or (trip.sentinel and not state.held.sentinel) else state.held
    message = f"{says(trip)}; the fallback is not proven, so the engine stays"
    return replace(state, phase=Phase.ALERT, held=kept), GuardAction(
        act=Act.HOLD, reason=Reason.FALLBACK_NOT_PROVEN, message=message, trip=trip, breaches=breaches, page=first
    )


def tick(state: GuardState, policy: GuardPolicy, now: float, *, fallback_ready: bool) -> tuple[GuardState, GuardAction]:
    """Return the state at `now` without a sample: a held trip that can be acted on, Probation due, or no data.

    Silence never trips and never promotes: it Holds once (StreamStopped, or NoData before the first valid sample).
    """
    silence = FORGET_AFTER * policy.stale_after_s
    state = replace(state, streams=tuple(s for s in state.streams if now - s.seen_at <= silence))
    if state.held is not None and fallback_ready and state.phase is not Phase.SWAPPED:
        return swap(state, policy, now, state.held, ())
    if state.phase is Phase.SWAPPED:
        due = state.latch.probation_at if state.latch else None
        if due is None or now < due:
            return state, GuardAction(reason=Reason.LATCHED)
        state = replace(state, phase=Phase.PROBATION, proven_samples=0, begun_at=now, last_valid_at=None, stale=False)
        return state, GuardAction(reason=Reason.PROBATION, message="back-off is over; shadow the engine again")
    if state.stale or not is_stale(state, policy, now):
        return state, GuardAction()
    return replace(state, stale=True), GuardAction(act=Act.HOLD, reason=_silence(state), message=_silent_for(policy))


def holding_reason(state: GuardState, policy: GuardPolicy) -> Reason | None:
    """Return the reason of the first rule that asks to hold and does not pass again yet, None where none does."""
    return next((rule.reason for rule in policy.rules if rule.order in state.holding), None)


def standing(state: GuardState, policy: GuardPolicy) -> GuardAction:
    """Return what the state amounts to between samples: a Hold for as long as its cause lasts, with its reason.

    The gravest comes first: a trip without a proven fallback (it pages), a rule that asks to hold, want of data.
    """
    if state.held is not None:
        message = f"{says(state.held)}; the fallback is not proven, so the engine stays"
        return GuardAction(act=Act.HOLD, reason=Reason.FALLBACK_NOT_PROVEN, message=message, trip=state.held, page=True)
    asked = holding_reason(state, policy)
    if asked is not None:
        return GuardAction(act=Act.HOLD, reason=asked, message="a rule that asks to hold does not pass yet")
    if state.stale:
        return GuardAction(act=Act.HOLD, reason=_silence(state), message=_silent_for(policy))
    if state.phase is Phase.SWAPPED:
        return GuardAction(reason=Reason.LATCHED, message="this engine is off")
    if state.phase is Phase.PROBATION:
        return GuardAction(reason=Reason.PROBATION, message=f"{state.proven_samples} sound samples in shadow")
    if is_open(state, policy):
        return GuardAction(reason=Reason.BREACH_PENDING, message="breaches that could still become a trip")
    return GuardAction()


def _silence(state: GuardState) -> Reason:
    return Reason.NO_DATA if state.last_valid_at is None else Reason.STREAM_STOPPED


def _silent_for(policy: GuardPolicy) -> str:
    return f"no valid sample for more than {policy.stale_after_s:g} s"


def is_stale(state: GuardState, policy: GuardPolicy, now: float) -> bool:
    """Tell whether the last valid sample (or the beginning) is older than the policy's stale time, or not yet past.

    A clock that was set back makes ages negative: nobody knows then how old the data is.
    """
    last = state.begun_at if state.last_valid_at is None else state.last_valid_at
    return not (0.0 <= now - last <= policy.stale_after_s)
