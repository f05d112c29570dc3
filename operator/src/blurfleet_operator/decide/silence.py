"""A node that is not heard from, or became another: what its agent last said is no longer known to hold. Pure."""

from __future__ import annotations

from typing import Any

from blurfleet.api.kinds import Resource
from blurfleet.api.meta import Condition, timestamp
from blurfleet.api.nodeengine import NodeEngineSpec, NodeEngineStatus
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
    changes |= _doubt("/status/conditions", status.conditions, Reason.STALE_HEARTBEAT, words, now)
    return changes | _models(status, Reason.STALE_HEARTBEAT, words, now)


def unproven(node: Resource, device_class: str, now: float) -> dict[str, Any]:
    """Return what to set in the status of a NodeEngine whose node becomes one of `device_class`, by JSON pointer.

    What its models were is of the class it leaves: it drains, and claims nothing until it is proven anew.
    What holds of the node itself, as that Triton answers, goes on to hold. `now` is in seconds since the epoch.
    """
    assert isinstance(node.spec, NodeEngineSpec)
    assert isinstance(node.status, NodeEngineStatus)
    words = f"draining: class {node.spec.device_class} became {device_class}; nothing is proven there yet"
    found = _models(node.status, Reason.CLASS_CHANGED, words, now)
    return {f"/status/{name}": UNKNOWN for name in ("armed", "fallback")} | found if found else {}


def _models(status: NodeEngineStatus, reason: Reason, words: str, now: float) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for index, model in enumerate(status.models):
        found |= _doubt(f"/status/models/{index}/conditions", model.conditions, reason, words, now)
    return found


def _doubt(path: str, conditions: tuple[Condition, ...], reason: Reason, words: str, now: float) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for index, old in enumerate(conditions):
        doubt = {"status": UNKNOWN, "reason": reason.value, "message": words}
        if old.status != UNKNOWN:
            doubt["lastTransitionTime"] = timestamp(now)
        found |= {f"{path}/{index}/{name}": value for name, value in doubt.items()}
    return found
