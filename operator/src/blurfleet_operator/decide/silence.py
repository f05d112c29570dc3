"""A node that is not heard from: what its agent last said is no longer known to hold. Pure."""

from __future__ import annotations

from blurfleet.api.kinds import Resource
from blurfleet.api.meta import Condition, set_condition
from blurfleet.api.nodeengine import NodeEngineStatus
from blurfleet.reasons import Reason
from blurfleet_operator.decide.observation import HEARTBEAT_LIMIT_S, instant

UNKNOWN = "Unknown"


def doubted(node: Resource, now: float) -> NodeEngineStatus | None:
    """Return the status of a NodeEngine with every condition Unknown, None where it was heard from or says so already.

    What it serves, its trips and its facts stay as last reported: they are history, not claims. `now` is in seconds
    since the epoch.
    """
    status = node.status
    assert isinstance(status, NodeEngineStatus)
    beat = instant(status.heartbeat)
    if beat is None or now - beat <= HEARTBEAT_LIMIT_S or status.connected == UNKNOWN:
        return None
    words = f"not heard from since {status.heartbeat}"
    models = tuple(m.model_copy(update={"conditions": _doubt(m.conditions, words, now)}) for m in status.models)
    return status.model_copy(
        update={
            "models": models,
            "conditions": _doubt(status.conditions, words, now),
            "connected": UNKNOWN,
            "armed": UNKNOWN,
            "fallback": UNKNOWN,
        }
    )


def _doubt(conditions: tuple[Condition, ...], words: str, now: float) -> tuple[Condition, ...]:
    for old in conditions:
        new = old.model_copy(update={"status": UNKNOWN, "reason": Reason.STALE_HEARTBEAT, "message": words})
        conditions = set_condition(conditions, new, now)
    return conditions
