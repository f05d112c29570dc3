"""What happens to a rollout on its way, on the real API server: breaches, newer wishes, undo, shares, no variant."""

from __future__ import annotations

from collections.abc import Callable

from fleet_objects import Fleet
from operator_process import OperatorProcess
from phases import candidate
from scripted_nodes import ScriptedNode

Join = Callable[..., ScriptedNode]
CANARY = [{"name": "canary", "percent": 50, "gate": "Manual"}, {"name": "all", "percent": 100}]


def on_canary(fleet: Fleet, engine_set: str, **spec: object) -> tuple[str, str]:
    """Bring the set to the canary's gate; return the canary's name and the other node's."""
    fleet.set(engine_set, engine_set)
    fleet.change(engineSet=engine_set, waves=CANARY, **spec)
    fleet.wait_phase("Holding", "WaitingForGate")
    served = [n for n in ("a", "b") if fleet.serving(n)[0] == engine_set]
    assert len(served) == 1
    return served[0], "b" if served == ["a"] else "a"


def test_a_breach_while_a_gate_is_pending_reverts_and_an_open_gate_helps_it_no_more(
    fleet: Fleet, started: dict[str, ScriptedNode]
) -> None:
    bad = fleet.digest("next-a100")
    canary, other = on_canary(fleet, "next")
    started[canary].script.trips.add(bad)
    # One node runs it, so that one is min(2, nodes running it).
    fleet.wait_phase("RolledBack", "Quarantined")
    assert fleet.quarantines()[bad] == "a100"
    fleet.change(ops={"promote": "late"})
    fleet.wait_serving(canary, "good")
    fleet.until(lambda: fleet.status().observed_generation == fleet.get().meta.generation, what="the token is seen")
    assert fleet.phase() == "RolledBack"
    assert bad not in started[other].served
    reasons = fleet.reasons()
    assert [reasons.count(r) for r in ("Tripped", "Promoted")] == [1, 1]


def test_a_newer_set_in_mid_flight_takes_over_and_the_one_before_it_goes_no_further(
    fleet: Fleet, started: dict[str, ScriptedNode]
) -> None:
    canary, other = on_canary(fleet, "next")
    fleet.set("third", "third")
    for node in started.values():
        node.script.staging.add(fleet.digest("third-a100"))
    fleet.change(engineSet="third")
    fleet.until(lambda: candidate(fleet, canary) == "Staging", what="the newer set begins where the older one did")
    begun = ("third", "canary")  # nodes are told before the rollout's status says so
    fleet.until(lambda: (fleet.status().set, fleet.status().wave) == begun, what="the rollout says so")
    assert fleet.serving(other)[0] == "good"
    for node in started.values():
        node.script.staging.clear()
    fleet.wait_phase("Holding", "WaitingForGate")
    fleet.change(ops={"promote": "go"})
    fleet.wait_promoted("bokeh", "third")
    for name in started:
        fleet.wait_serving(name, "third")
    assert fleet.digest("next-a100") not in started[other].served
    assert [k.set for k in fleet.status().known_good] == ["third", "good"]


def test_going_back_within_the_rollback_window_asks_for_no_canary_and_after_it_does(
    fleet: Fleet, started: dict[str, ScriptedNode]
) -> None:
    fleet.set("next", "next")
    fleet.change(engineSet="next", rollbackWindow="1h")
    fleet.wait_promoted("bokeh", "next")
    for node in started.values():
        node.script.undecided.add(fleet.digest("good-a100"))
    fleet.change(engineSet="good")
    fleet.wait_promoted("bokeh", "good")
    for name in started:
        fleet.wait_serving(name, "good")
    for node in started.values():
        node.script.undecided = {fleet.digest("next-a100")}
    fleet.change(engineSet="next", rollbackWindow="0s")
    fleet.wait_phase("Holding", "HoldNoData")
    assert {fleet.serving(n)[0] for n in started} == {"good"}


def test_a_wave_is_a_share_of_each_class_at_once(fleet: Fleet, operator: OperatorProcess, join: Join) -> None:
    classes = {"a0": "a100", "a1": "a100", "a2": "a100", "a3": "a100", "o0": "jetson-orin", "o1": "jetson-orin"}
    for name, device_class in classes.items():
        join(name, device_class)
    fleet.until(lambda: all(fleet.node(n) is not None for n in classes), what="every node is registered")
    fleet.ground()
    fleet.set("one", "one", classes=("a100", "jetson-orin"))
    waves = [{"name": f"w{p}", "percent": p, "gate": "Manual"} for p in (25, 50, 100)]
    fleet.rollout("one", waves=waves)

    def serving() -> list[int]:
        found = [d for n, d in classes.items() if fleet.serving(n)[0] == "one"]
        return [found.count("a100"), found.count("jetson-orin")]

    for wave, counts in (("w25", [1, 1]), ("w50", [2, 1]), ("w100", [4, 2])):
        fleet.until(lambda w=wave: (fleet.status().wave, fleet.phase()) == (w, "Holding"), what=f"{wave} is done")
        assert (fleet.why(), serving()) == ("WaitingForGate", counts)
        fleet.change(ops={"promote": wave})
    fleet.wait_promoted("bokeh", "one")
    assert fleet.status().nodes == "6/6"


def test_a_node_without_a_variant_stops_the_rollout_before_any_node_is_told_anything(
    fleet: Fleet, started: dict[str, ScriptedNode], join: Join
) -> None:
    join("o", "jetson-orin")
    fleet.until(lambda: fleet.node("o") is not None and fleet.node("o").status.facts.sm == 87, what="orin is known")
    before = {n: fleet.node(n).meta.generation for n in ("a", "b", "o")}
    fleet.set("narrow", "narrow")
    fleet.change(engineSet="narrow")
    fleet.wait_phase("Stalled", "NoVariantForNode")
    found = next(c for c in fleet.status().conditions if c.type == "Stalled")
    assert found.status == "True"
    assert f"EngineSet narrow has no variant for {fleet.space}-o: needs class jetson-orin, sm 87" in found.message
    assert {n: fleet.node(n).meta.generation for n in before} == before
    assert fleet.serving("a") == ("good", "Primary", "Mixed")
    fleet.set("wide", "wide", classes=("a100", "jetson-orin"))
    fleet.change(engineSet="wide")
    fleet.wait_promoted("bokeh", "wide")


def test_no_progress_within_the_deadline_is_said_and_ends_with_progress(
    fleet: Fleet, started: dict[str, ScriptedNode]
) -> None:
    fleet.set("next", "next")
    for node in started.values():
        node.script.staging.add(fleet.digest("next-a100"))
    fleet.change(engineSet="next", progressDeadline="2s")
    fleet.wait_phase("Stalled", "ProgressDeadlineExceeded")
    assert fleet.condition("bokeh", "Stalled") == ("True", "ProgressDeadlineExceeded")
    assert {fleet.serving(n)[0] for n in started} == {"good"}
    assert fleet.quarantines().get(fleet.digest("next-a100")) is None
    for node in started.values():
        node.script.staging.clear()
    fleet.wait_promoted("bokeh", "next")
    assert fleet.condition("bokeh", "Stalled")[0] == "False"
