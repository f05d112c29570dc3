"""A diagnosis in the one shape of every check: findings by reason, facts for scripts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from blurfleet.check import CheckReport, Finding, Severity
from blurfleet.diagnosis.constants import CRITICAL_DISTANCE
from blurfleet.diagnosis.diagnose import Diagnosis, Fault
from blurfleet.reasons import Reason


def report_of(path: str, found: Diagnosis, facts: dict[str, Any]) -> CheckReport:
    """Return the report: an Error for each fault, a Note for what the picture cannot tell.

    Facts: `faults` (reasons in the order of undoing), `distance {before, after, levels}`, `parameter_distance`,
    `critical`, `untold`, and `details` by reason.
    """
    notes = tuple(
        Finding(severity=Severity.NOTE, reason=Reason.UNTOLD_BY_PICTURE, where=aspect, message=f"cannot be told: {why}")
        for aspect, why in found.untold.items()
    )
    return CheckReport(
        path=path,
        findings=(*findings_of(found.faults), *notes),
        facts=facts
        | facts_of(found.faults, found.parameter_distance)
        | {
            "distance": {"before": found.before, "after": found.after, "levels": found.levels},
            "untold": dict(found.untold),
        },
    )


def findings_of(faults: Iterable[Fault]) -> tuple[Finding, ...]:
    """Return one Error per fault."""
    return tuple(Finding(severity=Severity.ERROR, reason=f.reason, where="tensor", message=f.message) for f in faults)


def facts_of(faults: Iterable[Fault], parameter_distance: float) -> dict[str, Any]:
    """Return what scripts read of faults and of the constants' distance."""
    listed = tuple(faults)
    return {
        "faults": [f.reason for f in listed],
        "details": {f.reason.value: dict(f.facts) for f in listed if f.facts},
        "parameter_distance": parameter_distance,
        "critical": not (parameter_distance <= CRITICAL_DISTANCE),
    }
