"""The golden gate: all golden frames of one engine under a policy's Golden rules, as one verdict."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from blurfleet.api.nodeengine import Figure
from blurfleet.api.policy import MetricName
from blurfleet.quality.metrics import Measurement
from blurfleet.quality.rules import BoundRule
from blurfleet.quality.verdict import Mark, Verdict, badness, worst
from blurfleet.reasons import Reason


@dataclass(frozen=True, kw_only=True)
class Judged:
    """One rule over all frames: its verdict, the worst value and on which frame, and how many frames were valid."""

    rule: BoundRule
    verdict: Verdict
    reason: Reason
    value: float | None
    worst_frame: str
    valid: int
    breached: tuple[str, ...]

    def figure(self) -> Figure:
        """Return what goes into status and evidence."""
        return Figure(
            metric=self.rule.metric,
            value="" if self.value is None else number_text(self.value),
            limit=number_text(self.rule.limit),
            verdict=self.verdict.value,
            samples=self.valid,
        )


@dataclass(frozen=True, kw_only=True)
class GoldenVerdict:
    """The outcome of the gate. `warnings` are breached rules that only warn; `decisive` is the rule behind the reason."""

    verdict: Verdict
    reason: Reason
    message: str
    judged: tuple[Judged, ...]
    decisive: Judged | None
    warnings: tuple[Reason, ...]

    @property
    def figures(self) -> tuple[Figure, ...]:
        """Return one figure a rule, in policy order."""
        return tuple(j.figure() for j in self.judged)

    @property
    def worst_frame(self) -> str:
        """Return the frame behind the reason, empty where there is none."""
        return self.decisive.worst_frame if self.decisive else ""


def number_text(value: float) -> str:
    """Return `value` as JSON-safe text of six significant digits."""
    if math.isnan(value):
        return "NaN"
    return ("+Inf" if value > 0 else "-Inf") if math.isinf(value) else f"{value:.6g}"


def judge_golden(rules: tuple[BoundRule, ...], measurements: Mapping[str, Measurement]) -> GoldenVerdict:
    """Return the verdict over all frames (`measurements`: frame name -> figures).

    A breach on any frame is Fail under a Swap rule, Inconclusive under a Hold rule and a warning under a Warn rule; a
    non-finite output is Fail whatever the rules say. The reason is the first in policy order of the worst verdict.
    Without frames or without a rule the outcome is Inconclusive.
    """
    broken = [name for name, m in measurements.items() if m.non_finite > 0]
    judged = tuple(_judge_rule(rule, measurements) for rule in rules)
    warnings = tuple(j.rule.reason for j in judged if j.breached and j.rule.action == "Warn")
    if broken:
        decisive = next((j for j in judged if j.rule.metric is MetricName.NON_FINITE), None)
        return GoldenVerdict(
            verdict=Verdict.FAIL,
            reason=Reason.NON_FINITE_OUTPUT,
            message=f"NaN or Inf in the output on {broken[0]} and {len(broken) - 1} more frames",
            judged=judged,
            decisive=decisive,
            warnings=warnings,
        )
    if not measurements or not judged:
        reason = Reason.POLICY_WITHOUT_LIMITS if measurements else Reason.NO_DATA
        message = "no golden frame" if not measurements else "no golden rule"
        return GoldenVerdict(
            verdict=Verdict.INCONCLUSIVE, reason=reason, message=message, judged=judged, decisive=None, warnings=()
        )
    verdict = worst(j.verdict for j in judged)
    decisive = next((j for j in judged if j.verdict is verdict), None) if verdict is not Verdict.PASS else None
    return GoldenVerdict(
        verdict=verdict,
        reason=decisive.reason if decisive else Reason.WITHIN_LIMITS,
        message=_sentence(decisive, len(measurements)),
        judged=judged,
        decisive=decisive,
        warnings=warnings,
    )


def _judge_rule(rule: BoundRule, measurements: Mapping[str, Measurement]) -> Judged:
    value, frame, valid, breached, unjudgeable = None, "", 0, [], 0
    for name, measurement in measurements.items():
        figure = measurement.figures().get(rule.metric)
        if not measurement.judgeable:
            unjudgeable += 1
            continue
        mark = rule.mark(figure)
        if figure is None or mark is Mark.INVALID:
            continue
        valid += 1
        if mark is not Mark.PASS:
            breached.append(name)
        if value is None or badness(rule.metric, figure) > badness(rule.metric, value):
            value, frame = figure, name
    verdict, reason = Verdict.PASS, Reason.WITHIN_LIMITS
    if breached and rule.action != "Warn":
        verdict = Verdict.FAIL if rule.action == "Swap" else Verdict.INCONCLUSIVE
        reason = rule.reason
    elif unjudgeable and rule.action != "Warn":
        verdict, reason = Verdict.INCONCLUSIVE, Reason.ORACLE_UNAVAILABLE
    elif valid < rule.min_valid and rule.action != "Warn":
        verdict, reason = Verdict.INCONCLUSIVE, Reason.INSUFFICIENT_SAMPLES
    return Judged(
        rule=rule,
        verdict=verdict,
        reason=reason,
        value=value,
        worst_frame=frame,
        valid=valid,
        breached=tuple(breached),
    )


def _sentence(decisive: Judged | None, frames: int) -> str:
    if decisive is None:
        return f"{frames} golden frames within limits"
    if not decisive.breached:
        return f"{decisive.rule.metric} was measurable on {decisive.valid} of {frames} golden frames"
    value = number_text(math.nan if decisive.value is None else decisive.value)
    where = f"worst on {decisive.worst_frame}, {len(decisive.breached)} of {frames} golden frames beyond the limit"
    return f"{decisive.rule.metric} {value} against {decisive.rule.limit:g}, {where}"
