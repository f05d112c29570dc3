"""What one sample says by itself, before any window: marks, breaches, proof of a broken output, and trips in words."""

from __future__ import annotations

from blurfleet.api.policy import SENTINELS, MetricName
from blurfleet.quality.rules import BoundRule
from blurfleet.quality.state import Breach, GuardPolicy, Sample, Trip
from blurfleet.quality.verdict import Mark, judge
from blurfleet.reasons import Reason


def is_fatal(sample: Sample) -> bool:
    """Tell whether the sample proves a non-finite output: Fail at once, whatever the rules say."""
    counted = sample.figures.get(MetricName.NON_FINITE)
    if counted is not None and not (counted <= 0):
        return True
    return sample.valid and any(judge(metric, value, 0.0) is Mark.FATAL for metric, value in sample.figures.items())


def breaches_of(sample: Sample, rules: tuple[BoundRule, ...]) -> tuple[Breach, ...]:
    """Return every rule that the sample breaches, in policy order."""
    found = []
    for rule in rules:
        value = sample.figures.get(rule.metric)
        if value is not None and rule.mark(value) in (Mark.BREACH, Mark.FATAL):
            found.append(
                Breach(metric=rule.metric, value=value, limit=rule.limit, reason=rule.reason, action=rule.action)
            )
    return tuple(found)


def marks_of(sample: Sample, rules: tuple[BoundRule, ...]) -> tuple[Mark, ...]:
    """Return one mark a rule; all INVALID where the sample is."""
    if not sample.valid:
        return (Mark.INVALID,) * len(rules)
    return tuple(rule.mark(sample.figures.get(rule.metric)) for rule in rules)


def drift_seen(policy: GuardPolicy, marks: tuple[Mark, ...]) -> bool:
    """Tell whether a figure against the oracle was judged: a sentinel alone says nothing about drift."""
    drift = [mark for rule, mark in zip(policy.rules, marks, strict=True) if rule.metric not in SENTINELS]
    return not drift or any(mark is not Mark.INVALID for mark in drift)


def trip_of(rule: BoundRule, sample: Sample, took: int, now: float) -> Trip:
    """Return the trip of `rule` that `sample` completed at `now` (seconds) as the `took`-th valid frame of its run."""
    value = sample.figures.get(rule.metric)
    return Trip(
        reason=rule.reason,
        metric=rule.metric,
        value=float("nan") if value is None else value,
        limit=rule.limit,
        sentinel=rule.metric in SENTINELS,
        stream=sample.stream,
        frame=sample.frame,
        frames_to_detect=took,
        trace=sample.trace,
        at=now,
    )


def fatal_trip(sample: Sample, now: float) -> Trip:
    """Return the trip of a sample that proves a non-finite output."""
    value = sample.figures.get(MetricName.NON_FINITE)
    return Trip(
        reason=Reason.NON_FINITE_OUTPUT,
        metric=MetricName.NON_FINITE,
        value=float("nan") if value is None or not (value > 0) else value,
        limit=0.0,
        sentinel=True,
        stream=sample.stream,
        frame=sample.frame,
        frames_to_detect=1,
        trace=sample.trace,
        at=now,
    )


def says(trip: Trip) -> str:
    """Return one sentence for a person about a trip."""
    took = f", frame {trip.frames_to_detect} of its run" if trip.frames_to_detect > 1 else ""
    return f"{trip.metric} {trip.value:.6g} against {trip.limit:g} on frame {trip.frame} of {trip.stream}{took}"
