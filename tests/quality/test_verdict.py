"""One figure against one limit, and verdicts put together."""

from __future__ import annotations

import math

import pytest

from blurfleet.api.policy import MetricName
from blurfleet.quality.verdict import COMPARATORS, REASONS, Mark, Verdict, badness, judge, worst

DEER, MAX, P999, SSIM = MetricName.DEER, MetricName.MAX_ABS_ERROR, MetricName.P999_ERROR, MetricName.SSIM


@pytest.mark.parametrize(
    ("metric", "value", "limit", "mark"),
    [
        pytest.param(DEER, 0.18, 0.18, Mark.BREACH, id="DEER at its limit breaches"),
        pytest.param(DEER, (1.18 - 1.0) / 1.0, 0.18, Mark.BREACH, id="DEER below its limit by float noise breaches"),
        pytest.param(DEER, 0.1799999, 0.18, Mark.PASS, id="DEER clearly below passes"),
        pytest.param(DEER, math.inf, 0.18, Mark.BREACH, id="an infinite DEER is an ordinary breach"),
        pytest.param(DEER, -math.inf, 0.18, Mark.BREACH, id="a negative infinite DEER breaches too"),
        pytest.param(DEER, math.nan, 0.18, Mark.FATAL, id="a NaN DEER comes from a NaN output"),
        pytest.param(DEER, None, 0.18, Mark.INVALID, id="too few edges say nothing"),
        pytest.param(DEER, -0.1, 0.18, Mark.INVALID, id="a negative rate cannot have been measured"),
        pytest.param(MAX, 0.0035, 0.0035, Mark.PASS, id="MaxAbsError at its limit passes"),
        pytest.param(MAX, 0.0035 + 1e-12, 0.0035, Mark.BREACH, id="MaxAbsError above by float noise breaches"),
        pytest.param(MAX, math.inf, 0.0035, Mark.FATAL, id="an infinite MaxAbsError comes from an infinite output"),
        pytest.param(MAX, -math.inf, 0.0035, Mark.FATAL, id="a negative infinite MaxAbsError never passes"),
        pytest.param(P999, math.inf, 0.0035, Mark.FATAL, id="an infinite P999Error comes from infinite outputs"),
        pytest.param(MAX, math.nan, 0.0035, Mark.FATAL, id="a NaN MaxAbsError comes from a NaN output"),
        pytest.param(SSIM, 0.85, 0.85, Mark.PASS, id="SSIM at its limit passes"),
        pytest.param(SSIM, 0.8499, 0.85, Mark.BREACH, id="SSIM below its limit breaches"),
        pytest.param(SSIM, -0.3, 0.85, Mark.BREACH, id="a negative SSIM breaches"),
        pytest.param(SSIM, math.inf, 0.85, Mark.BREACH, id="an infinite SSIM breaches"),
        pytest.param(SSIM, math.nan, 0.85, Mark.FATAL, id="a NaN SSIM comes from a NaN output"),
        pytest.param(MetricName.NON_FINITE, 0.0, 0.0, Mark.PASS, id="no broken pixel passes"),
        pytest.param(MetricName.NON_FINITE, 1.0, 0.0, Mark.FATAL, id="one broken pixel fails at once"),
        pytest.param(MetricName.COLLAPSED, 1.0, 0.0, Mark.BREACH, id="a collapsed matte breaches"),
        pytest.param(MetricName.OUT_OF_RANGE, 3.0, 0.0, Mark.BREACH, id="pixels out of range breach"),
    ],
)
def test_what_one_figure_says(metric: MetricName, value: float | None, limit: float, mark: Mark) -> None:
    assert judge(metric, value, limit) is mark


@pytest.mark.parametrize(
    ("verdicts", "outcome"),
    [
        pytest.param([], Verdict.INCONCLUSIVE, id="nothing measured is inconclusive"),
        pytest.param([Verdict.PASS], Verdict.PASS, id="all passes pass"),
        pytest.param([Verdict.PASS, Verdict.INCONCLUSIVE], Verdict.INCONCLUSIVE, id="one doubt spoils a pass"),
        pytest.param([Verdict.INCONCLUSIVE, Verdict.FAIL, Verdict.PASS], Verdict.FAIL, id="one failure decides"),
    ],
)
def test_the_worst_verdict_wins(verdicts: list[Verdict], outcome: Verdict) -> None:
    assert worst(verdicts) is outcome


def test_every_metric_has_a_comparator_and_a_reason() -> None:
    assert set(COMPARATORS) == set(REASONS) == set(MetricName)


def test_badness_puts_nan_last_and_turns_around_for_ssim() -> None:
    assert sorted([math.nan, 0.2, math.inf, 0.1], key=lambda v: badness(DEER, v))[:3] == [0.1, 0.2, math.inf]
    assert max([0.9, 0.1, 0.5], key=lambda v: badness(SSIM, v)) == 0.1
