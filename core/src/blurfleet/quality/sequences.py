"""Judging written-down streams of one figure: the same rules and the same guard as on a node, nothing of its own.

A file is a list of `{id, values, frame_ids?, times?, step_s?, ref_edge_l1?, cand_edge_l1?, trip?, limit?}`. The id's
prefix names the figure and the class: `deer_`, `ssim_`, `p999_`, `orin_` and `a100_` (MaxAbsError on that class). A
null value is a sample that could not be measured.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from blurfleet.api.policy import UNAVAILABLE, MetricName, Rule
from blurfleet.api.policy import Trip as TripSpec
from blurfleet.errors import BlurfleetError, InvalidInput, UnknownName
from blurfleet.quality.guard import begin, step
from blurfleet.quality.rules import CLASS_LIMITS, BoundRule, bind_rule, default_policy, resolve
from blurfleet.quality.sequence_file import Arrivals, parse_arrivals
from blurfleet.quality.shadow import assess
from blurfleet.quality.state import Act, GuardPolicy, Sample
from blurfleet.quality.verdict import Verdict
from blurfleet.reasons import Reason

_CLASSES = {"orin": "jetson-orin", "a100": "a100"}
_METRICS = {
    "deer": MetricName.DEER,
    "ssim": MetricName.SSIM,
    "p999": MetricName.P999_ERROR,
    "lpips": MetricName.LPIPS,
    "maxabs": MetricName.MAX_ABS_ERROR,
    "nonfinite": MetricName.NON_FINITE,
    "outofrange": MetricName.OUT_OF_RANGE,
    "collapsed": MetricName.COLLAPSED,
}
_STALE_AFTER_S = 30.0
_DIGEST = "sha256:" + "0" * 64


@dataclass(frozen=True, kw_only=True)
class SequenceResult:
    """What one sequence amounts to. `fires_at_index` counts arrivals from 0 and is None where nothing tripped."""

    id: str
    verdict: Verdict
    fires_at_index: int | None
    reason: Reason
    message: str = ""
    malformed: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return the documented JSON row."""
        row = {"id": self.id, "verdict": self.verdict, "fires_at_index": self.fires_at_index, "reason": self.reason}
        return {**row, "message": self.message} if self.message else row


def judge_file(path: Path) -> tuple[SequenceResult, ...]:
    """Return one result per sequence of the file. Raises InvalidInput where the file is not a readable list."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInput(Reason.UNREADABLE_FILE, error.strerror or "cannot be read", where=str(path)) from error
    except (ValueError, RecursionError) as error:
        raise InvalidInput(Reason.UNPARSEABLE, f"not JSON: {error}", where=str(path)) from error
    if not isinstance(data, list):
        raise InvalidInput(Reason.UNPARSEABLE, "not a list of sequences", where=str(path))
    return tuple(judge_sequence(item, index) for index, item in enumerate(data))


def judge_sequence(item: object, index: int = 0) -> SequenceResult:
    """Return the verdict on one sequence; a malformed one is Inconclusive with the reason that names the fault."""
    name = str(item.get("id", f"[{index}]")) if isinstance(item, Mapping) else f"[{index}]"
    try:
        if not isinstance(item, Mapping):
            raise InvalidInput(Reason.UNPARSEABLE, "not an object", where=name)
        metric, device_class = parse_id(name)
        rules = rules_for(item, metric, device_class)
        return run(name, metric, rules, parse_arrivals(item, rules))
    except BlurfleetError as error:
        return SequenceResult(
            id=name,
            verdict=Verdict.INCONCLUSIVE,
            fires_at_index=None,
            reason=error.reason,
            message=error.message,
            malformed=True,
        )


def run(name: str, metric: MetricName, rules: tuple[BoundRule, ...], arrivals: Arrivals) -> SequenceResult:
    """Feed the arrivals to a guard and stop at the trip; else assess what is left at the last arrival's time."""
    period = arrivals.period_s
    policy = GuardPolicy(
        rules=rules, sampling_period_s=period, shadow_samples=1, stale_after_s=max(_STALE_AFTER_S, 2 * period)
    )
    start = arrivals.times[0] if arrivals.times else 0.0
    state = begin(_DIGEST, "", start)
    for index, (value, frame, now) in enumerate(zip(arrivals.values, arrivals.frames, arrivals.times, strict=True)):
        sample = Sample(stream=name, frame=frame, digest=_DIGEST, figures={metric: value})
        state, action = step(state, sample, policy, now, fallback_ready=True)
        if action.act is Act.SWAP:
            return SequenceResult(id=name, verdict=Verdict.FAIL, fires_at_index=index, reason=action.reason)
    found = assess(state, policy, max(arrivals.times, default=0.0))
    return SequenceResult(id=name, verdict=found.verdict, fires_at_index=None, reason=found.reason)


def parse_id(name: str) -> tuple[MetricName, str]:
    """Return the figure and the class that an id's first words name. Raises UnknownName (UnknownMetric)."""
    words = name.lower().replace("-", "_").split("_")
    metric = _METRICS.get(words[0])
    if metric in UNAVAILABLE:
        raise InvalidInput(Reason.METRIC_UNAVAILABLE, f"{metric} cannot be measured by this version", where=name)
    if metric is None and words[0] not in _CLASSES:
        known = ", ".join(f"{w}_" for w in (*_METRICS, *_CLASSES))
        raise UnknownName(Reason.UNKNOWN_METRIC, f"the id names no figure; it begins with one of {known}", where=name)
    device_class = next((_CLASSES[w] for w in words[:2] if w in _CLASSES), "jetson-orin")
    return metric or MetricName.MAX_ABS_ERROR, device_class


def rules_for(item: Mapping[str, Any], metric: MetricName, device_class: str) -> tuple[BoundRule, ...]:
    """Return the rules the sequence is judged by: the default policy's for that figure, live before golden.

    P999Error has no default of its own and is never above MaxAbsError, so it takes that figure's class limit. `trip`
    (as in a policy) and `limit` in the sequence replace the default's. Raises InvalidInput (InvalidSpec).
    """
    rules = [r for r in resolve(default_policy(), device_class) if r.metric is metric]
    chosen = [r for r in rules if r.source == "Live"] or rules
    if metric is MetricName.P999_ERROR:
        limit, duration = CLASS_LIMITS[device_class]
        trip = TripSpec.model_validate({"for": duration})
        chosen = [Rule(metric=metric, source="Live", limit=limit, trip=trip)]
    try:
        if "trip" in item or "limit" in item:
            wanted = chosen[0].model_dump()
            wanted["trip"] = item.get("trip", wanted["trip"])
            wanted["limit"] = str(item["limit"]) if "limit" in item else wanted["limit"]
            chosen = [Rule.model_validate(wanted)]
    except ValidationError as error:
        raise InvalidInput(Reason.INVALID_SPEC, str(error.errors()[0]["msg"]), where="trip") from error
    return tuple(bind_rule(rule, order) for order, rule in enumerate(chosen))
