"""Three verdicts, and what one figure means against one limit."""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import StrEnum

from blurfleet.api.policy import SENTINELS, MetricName
from blurfleet.reasons import Reason

NOISE = 1e-9
"""Float noise at the exact limit of an inclusive rule; it counts towards breach."""


class Verdict(StrEnum):
    """What a set of figures amounts to. Inconclusive never promotes and never swaps."""

    PASS = "Pass"
    FAIL = "Fail"
    INCONCLUSIVE = "Inconclusive"


class Mark(StrEnum):
    """What one figure says under one rule: sound, breaching, proof of a broken output, or nothing."""

    PASS = "p"
    BREACH = "b"
    FATAL = "f"
    INVALID = "-"


class Comparator(StrEnum):
    """When a value breaches its limit."""

    AT_LEAST = ">="
    ABOVE = ">"
    BELOW = "<"


COMPARATORS: dict[MetricName, Comparator] = {
    MetricName.NON_FINITE: Comparator.ABOVE,
    MetricName.OUT_OF_RANGE: Comparator.ABOVE,
    MetricName.COLLAPSED: Comparator.ABOVE,
    MetricName.MAX_ABS_ERROR: Comparator.ABOVE,
    MetricName.P999_ERROR: Comparator.ABOVE,
    MetricName.DEER: Comparator.AT_LEAST,
    MetricName.SSIM: Comparator.BELOW,
    MetricName.LPIPS: Comparator.ABOVE,
}

REASONS: dict[MetricName, Reason] = {
    MetricName.NON_FINITE: Reason.NON_FINITE_OUTPUT,
    MetricName.OUT_OF_RANGE: Reason.OUT_OF_RANGE_OUTPUT,
    MetricName.COLLAPSED: Reason.COLLAPSED_OUTPUT,
    MetricName.MAX_ABS_ERROR: Reason.MAX_ABS_ERROR_EXCEEDED,
    MetricName.P999_ERROR: Reason.P999_ERROR_EXCEEDED,
    MetricName.DEER: Reason.DEER_EXCEEDED,
    MetricName.SSIM: Reason.SSIM_TOO_LOW,
    MetricName.LPIPS: Reason.LPIPS_EXCEEDED,
}

# Only a NaN or Inf among the output's pixels can make these infinite.
_INFINITE_IS_FATAL = frozenset({MetricName.MAX_ABS_ERROR, MetricName.P999_ERROR})


def judge(metric: MetricName, value: float | None, limit: float) -> Mark:
    """Return what `value` says under a rule on `metric` with `limit` (sentinels: 0).

    None is INVALID; NaN is FATAL, so is an infinite MaxAbsError or P999Error of either sign; any other infinity is a
    BREACH; a finite negative error cannot have been measured and is INVALID. An inclusive rule (DEER) breaches from
    1e-9 below its limit; the exact limit of a strict rule passes.
    """
    if value is None:
        return Mark.INVALID
    if math.isnan(value) or (math.isinf(value) and metric in _INFINITE_IS_FATAL):
        return Mark.FATAL
    if math.isinf(value):
        return Mark.BREACH
    if metric is not MetricName.SSIM and value < -NOISE:
        return Mark.INVALID
    comparator = COMPARATORS[metric]
    if comparator is Comparator.AT_LEAST:
        sound = value < limit - NOISE
    elif comparator is Comparator.BELOW:
        sound = value >= limit
    else:
        sound = value <= limit
    if sound:
        return Mark.PASS
    return Mark.FATAL if metric is MetricName.NON_FINITE else Mark.BREACH


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the worst of `verdicts`: Fail over Inconclusive over Pass. None at all is Inconclusive."""
    seen = set(verdicts)
    if Verdict.FAIL in seen:
        return Verdict.FAIL
    if Verdict.INCONCLUSIVE in seen or not seen:
        return Verdict.INCONCLUSIVE
    return Verdict.PASS


def badness(metric: MetricName, value: float) -> tuple[int, float]:
    """Return a key by which values of `metric` sort from sound to worst: NaN last, infinities before it."""
    if math.isnan(value):
        return (2, 0.0)
    if math.isinf(value):
        return (1, 0.0)
    return (0, -value if COMPARATORS[metric] is Comparator.BELOW else value)


def is_sentinel(metric: MetricName) -> bool:
    """Tell whether `metric` is judged without a limit."""
    return metric in SENTINELS
