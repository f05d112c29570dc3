"""The default policy, which rules hold where, and what makes a policy unusable."""

from __future__ import annotations

import pytest

from blurfleet.api.policy import MetricName, PolicySpec, Rule, Trip
from blurfleet.check import Severity
from blurfleet.errors import UnknownName
from blurfleet.quality.rules import Role, bind, default_policy, policy_problems, resolve
from blurfleet.quality.state import guard_policy
from blurfleet.reasons import Reason


@pytest.mark.parametrize(
    ("device_class", "role", "golden"),
    [
        ("jetson-orin", "Primary", {"DEER": 0.15, "MaxAbsError": 0.0035, "SSIM": 0.85}),
        ("jetson-orin", "Fallback", {"DEER": 0.22, "MaxAbsError": 0.0035, "SSIM": 0.85}),
        ("a100", "Primary", {"DEER": 0.15, "MaxAbsError": 0.0012, "SSIM": 0.85}),
    ],
    ids=["an Orin's primary", "an Orin's fallback has the wider DEER", "an A100's primary"],
)
def test_the_golden_limits_of_the_default_policy(device_class: str, role: Role, golden: dict[str, float]) -> None:
    rules = bind(resolve(default_policy(), device_class, role), "Golden")
    assert {r.metric.value: r.limit for r in rules if r.limit} == golden
    assert [r.metric.value for r in rules[:3]] == ["NonFinite", "OutOfRange", "Collapsed"]
    assert {r.action for r in rules} == {"Swap"}


@pytest.mark.parametrize(("device_class", "limit", "duration"), [("jetson-orin", 0.0035, 120), ("a100", 0.0012, 60)])
def test_the_live_limits_of_the_default_policy(device_class: str, limit: float, duration: float) -> None:
    drift = [r for r in guard_policy(default_policy(), device_class).rules if r.limit]
    assert [(r.metric.value, r.limit, r.frames, r.window, r.for_s) for r in drift] == [
        ("DEER", 0.18, 3, 3, None),
        ("MaxAbsError", 0.05, 3, 3, None),
        ("MaxAbsError", limit, None, 1, duration),
    ]


def test_the_default_policy_has_no_problem() -> None:
    assert policy_problems(default_policy()) == ()
    assert policy_problems(default_policy(), "a100") == ()


def test_an_unknown_class_is_refused_by_name() -> None:
    with pytest.raises(UnknownName, match="h100") as caught:
        resolve(default_policy(), "h100")
    assert caught.value.reason is Reason.UNKNOWN_CLASS


SENTINEL = Rule(metric=MetricName.NON_FINITE, source="Live")
DEER = Rule(metric=MetricName.DEER, source="Live", limit="0.18")


@pytest.mark.parametrize(
    ("rules", "device_class", "reasons", "severity"),
    [
        pytest.param((), None, [Reason.POLICY_WITHOUT_LIMITS] * 2, Severity.ERROR, id="no rule at all"),
        pytest.param((SENTINEL,), "a100", [Reason.POLICY_WITHOUT_LIMITS], Severity.ERROR, id="only sentinels"),
        pytest.param(
            (DEER.model_copy(update={"classes": ("a100",)}),),
            "jetson-orin",
            [Reason.POLICY_WITHOUT_LIMITS],
            Severity.ERROR,
            id="limits, but not for this node's class",
        ),
        pytest.param(
            (DEER.model_copy(update={"classes": ("a100",)}),),
            None,
            [Reason.POLICY_WITHOUT_LIMITS],
            Severity.WARNING,
            id="one class left out warns",
        ),
        pytest.param(
            (DEER, Rule(metric=MetricName.LPIPS, source="Golden", limit="0.23")),
            None,
            [Reason.METRIC_UNAVAILABLE],
            Severity.ERROR,
            id="LPIPS is not available",
        ),
        pytest.param(
            (DEER, DEER.model_copy(update={"classes": ("h100",)})),
            None,
            [Reason.UNKNOWN_CLASS],
            Severity.ERROR,
            id="a class nobody knows",
        ),
        pytest.param(
            (DEER, SENTINEL.model_copy(update={"action": "Warn"})),
            None,
            [Reason.NON_FINITE_OUTPUT],
            Severity.WARNING,
            id="a NaN cannot be waved through",
        ),
    ],
)
def test_problems_of_a_policy_are_named(
    rules: tuple[Rule, ...], device_class: str | None, reasons: list[Reason], severity: Severity
) -> None:
    found = policy_problems(PolicySpec(metrics=rules), device_class)
    assert [f.reason for f in found] == reasons
    assert {f.severity for f in found} == {severity}


def test_a_trip_without_window_needs_its_breaches_in_a_row() -> None:
    rule = Rule(metric=MetricName.DEER, source="Live", limit="0.18", trip=Trip(frames=4))
    assert bind((rule,), "Live")[0].window == 4
