"""The default policy as data, which of its rules hold for one engine on one node, and what is wrong with a policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from blurfleet.api.base import seconds
from blurfleet.api.nodeengine import DEVICE_CLASSES
from blurfleet.api.policy import SENTINELS, UNAVAILABLE, MetricName, PolicySpec, Rule, Trip
from blurfleet.check import Finding, Severity
from blurfleet.errors import UnknownName
from blurfleet.quality.verdict import REASONS, Mark, judge
from blurfleet.reasons import Reason

Role = Literal["Primary", "Fallback"]
Action = Literal["Swap", "Hold", "Warn"]

CLASS_LIMITS: dict[str, tuple[str, str]] = {"jetson-orin": ("0.0035", "2m"), "a100": ("0.0012", "1m")}
"""Per device class: largest MaxAbsError of the matte, and for how long it may be above it (DESIGN 6)."""


@dataclass(frozen=True, kw_only=True)
class BoundRule:
    """One rule of a policy, bound to a class and role, in numbers. `order` is its place in the policy.

    Exactly one of `frames` (with `window`, both frames) and `for_s` (seconds) is set; `max_gap_s` None means two
    sampling periods of the stream.
    """

    order: int
    metric: MetricName
    limit: float
    action: Action
    min_valid: int = 1
    frames: int | None = 1
    window: int = 1
    for_s: float | None = None
    max_gap_s: float | None = None

    @property
    def reason(self) -> Reason:
        """Return the reason that a trip of this rule has."""
        return REASONS[self.metric]

    def mark(self, value: float | None) -> Mark:
        """Return what `value` says under this rule."""
        return judge(self.metric, value, self.limit)


def default_policy() -> PolicySpec:
    """Return the policy of DESIGN section 6 for both device classes.

    Sentinels come first, so that a broken output is named as such; then DEER, the errors and SSIM.
    """
    return PolicySpec(metrics=(*_golden_defaults(), *_live_defaults()))


def _golden_defaults() -> tuple[Rule, ...]:
    sentinels = tuple(Rule(metric=m, source="Golden") for m in _SENTINEL_ORDER)
    errors = tuple(
        Rule(metric=MetricName.MAX_ABS_ERROR, source="Golden", limit=limit, classes=(name,))
        for name, (limit, _) in CLASS_LIMITS.items()
    )
    return (
        *sentinels,
        Rule(metric=MetricName.DEER, source="Golden", limit="0.15", role="Primary"),
        Rule(metric=MetricName.DEER, source="Golden", limit="0.22", role="Fallback"),
        *errors,
        Rule(metric=MetricName.SSIM, source="Golden", limit="0.85"),
    )


def _live_defaults() -> tuple[Rule, ...]:
    sentinels = tuple(Rule(metric=m, source="Live") for m in _SENTINEL_ORDER)
    three = Trip(frames=3, window=3)
    drift = tuple(
        Rule(
            metric=MetricName.MAX_ABS_ERROR,
            source="Live",
            limit=limit,
            trip=Trip.model_validate({"for": duration}),
            classes=(name,),
        )
        for name, (limit, duration) in CLASS_LIMITS.items()
    )
    return (
        *sentinels,
        Rule(metric=MetricName.DEER, source="Live", limit="0.18", trip=three),
        Rule(metric=MetricName.MAX_ABS_ERROR, source="Live", limit="0.05", trip=three),
        *drift,
    )


_SENTINEL_ORDER = (MetricName.NON_FINITE, MetricName.OUT_OF_RANGE, MetricName.COLLAPSED)


def resolve(policy: PolicySpec, device_class: str, role: Role = "Primary") -> tuple[Rule, ...]:
    """Return the rules of `policy` that hold for an engine of `role` on a node of `device_class`, in policy order.

    `role` narrows Golden rules only. Raises UnknownName (UnknownClass) for a class that blurfleet does not know.
    """
    if device_class not in DEVICE_CLASSES:
        fix = f"one of {', '.join(DEVICE_CLASSES)}"
        raise UnknownName(Reason.UNKNOWN_CLASS, f"{device_class!r} is no device class", where="deviceClass", fix=fix)
    return tuple(
        rule
        for rule in policy.metrics
        if (not rule.classes or device_class in rule.classes)
        and (rule.source == "Live" or rule.role in (None, role))
        and rule.metric not in UNAVAILABLE
    )


def bind(rules: tuple[Rule, ...], source: Literal["Golden", "Live"]) -> tuple[BoundRule, ...]:
    """Return the rules of `source` in numbers, keeping their order."""
    return tuple(bind_rule(rule, order) for order, rule in enumerate(rules) if rule.source == source)


def bind_rule(rule: Rule, order: int) -> BoundRule:
    """Return one rule in numbers: durations in seconds, a sentinel's limit 0, `window` = `frames` where unset."""
    trip = rule.trip
    return BoundRule(
        order=order,
        metric=rule.metric,
        limit=0.0 if rule.limit is None else float(rule.limit),
        action=rule.action,
        min_valid=rule.min_valid_samples,
        frames=trip.frames,
        window=trip.window or trip.frames or 1,
        for_s=None if trip.for_ is None else seconds(trip.for_),
        max_gap_s=None if trip.max_gap is None else seconds(trip.max_gap),
    )


def policy_problems(policy: PolicySpec, device_class: str | None = None) -> tuple[Finding, ...]:
    """Return what keeps `policy` from being used (Error) and what weakens it (Warning), each at its field.

    With `device_class` a policy that judges nothing on that class is an Error; without, it is one only where it judges
    nothing on every class, and a Warning for each class left out.
    """
    found = [finding for index, rule in enumerate(policy.metrics) for finding in _rule_problems(index, rule)]
    bare = [name for name in ([device_class] if device_class else DEVICE_CLASSES) if not _has_limits(policy, name)]
    fatal = device_class is not None or len(bare) == len(DEVICE_CLASSES)
    for name in bare:
        message = f"no limit on any figure for class {name}: its engines would never be judged"
        severity = Severity.ERROR if fatal else Severity.WARNING
        found.append(_finding(severity, Reason.POLICY_WITHOUT_LIMITS, "spec.metrics", message))
    return tuple(found)


def _finding(severity: Severity, reason: Reason, where: str, message: str) -> Finding:
    return Finding(severity=severity, reason=reason, where=where, message=message)


def _rule_problems(index: int, rule: Rule) -> list[Finding]:
    where, found = f"spec.metrics[{index}]", []
    if rule.metric in UNAVAILABLE:
        message = f"{rule.metric} cannot be measured by this version"
        found.append(_finding(Severity.ERROR, Reason.METRIC_UNAVAILABLE, f"{where}.metric", message))
    for name in sorted(set(rule.classes) - set(DEVICE_CLASSES)):
        message = f"{name!r} is no device class"
        found.append(_finding(Severity.ERROR, Reason.UNKNOWN_CLASS, f"{where}.classes", message))
    if rule.metric is MetricName.NON_FINITE and rule.action != "Swap":
        message = "a NaN in an output fails at once, whatever the action says"
        found.append(_finding(Severity.WARNING, Reason.NON_FINITE_OUTPUT, f"{where}.action", message))
    return found


def _has_limits(policy: PolicySpec, device_class: str) -> bool:
    return any(rule.metric not in SENTINELS for rule in resolve(policy, device_class))
