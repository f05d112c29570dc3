"""The one shape of every check's answer: `{path, ok, findings[], facts{}}`, and JSON that never holds a bare NaN."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Any

from blurfleet.errors import BlurfleetError
from blurfleet.reasons import Reason


class Severity(StrEnum):
    """How bad a finding is: an Error makes the check fail, a Warning and a Note do not."""

    ERROR = "Error"
    WARNING = "Warning"
    NOTE = "Note"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing a check noticed: machine-readable reason, where it is, and a sentence for a person."""

    severity: Severity
    reason: Reason
    where: str
    message: str


@dataclass(frozen=True, kw_only=True)
class CheckReport:
    """The answer of one check. `ok` is false as soon as one finding is an Error."""

    path: str
    findings: tuple[Finding, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Tell whether no finding is an Error."""
        return all(f.severity is not Severity.ERROR for f in self.findings)

    def as_dict(self) -> dict[str, Any]:
        """Return the documented JSON shape."""
        return {
            "path": self.path,
            "ok": self.ok,
            "findings": [
                {"severity": f.severity, "reason": f.reason, "where": f.where, "message": f.message}
                for f in self.findings
            ],
            "facts": dict(self.facts),
        }


def refused(path: str, error: BlurfleetError, facts: Mapping[str, Any] | None = None) -> CheckReport:
    """Return the report of a check that stopped at `error`."""
    message = f"{error.message} ({error.fix})" if error.fix else error.message
    finding = Finding(severity=Severity.ERROR, reason=error.reason, where=error.where or path, message=message)
    return CheckReport(path=path, findings=(finding,), facts=facts or {})


def finite_json(value: Any) -> Any:
    """Return `value` with every non-finite float as the string "NaN", "+Inf" or "-Inf", ready for strict JSON."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, bool | int | str) or value is None:
        return value
    if isinstance(value, Mapping):
        return {str(k): finite_json(v) for k, v in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, bytes):
        return [finite_json(v) for v in value]
    number = float(value)
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "+Inf" if number > 0 else "-Inf"
    return number


def dumps(value: Any, *, indent: int | None = 2) -> str:
    """Serialize to strict JSON (RFC 8259); non-finite figures become strings, see `finite_json`."""
    return json.dumps(finite_json(value), indent=indent, allow_nan=False, ensure_ascii=False)
