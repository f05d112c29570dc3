"""The two policies of the story: the default one made quick, and one that forces an engine past the gate."""

from __future__ import annotations

from typing import Any

from blurfleet.api.base import API_VERSION
from blurfleet.api.policy import SENTINELS, MetricName, PolicySpec, Rule
from blurfleet.quality.rules import default_policy

SHADOW_SAMPLES = 6


def standard() -> PolicySpec:
    """Return the default policy with few shadow samples and a quick standby proof."""
    return default_policy().model_copy(update={"shadow_samples": SHADOW_SAMPLES, "standby_proof_every": "20s"})


def forced() -> PolicySpec:
    """Return the standard policy with live DEER listed first, no shadow, and golden figures that only warn.

    Sentinels, and every rule about FP32 engines, keep their action: only the reduced engine is let through.
    """
    rules = standard().metrics
    deer = [r for r in rules if r.source == "Live" and r.metric is MetricName.DEER]
    rest = [part for rule in rules if rule not in deer for part in _warned(rule)]
    return standard().model_copy(update={"metrics": (*deer, *rest), "shadow_samples": 0})


def _warned(rule: Rule) -> list[Rule]:
    if rule.source == "Live" or rule.metric in SENTINELS or rule.role == "Fallback":
        return [rule]
    warning = rule.model_copy(update={"role": "Primary", "action": "Warn"})
    return [warning] if rule.role == "Primary" else [warning, rule.model_copy(update={"role": "Fallback"})]


def policy_object(name: str, spec: PolicySpec) -> dict[str, Any]:
    """Return a QualityPolicy as it is applied."""
    return {"apiVersion": API_VERSION, "kind": "QualityPolicy", "metadata": {"name": name}, "spec": spec.wire()}
