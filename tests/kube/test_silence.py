"""Silent nodes and wrong clocks before the real operator: who is heard counts, not what is claimed."""

from __future__ import annotations

from collections.abc import Callable

from fleet_objects import Fleet
from operator_process import OperatorProcess
from scripted_nodes import ScriptedNode

Join = Callable[..., ScriptedNode]
LATER_S = 40.0  # 8 s of silence, a turn each 2 s, and a start of the operator; it is no 90 s


def two(fleet: Fleet, join: Join, **off: float) -> dict[str, ScriptedNode]:
    """Two nodes on which set `good` is promoted, with clocks that are `off` seconds ahead."""
    nodes = {n: join(n) for n in ("a", "b")}
    for name, node in nodes.items():
        node.clock_off = off.get(name, 0.0)
    fleet.ground()
    fleet.set("good", "good")
    fleet.rollout("good")
    fleet.wait_promoted("bokeh", "good", within_s=60.0)
    return nodes


def doubted(fleet: Fleet, name: str) -> bool:
    return bool(fleet.node(name).status.connected == "Unknown")


def test_a_node_not_heard_from_leaves_the_rollout_partial_and_is_never_promoted_for(
    fleet: Fleet, keen: OperatorProcess, join: Join
) -> None:
    nodes = two(fleet, join)
    nodes["b"].script.silent = True
    fleet.until(lambda: doubted(fleet, "b"), LATER_S, what="doubted")
    fleet.set("next", "next")
    fleet.change(engineSet="next")
    fleet.wait_phase("Holding", "PartialFleet")
    assert fleet.wanted("b") == fleet.digest("good-a100")
    ready = fleet.node("b").status.models[0].conditions
    assert {(c.status, c.reason.value) for c in ready} == {("Unknown", "StaleHeartbeat")}
    assert fleet.serving("b") == ("good", "Primary", "Mixed")
    assert not doubted(fleet, "a")
    nodes["b"].script.silent = False
    fleet.wait_promoted("bokeh", "next", within_s=60.0)


def test_a_wrong_clock_loses_no_node_and_keeps_none(fleet: Fleet, keen: OperatorProcess, join: Join) -> None:
    nodes = two(fleet, join, a=-600.0, b=6 * 3600.0)
    fleet.set("next", "next")
    fleet.change(engineSet="next")
    fleet.wait_promoted("bokeh", "next", within_s=60.0)
    nodes["b"].script.silent = True
    fleet.until(lambda: doubted(fleet, "b"), LATER_S, what="the dead one doubted, though it wrote a time to come")
    assert not doubted(fleet, "a")
    fleet.until(lambda: fleet.condition("bokeh", "NodesReachable") == ("Unknown", "PartialFleet"), what="and said so")


def test_operator_and_node_gone_at_once_is_unknown_in_time_and_true_again_when_they_are_back(
    fleet: Fleet, keen: OperatorProcess, join: Join
) -> None:
    nodes = two(fleet, join)
    nodes["b"].script.silent = True
    keen.kill()
    keen.start()
    fleet.until(lambda: doubted(fleet, "b"), LATER_S, what="doubted by an operator that never heard it")
    fleet.until(lambda: fleet.condition("bokeh", "Ready")[0] == "Unknown", what="the rollout says so")
    assert not doubted(fleet, "a")
    nodes["b"].script.silent = False
    fleet.until(lambda: fleet.condition("bokeh", "Ready") == ("True", "Promoted"), 60.0, what="true again")
    assert not doubted(fleet, "b")
    assert fleet.serving("b") == ("good", "Primary", "Mixed")
