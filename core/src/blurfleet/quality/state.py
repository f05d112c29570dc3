"""What the guard remembers between samples: bounded, frozen, and JSON both ways because it goes into evidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Literal

from pydantic import TypeAdapter

from blurfleet.api.base import seconds
from blurfleet.api.policy import SENTINELS, MetricName, PolicySpec
from blurfleet.check import finite_json
from blurfleet.quality.metrics import Measurement
from blurfleet.quality.rules import Action, BoundRule, bind, resolve
from blurfleet.quality.streams import Stream
from blurfleet.quality.verdict import Mark
from blurfleet.reasons import Reason

MAX_STREAMS = 64
"""Streams followed at once; the longest silent one without an open run makes room for a new one."""
RECENT_SAMPLES = 100
"""Valid samples over which the stability score is taken (DESIGN 9)."""


class Phase(StrEnum):
    """Where the guard of one model on one node stands."""

    IDLE = "Idle"
    MONITOR = "Monitor"
    ALERT = "Alert"
    SWAPPED = "Swapped"
    PROBATION = "Probation"


class Act(StrEnum):
    """What the agent is to do."""

    NONE = "None"
    ALERT = "Alert"
    WARN = "Warn"
    HOLD = "Hold"
    SWAP = "Swap"
    REARM = "Rearm"


class LatchKind(StrEnum):
    """Why an engine stays off: only drift may be re-proven; the others need a new attempt or another digest."""

    SENTINEL = "Sentinel"
    DRIFT = "Drift"
    FLAPPING = "Flapping"


@dataclass(frozen=True, kw_only=True)
class GuardPolicy:
    """A policy resolved for one node: live rules in order and every duration in seconds.

    `sampling_period_s` is the least that a stream's sampling period is taken for, and stands in where a sample does not
    say it; two periods are the default longest gap within a `for` run.
    """

    rules: tuple[BoundRule, ...]
    shadow_samples: int = 20
    probation_enabled: bool = True
    probation_samples: int = 50
    back_off_s: float = 60.0
    max_back_off_s: float = 3600.0
    max_swaps_per_hour: int = 4
    stale_after_s: float = 30.0
    sampling_period_s: float = 1.0
    max_streams: int = MAX_STREAMS


def guard_policy(policy: PolicySpec, device_class: str, *, sampling_period_s: float = 1.0) -> GuardPolicy:
    """Return the live rules of `policy` for a node of `device_class`. Raises UnknownName (UnknownClass)."""
    return GuardPolicy(
        rules=bind(resolve(policy, device_class), "Live"),
        shadow_samples=policy.shadow_samples,
        probation_enabled=policy.probation.enabled,
        probation_samples=policy.probation.samples,
        back_off_s=seconds(policy.probation.back_off),
        max_back_off_s=seconds(policy.probation.max_back_off),
        max_swaps_per_hour=policy.flap_control.max_swaps_per_hour,
        stale_after_s=seconds(policy.stale_after),
        sampling_period_s=sampling_period_s,
    )


def sentinels_only(policy: GuardPolicy) -> GuardPolicy:
    """Return `policy` for an engine that is its own oracle: it has no drift to measure, so sentinels are all its data.

    Under the whole policy such an engine would never have a valid sample and would Hold for want of data.
    """
    return replace(policy, rules=tuple(rule for rule in policy.rules if rule.metric in SENTINELS))


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The figures of one frame of one stream, answered by the engine `digest`.

    A figure that is absent or None was not measured. A sentinel event of the gateway is a sample with only that
    sentinel's count. `valid` false (no oracle answer, only the oracle non-finite) makes all but a proven NaN count for
    nothing. `period_s` is how far apart this stream's samples before this one were, jitter included.
    """

    stream: str
    frame: int
    digest: str
    figures: Mapping[MetricName, float | None]
    valid: bool = True
    trace: str = ""
    period_s: float | None = None


def sample_of(
    measurement: Measurement, *, stream: str, frame: int, digest: str, trace: str = "", period_s: float | None = None
) -> Sample:
    """Return the sample that carries `measurement`; invalid where only the oracle's answer was non-finite."""
    return Sample(
        stream=stream,
        frame=frame,
        digest=digest,
        figures=measurement.figures(),
        valid=measurement.judgeable,
        trace=trace,
        period_s=period_s,
    )


@dataclass(frozen=True, kw_only=True)
class Breach:
    """One rule that one sample breached, and what that rule asks for in the end."""

    metric: MetricName
    value: float
    limit: float
    reason: Reason
    action: Action = "Swap"


@dataclass(frozen=True, kw_only=True)
class Trip:
    """A completed rule: which, on which frame, and over how many valid frames of that stream it was seen."""

    reason: Reason
    metric: MetricName
    value: float
    limit: float
    sentinel: bool
    stream: str
    frame: int
    frames_to_detect: int
    trace: str
    at: float


@dataclass(frozen=True, kw_only=True)
class Latch:
    """An engine taken off: since when, why, and when Probation may begin (None: never)."""

    kind: LatchKind
    reason: Reason
    at: float
    probation_at: float | None = None


@dataclass(frozen=True, kw_only=True)
class Counters:
    """Samples by what became of them, since the digest or attempt changed."""

    valid: int = 0
    sentinel: int = 0
    invalid: int = 0
    breached: int = 0
    duplicate: int = 0
    late: int = 0
    foreign: int = 0
    evicted: int = 0


@dataclass(frozen=True, kw_only=True)
class GuardState:
    """All the guard remembers of one model: at most `max_streams` streams of eight frames and short windows."""

    schema_version: Literal[1] = 1
    phase: Phase = Phase.IDLE
    digest: str = ""
    attempt: str = ""
    streams: tuple[Stream, ...] = ()
    counters: Counters = Counters()
    valid_by_rule: tuple[int, ...] = ()
    recent: str = ""
    begun_at: float = 0.0
    last_valid_at: float | None = None
    stale: bool = False
    held: Trip | None = None
    holding: tuple[int, ...] = ()
    warned: tuple[int, ...] = ()
    last_trip: Trip | None = None
    latch: Latch | None = None
    back_off_s: float = 0.0
    proven_samples: int = 0
    swaps_at: tuple[float, ...] = ()

    @property
    def stability(self) -> float | None:
        """Return the share of the last 100 valid samples without a breach, None before the first."""
        return self.recent.count(Mark.PASS) / len(self.recent) if self.recent else None


@dataclass(frozen=True, kw_only=True)
class GuardAction:
    """What to do and why. `breaches` lists every rule the sample breached, in policy order; `page` wakes a person."""

    act: Act = Act.NONE
    reason: Reason = Reason.WITHIN_LIMITS
    message: str = ""
    trip: Trip | None = None
    breaches: tuple[Breach, ...] = field(default=())
    latch: LatchKind | None = None
    page: bool = False

    @property
    def doubt(self) -> bool:
        """Tell whether the sample asks for a closer look at its stream: a breach of a rule that only warns does not."""
        acted = self.trip is not None and self.act is not Act.WARN
        return acted or any(breach.action != "Warn" for breach in self.breaches)


_STATE = TypeAdapter(GuardState)


def state_to_json(state: GuardState) -> dict[str, Any]:
    """Return the state as strict JSON; non-finite figures become "NaN", "+Inf", "-Inf"."""
    found = finite_json(_STATE.dump_python(state, mode="python"))
    assert isinstance(found, dict)
    return found


def state_from_json(data: Mapping[str, Any]) -> GuardState:
    """Return the state that `state_to_json` wrote. Raises pydantic's ValidationError on anything else."""
    return _STATE.validate_python(data)
