"""What a gateway refuses, as exceptions made from its problem documents."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import ConfigDict

from blurfleet.api.base import Model
from blurfleet.errors import BlurfleetError
from blurfleet.reasons import Reason


class Problem(Model):
    """An RFC 9457 problem document. `reason` is stable and may be newer than this client; what else it says is kept."""

    model_config = ConfigDict(extra="allow")

    status: int
    reason: str = Reason.UNEXPECTED.value
    detail: str = ""
    where: str = ""
    fix: str = ""


class GatewayFailure(BlurfleetError):
    """A gateway did not do what it was asked. `problem` is what it said, None where it said nothing."""

    def __init__(
        self, reason: Reason, message: str, *, where: str = "", fix: str = "", problem: Problem | None = None
    ) -> None:
        super().__init__(reason, message, where=where, fix=fix)
        self.problem = problem


class RequestRefused(GatewayFailure):
    """What was sent is wrong (4xx): sending it again changes nothing, save after 429."""


class MatteWithheld(GatewayFailure):
    """Neither engine had a matte that may be shown (502)."""


class GatewayUnavailable(GatewayFailure):
    """No answer now, or not in time: unreachable, overloaded, nothing served, or past the deadline."""


def failure_of(status: int, body: bytes) -> GatewayFailure:
    """Return the exception for an answer of 400 or above, whatever its body is."""
    try:
        said = json.loads(body)
        if isinstance(said, dict) and said:
            return failure_from(said, status)
    except ValueError:  # pydantic's ValidationError is one too
        pass
    return _kind(status)(Reason.UNEXPECTED, f"HTTP {status} without a problem document")


def failure_from(document: Mapping[str, Any], status: int = 500) -> GatewayFailure:
    """Return the exception for a problem document. Raises ValidationError where it is none."""
    problem = Problem.model_validate({"status": status, **document})
    known = problem.reason in Reason.__members__.values()
    return _kind(problem.status)(
        Reason(problem.reason) if known else Reason.UNEXPECTED,
        problem.detail or f"HTTP {problem.status}",
        where=problem.where,
        fix=problem.fix,
        problem=problem,
    )


def _kind(status: int) -> type[GatewayFailure]:
    if status == 502:
        return MatteWithheld
    if status in (503, 504):
        return GatewayUnavailable
    return RequestRefused if 400 <= status < 500 else GatewayFailure
