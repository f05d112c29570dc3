"""A node that is not heard from: what its agent last said is no longer known to hold. Pure."""

from __future__ import annotations

from typing import Any

from blurfleet.api.kinds import Resource
from blurfleet.api.meta import Condition, timestamp
from blurfleet.api.nodeengine import NodeEngineStatus
from blurfleet.reasons import Reason

UNKNOWN = "Unknown"


def doubted(node: Resource, now: float, *, since: float) -> dict[str, Any] | None:
    """Return what to set in a silent NodeEngine's status, by JSON pointer, so that it claims nothing any more.

    None where it is marked already. Only conditions and what is printed of them: what it
    serves, its trips and its facts stay as last reported, as they are history and no claims. `now`, and `since` when
    the node was last heard by whoever doubts (see `hearing`), are in seconds since the epoch.
    """
    status = node.status
    assert isinstance(status, NodeEngineStatus)
    if status.connected == UNKNOWN:
        return None
    words = f"not heard from since {timestamp(since)}"
    changes: dict[str, Any] = {f"/status/{name}": UNKNOWN for name in ("connected", "armed", "fallback")}
    changes |= _doubt("/status/conditions", status.conditions, words, now)
    for index, model in enumerate(status.models):
        changes |= _doubt(f"/status/models/{index}/conditions", model.conditions, words, now)
    return changes


def _doubt(path: str, conditions: tuple[Condition, ...], words: str, now: float) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for index, old in enumerate(conditions):
        doubt = {"status": UNKNOWN, "reason": Reason.STALE_HEARTBEAT.value, "message": words}
        if old.status != UNKNOWN:
            doubt["lastTransitionTime"] = timestamp(now)
        found |= {f"{path}/{index}/{name}": value for name, value in doubt.items()}
    return found
