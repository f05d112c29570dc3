"""Errors as RFC 9457 problem documents: a status, a stable `reason`, what is wrong, where, and what to do."""

from __future__ import annotations

import json
import math
from http import HTTPStatus
from typing import Any

from blurfleet.check import dumps
from blurfleet.errors import BlurfleetError, EngineError, InvalidInput, NodeError, RequestEnded
from blurfleet.reasons import Reason
from blurfleet_preprocess.limits import TooManyRequests
from blurfleet_preprocess.tensors import ContractMismatch, OutsideProfile

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_S = 1
_STATUS: dict[Reason, HTTPStatus] = {
    Reason.CONTRACT_MISMATCH: HTTPStatus.PRECONDITION_FAILED,
    Reason.IMAGE_TOO_LARGE: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    Reason.REQUEST_TOO_LARGE: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    Reason.REQUEST_TIMEOUT: HTTPStatus.REQUEST_TIMEOUT,
    Reason.UNSUPPORTED_IMAGE: HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
    Reason.WRONG_SHAPE: HTTPStatus.UNPROCESSABLE_ENTITY,
    Reason.WRONG_DTYPE: HTTPStatus.UNPROCESSABLE_ENTITY,
    Reason.NON_FINITE_INPUT: HTTPStatus.UNPROCESSABLE_ENTITY,
    Reason.UNAUTHENTICATED: HTTPStatus.UNAUTHORIZED,
    Reason.FORBIDDEN: HTTPStatus.FORBIDDEN,
    Reason.NOT_FOUND: HTTPStatus.NOT_FOUND,
    Reason.IMPOSSIBLE_INPUT: HTTPStatus.UNPROCESSABLE_ENTITY,
    Reason.SUSPECT_INPUT: HTTPStatus.UNPROCESSABLE_ENTITY,
}
_BAD_ANSWERS = {
    Reason.NON_FINITE_OUTPUT,
    Reason.OUT_OF_RANGE_OUTPUT,
    Reason.COLLAPSED_OUTPUT,
    Reason.WRONG_SHAPE,
    Reason.WRONG_DTYPE,
}


class Overloaded(BlurfleetError):
    """More requests wait than the gateway is willing to hold."""


def status_of(error: BlurfleetError) -> HTTPStatus:
    """Return the HTTP status: 4xx for what was sent, 502 a bad answer, 503 none right now, 504 none in time."""
    if isinstance(error, EngineError):
        return HTTPStatus.BAD_GATEWAY if error.reason in _BAD_ANSWERS else HTTPStatus.SERVICE_UNAVAILABLE
    if isinstance(error, NodeError | Overloaded):
        return HTTPStatus.SERVICE_UNAVAILABLE
    if isinstance(error, RequestEnded):
        return HTTPStatus.GATEWAY_TIMEOUT
    if isinstance(error, TooManyRequests):
        return HTTPStatus.TOO_MANY_REQUESTS
    if isinstance(error, InvalidInput):
        return _STATUS.get(error.reason, HTTPStatus.BAD_REQUEST)
    return HTTPStatus.INTERNAL_SERVER_ERROR


def problem(error: BlurfleetError) -> tuple[int, dict[str, str], bytes]:
    """Return status, headers and body of an error raised on purpose."""
    status = status_of(error)
    more: dict[str, Any] = {"where": error.where, "fix": error.fix}
    if isinstance(error, ContractMismatch):
        more |= {"expected": error.expected, "received": error.received, "differences": error.named()}
    if isinstance(error, OutsideProfile):
        more |= error.facts
    headers = {"retry-after": str(RETRY_AFTER_S)} if status is HTTPStatus.SERVICE_UNAVAILABLE else {}
    if isinstance(error, TooManyRequests):
        headers["retry-after"] = str(math.ceil(error.retry_after_s))
    if status is HTTPStatus.UNAUTHORIZED:
        headers["www-authenticate"] = "Bearer"
    return status.value, headers, document(status, error.reason, error.message, more)


def document(status: HTTPStatus, reason: Reason, detail: str, more: dict[str, Any] | None = None) -> bytes:
    """Return a problem document; empty extension members are left out."""
    body = {
        "type": f"urn:blurfleet:problem:{reason.value}",
        "title": status.phrase,
        "status": status.value,
        "reason": reason.value,
        "detail": detail,
        **{name: value for name, value in (more or {}).items() if value},
    }
    return dumps(body, indent=None).encode()


def for_path(path: str, body: bytes) -> bytes:
    """Return the problem document as `path` owes it: v2 clients read a sentence in `error`, and nothing else."""
    if not path.startswith("/v2"):
        return body
    said = json.loads(body)
    remedy = f" ({said['fix']})" if said.get("fix") else ""
    return dumps({**said, "error": f"{said['detail']}{remedy} [{said['reason']}]"}, indent=None).encode()
