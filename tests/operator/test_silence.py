"""A node that is not heard from for 90 seconds is Unknown, never stale True, and its history stays."""

from __future__ import annotations

import pytest
from simulated_fleet import NOW

from blurfleet.api.kinds import Resource
from blurfleet.api.meta import Condition, ObjectMeta, timestamp
from blurfleet.api.nodeengine import ModelStatus, NodeEngineSpec, NodeEngineStatus
from blurfleet.reasons import Reason
from blurfleet_operator.decide.silence import doubted


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


@pytest.mark.parametrize(
    ("age", "connected"),
    [
        pytest.param(0.0, "Yes", id="a node that was just heard from"),
        pytest.param(90.0, "Yes", id="a node at the limit"),
        pytest.param(None, "", id="a node that never reported"),
        pytest.param(500.0, "Unknown", id="a node that is marked already"),
    ],
)
def test_is_left_alone(age: float | None, connected: str) -> None:
    assert doubted(node(age, connected), NOW) is None


def test_a_silent_node_has_no_condition_left_that_claims_anything_and_nothing_else_is_touched() -> None:
    found = doubted(node(90.1), NOW)
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
