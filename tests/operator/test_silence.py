"""A node that is not heard from is Unknown, never stale True, and its history stays."""

from __future__ import annotations

from dataclasses import replace

from simulated_fleet import NOW

from blurfleet.api.kinds import Resource
from blurfleet.api.meta import Condition, ObjectMeta, timestamp
from blurfleet.api.nodeengine import ModelStatus, NodeEngineSpec, NodeEngineStatus
from blurfleet.reasons import Reason
from blurfleet_operator.decide.silence import doubted, unproven


def node(age: float | None, connected: str = "Yes") -> Resource:
    fine = Condition(type="Ready", status="True", reason=Reason.SERVING, last_transition_time=timestamp(NOW - 500))
    status = NodeEngineStatus(
        heartbeat="" if age is None else timestamp(NOW - age),
        conditions=(fine.model_copy(update={"type": "TritonReachable"}),),
        models=(ModelStatus(name="bokeh", conditions=(fine,), trips=3),),
        connected=connected,
        armed="Yes",
        active="one@abc",
    )
    meta = ObjectMeta(name="n")
    return Resource(kind="NodeEngine", meta=meta, spec=NodeEngineSpec(device_class="a100"), status=status)


def test_a_node_that_is_marked_already_is_left_alone() -> None:
    assert doubted(node(500.0, "Unknown"), NOW, since=NOW - 500.0) is None


def test_a_silent_node_has_no_condition_left_that_claims_anything_and_nothing_else_is_touched() -> None:
    found = doubted(node(7000.0), NOW, since=NOW - 90.1)
    said = {
        "status": "Unknown",
        "reason": "StaleHeartbeat",
        "message": f"not heard from since {timestamp(NOW - 90.1)}",
        "lastTransitionTime": timestamp(NOW),
    }
    assert found == {
        **{f"/status/{name}": "Unknown" for name in ("connected", "armed", "fallback")},
        **{f"/status/conditions/0/{name}": value for name, value in said.items()},
        **{f"/status/models/0/conditions/0/{name}": value for name, value in said.items()},
    }


def test_a_node_that_becomes_another_claims_nothing_for_its_models_and_keeps_what_holds_of_itself() -> None:
    said = {
        "status": "Unknown",
        "reason": "ClassChanged",
        "message": "draining: class a100 became jetson-orin; nothing is proven there yet",
        "lastTransitionTime": timestamp(NOW),
    }
    assert unproven(node(5.0), "jetson-orin", NOW) == {
        **{f"/status/{name}": "Unknown" for name in ("armed", "fallback")},
        **{f"/status/models/0/conditions/0/{name}": value for name, value in said.items()},
    }


def test_a_node_that_said_nothing_yet_has_nothing_to_take_back() -> None:
    fresh = replace(node(5.0), status=NodeEngineStatus())
    assert unproven(fresh, "jetson-orin", NOW) == {}
