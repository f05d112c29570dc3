"""The golden gate: all golden frames of one engine under a policy's Golden rules, as one verdict."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from blurfleet.api.nodeengine import Figure
from blurfleet.api.policy import MetricName
from blurfleet.quality.metrics import Figures, Measurement
from blurfleet.quality.rules import BoundRule
from blurfleet.quality.verdict import Mark, Verdict, badness, judge, worst
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
    """The outcome of the gate. `warnings` are breached rules that only warn; `decisive` is the reason's rule."""

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
        """Return the frame whose breach is behind the reason, empty where there is none."""
        return self.decisive.worst_frame if self.decisive and self.decisive.breached else ""


def number_text(value: float) -> str:
    """Return `value` as JSON-safe text of six significant digits."""
    if math.isnan(value):
        return "NaN"
    return ("+Inf" if value > 0 else "-Inf") if math.isinf(value) else f"{value:.6g}"


def judge_golden(rules: tuple[BoundRule, ...], measurements: Mapping[str, Measurement]) -> GoldenVerdict:
    """Return the verdict over all frames (`measurements`: frame name -> figures), see `judge_frames`."""
    frames = {name: m.figures() if m.judgeable else None for name, m in measurements.items()}
    return judge_frames(rules, frames)


def judge_frames(rules: tuple[BoundRule, ...], frames: Mapping[str, Figures | None]) -> GoldenVerdict:
    """Return the verdict over all frames (name -> figures, None where the reference itself was non-finite).

    A breach on any frame is Fail under a Swap rule, Inconclusive under a Hold rule and a warning under a Warn rule; a
    non-finite output is Fail whatever the rules say. The reason is the first in policy order of the worst verdict.
    Without frames or without a rule the outcome is Inconclusive.
    """
    judged = tuple(_judge_rule(rule, frames) for rule in rules)
    warnings = tuple(j.rule.reason for j in judged if j.breached and j.rule.action == "Warn")

    def found(verdict: Verdict, reason: Reason, message: str, decisive: Judged | None = None) -> GoldenVerdict:
        return GoldenVerdict(
            verdict=verdict, reason=reason, message=message, judged=judged, decisive=decisive, warnings=warnings
        )

    broken = [name for name, figures in frames.items() if figures and _is_broken(figures)]
    if broken:
        decisive = next((j for j in judged if j.rule.metric is MetricName.NON_FINITE), None)
        message = f"NaN or Inf in the output on {len(broken)} of {len(frames)} frames, first on {broken[0]}"
        return found(Verdict.FAIL, Reason.NON_FINITE_OUTPUT, message, decisive)
    if not frames:
        return found(Verdict.INCONCLUSIVE, Reason.NO_DATA, "no golden frame")
    if not judged:
        return found(Verdict.INCONCLUSIVE, Reason.POLICY_WITHOUT_LIMITS, "no golden rule")
    verdict = worst(j.verdict for j in judged)
    decisive = next((j for j in judged if j.verdict is verdict), None) if verdict is not Verdict.PASS else None
    reason = decisive.reason if decisive else Reason.WITHIN_LIMITS
    return found(verdict, reason, _sentence(decisive, len(frames)), decisive)


def _is_broken(figures: Figures) -> bool:
    count = figures.get(MetricName.NON_FINITE)
    if count is not None and not (count <= 0):
        return True
    return any(judge(metric, value, 0.0) is Mark.FATAL for metric, value in figures.items())


def _judge_rule(rule: BoundRule, frames: Mapping[str, Figures | None]) -> Judged:
    values = {name: figures.get(rule.metric) for name, figures in frames.items() if figures is not None}
    marks = {name: rule.mark(value) for name, value in values.items()}
    valid = {n: v for n, v in values.items() if v is not None and marks[n] is not Mark.INVALID}
    breached = tuple(name for name in valid if marks[name] is not Mark.PASS)
    worst_frame = max(valid, key=lambda name: badness(rule.metric, valid[name]), default="")
    verdict, reason = Verdict.PASS, Reason.WITHIN_LIMITS
    if rule.action != "Warn":
        if breached:
            verdict = Verdict.FAIL if rule.action == "Swap" else Verdict.INCONCLUSIVE
            reason = rule.reason
        elif len(values) < len(frames):
            verdict, reason = Verdict.INCONCLUSIVE, Reason.ORACLE_UNAVAILABLE
        elif len(valid) < rule.min_valid:
            verdict, reason = Verdict.INCONCLUSIVE, Reason.INSUFFICIENT_SAMPLES
    return Judged(
        rule=rule,
        verdict=verdict,
        reason=reason,
        value=valid.get(worst_frame),
        worst_frame=worst_frame,
        valid=len(valid),
        breached=breached,
    )


def _sentence(decisive: Judged | None, frames: int) -> str:
    if decisive is None:
        return f"{frames} golden frames within limits"
    if not decisive.breached:
        return f"{decisive.rule.metric} was measurable on {decisive.valid} of {frames} golden frames"
    value = number_text(math.nan if decisive.value is None else decisive.value)
    where = f"worst on {decisive.worst_frame}, {len(decisive.breached)} of {frames} golden frames beyond the limit"
    return f"{decisive.rule.metric} {value} against {decisive.rule.limit:g}, {where}"
