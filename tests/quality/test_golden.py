"""The golden gate over several frames."""

from __future__ import annotations

import math

import pytest

from blurfleet.api.policy import MetricName as M
from blurfleet.quality.golden import judge_frames
from blurfleet.quality.metrics import Figures
from blurfleet.quality.rules import BoundRule, bind, default_policy, resolve
from blurfleet.quality.verdict import Verdict
from blurfleet.reasons import Reason

RULES = bind(resolve(default_policy(), "jetson-orin"), "Golden")
GOOD: Figures = {
    M.NON_FINITE: 0.0, M.OUT_OF_RANGE: 0.0, M.COLLAPSED: 0.0, M.MAX_ABS_ERROR: 0.001, M.P999_ERROR: 0.0005,
    M.DEER: 0.001, M.SSIM: 0.999,
}  # fmt: skip
WARN = BoundRule(order=0, metric=M.DEER, limit=0.15, action="Warn")
HOLD = BoundRule(order=1, metric=M.SSIM, limit=0.85, action="Hold")
SWAP = BoundRule(order=2, metric=M.MAX_ABS_ERROR, limit=0.0035, action="Swap")


@pytest.mark.parametrize(
    ("rules", "frames", "verdict", "reason", "worst"),
    [
        pytest.param(RULES, {"a": GOOD, "b": GOOD}, Verdict.PASS, Reason.WITHIN_LIMITS, "", id="all within limits"),
        pytest.param(
            RULES, {"a": GOOD, "b": GOOD | {M.MAX_ABS_ERROR: 0.17}, "c": GOOD | {M.MAX_ABS_ERROR: 0.1}},
            Verdict.FAIL, Reason.MAX_ABS_ERROR_EXCEEDED, "b", id="one frame is enough, the worst is named",
        ),
        pytest.param(
            RULES, {"a": GOOD | {M.SSIM: 0.2, M.DEER: 0.4}}, Verdict.FAIL, Reason.DEER_EXCEEDED, "a",
            id="of two breaches the first in the policy is the reason",
        ),
        pytest.param(
            RULES, {"a": GOOD | {M.NON_FINITE: 4.0, M.MAX_ABS_ERROR: math.nan, M.DEER: math.nan, M.SSIM: math.nan}},
            Verdict.FAIL, Reason.NON_FINITE_OUTPUT, "a", id="a NaN fails as such",
        ),
        pytest.param(
            (WARN,), {"a": {M.DEER: 0.0, M.NON_FINITE: 1.0}}, Verdict.FAIL, Reason.NON_FINITE_OUTPUT, "",
            id="a NaN fails under a policy that only warns",
        ),
        pytest.param(
            RULES, {"a": GOOD | {M.COLLAPSED: 1.0}}, Verdict.FAIL, Reason.COLLAPSED_OUTPUT, "a", id="a collapsed matte",
        ),
        pytest.param(
            RULES, {"a": GOOD | {M.DEER: None}}, Verdict.INCONCLUSIVE, Reason.INSUFFICIENT_SAMPLES, "",
            id="a rule that was measurable on no frame cannot pass",
        ),
        pytest.param(
            RULES, {"a": GOOD | {M.DEER: None}, "b": GOOD}, Verdict.PASS, Reason.WITHIN_LIMITS, "",
            id="one measurable frame is enough by default",
        ),
        pytest.param(
            RULES, {"a": GOOD, "b": None}, Verdict.INCONCLUSIVE, Reason.ORACLE_UNAVAILABLE, "",
            id="a reference that is itself broken judges nobody",
        ),
        pytest.param(RULES, {}, Verdict.INCONCLUSIVE, Reason.NO_DATA, "", id="no frame is no pass"),
        pytest.param((), {"a": GOOD}, Verdict.INCONCLUSIVE, Reason.POLICY_WITHOUT_LIMITS, "", id="no rule is no pass"),
        pytest.param(
            (WARN, HOLD, SWAP), {"a": GOOD | {M.DEER: 0.9}}, Verdict.PASS, Reason.WITHIN_LIMITS, "",
            id="a Warn rule is recorded and passes",
        ),
        pytest.param(
            (WARN, HOLD, SWAP), {"a": GOOD | {M.SSIM: 0.1}}, Verdict.INCONCLUSIVE, Reason.SSIM_TOO_LOW, "a",
            id="a Hold rule holds",
        ),
        pytest.param(
            (WARN, HOLD, SWAP), {"a": GOOD | {M.SSIM: 0.1, M.MAX_ABS_ERROR: 0.1}},
            Verdict.FAIL, Reason.MAX_ABS_ERROR_EXCEEDED, "a", id="a Swap rule outweighs a Hold rule before it",
        ),
    ],
)  # fmt: skip
def test_the_gate(
    rules: tuple[BoundRule, ...], frames: dict[str, Figures | None], verdict: Verdict, reason: Reason, worst: str
) -> None:
    found = judge_frames(rules, frames)
    assert (found.verdict, found.reason, found.worst_frame) == (verdict, reason, worst)


def test_warned_breaches_are_listed_and_figures_carry_the_worst_value() -> None:
    found = judge_frames((WARN, HOLD, SWAP), {"a": GOOD | {M.DEER: 0.9}, "b": GOOD | {M.SSIM: 0.9}})
    assert found.warnings == (Reason.DEER_EXCEEDED,)
    assert [(f.metric, f.value, f.limit, f.verdict, f.samples) for f in found.figures] == [
        ("DEER", "0.9", "0.15", "Pass", 2),
        ("SSIM", "0.9", "0.85", "Pass", 2),
        ("MaxAbsError", "0.001", "0.0035", "Pass", 2),
    ]
