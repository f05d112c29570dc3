"""Rollouts on the real API server, by the real operator under the chart's account, over scripted nodes."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from fleet_objects import Fleet
from operator_process import OperatorProcess
from scripted_nodes import ScriptedNode

from blurfleet.errors import AdmissionRefused, InvalidSpec, StoreError
from blurfleet.store.port import Ref

Join = Callable[..., ScriptedNode]


def test_the_examples_are_promoted_on_two_nodes_with_events_and_columns(
    fleet: Fleet, operator: OperatorProcess, join: Join
) -> None:
    a100, orin = join("a100", "a100"), join("orin", "jetson-orin")
    fleet.apply_examples(wave_soak="0s", gate="Auto")
    fleet.wait_promoted("bokeh", "bokeh-mixed-2", within_s=60)
    assert fleet.condition("bokeh", "Promoted") == ("True", "Promoted")
    assert fleet.status("bokeh").nodes == "2/2"
    assert fleet.serving("a100") == ("bokeh-mixed-2", "Primary", "Mixed")
    assert fleet.serving("orin") == ("bokeh-mixed-2", "Primary", "Mixed")
    assert fleet.reasons("bokeh").count("Promoted") == 1
    assert len(fleet.said("bokeh")) == len(set(fleet.said("bokeh")))
    assert a100.errors == []
    assert orin.errors == []
    columns = fleet.table("enginerollouts")
    assert (columns["PHASE"], columns["NODES"], columns["SET"]) == ("Promoted", "2/2", "bokeh-mixed-2")
    assert operator.alive()
    assert {line["service"] for line in operator.logged()} == {"operator"}


def test_an_engine_that_fails_golden_is_quarantined_and_refused_from_then_on(
    fleet: Fleet, started: dict[str, ScriptedNode]
) -> None:
    bad = fleet.digest("naive-a100")
    for node in started.values():
        node.script.golden_fails.add(bad)
    fleet.set("naive", "naive")
    fleet.change(engineSet="naive")
    fleet.wait_phase("RolledBack")
    fleet.until(lambda: bad in fleet.quarantines(), what="quarantined")
    for name in started:
        fleet.wait_serving(name, "good")
        assert bad not in started[name].served
    held = f"{fleet.space}/naive"
    fleet.until(lambda: any(held in q.status.engine_sets for q in fleet.store.objects("EngineQuarantine")))
    for number in range(5):
        with pytest.raises(AdmissionRefused, match=f"digest {bad} is quarantined on a100: MaxAbsErrorExceeded"):
            fleet.set(f"naive-{number}", "naive")
        with pytest.raises(AdmissionRefused, match=f"engine set naive holds digest {bad}, quarantined on a100"):
            fleet.rollout("naive", name=f"again-{number}")
    before = fleet.get().meta.generation
    fleet.change(engineSet="naive")
    assert fleet.get().meta.generation == before
    assert fleet.why() in ("Quarantined", "RolledBack")
    assert fleet.serving("a") == ("good", "Primary", "Mixed")


def test_one_trip_is_the_node_s_own_and_the_second_one_reverts_the_class(
    fleet: Fleet, started: dict[str, ScriptedNode]
) -> None:
    bad = fleet.digest("drifts-a100")
    fleet.set("drifts", "drifts")
    fleet.change(engineSet="drifts")
    fleet.wait_promoted("bokeh", "drifts")
    started["a"].script.trips.add(bad)
    fleet.wait_serving("a", "drifts", "Fallback")
    assert fleet.serving("a")[2] == "FP32"
    fleet.until(lambda: fleet.status().tripped == 1)
    assert fleet.serving("b") == ("drifts", "Primary", "Mixed")
    assert bad not in fleet.quarantines()
    started["b"].script.trips.add(bad)
    fleet.wait_phase("RolledBack")
    assert fleet.quarantines()[bad] == "a100"
    for name in started:
        fleet.until(lambda n=name: fleet.wanted(n) == fleet.digest("good-a100"))
        fleet.wait_serving(name, "good")
    runs = [r.spec for r in fleet.store.objects("QualityRun") if r.meta.namespace == fleet.space]
    live = {(r.node, r.verdict, r.reason) for r in runs if r.stage == "Live"}
    assert live == {(f"{fleet.space}-{n}", "Fail", "DEERExceeded") for n in started}


def test_silent_metrics_hold_and_never_revert(fleet: Fleet, started: dict[str, ScriptedNode]) -> None:
    new = fleet.digest("next-a100")
    for node in started.values():
        node.script.undecided.add(new)
    fleet.set("next", "next")
    fleet.change(engineSet="next")
    fleet.wait_phase("Holding", "HoldNoData")
    assert fleet.serving("a") == ("good", "Primary", "Mixed")
    assert fleet.quarantines().get(new) is None
    for node in started.values():
        node.script.undecided.clear()
    fleet.wait_promoted("bokeh", "next")


def test_after_a_bad_set_a_failing_one_goes_back_to_the_last_good_one(
    fleet: Fleet, started: dict[str, ScriptedNode]
) -> None:
    for bad in ("second", "third"):
        for node in started.values():
            node.script.golden_fails.add(fleet.digest(f"{bad}-a100"))
        fleet.set(bad, bad)
        fleet.change(engineSet=bad)
        fleet.wait_phase("RolledBack")
        fleet.until(lambda b=bad: fleet.status().set == b)
    for name in started:
        fleet.wait_serving(name, "good")
        assert started[name].served[-1] == fleet.digest("good-a100")
    assert fleet.status().last_known_good == "good"


def test_a_second_rollout_for_the_model_is_stalled_until_the_first_goes(
    fleet: Fleet, started: dict[str, ScriptedNode]
) -> None:
    fleet.set("other", "other")
    fleet.rollout("other", name="late")
    fleet.wait_phase("Stalled", "ModelOwned", name="late")
    assert fleet.serving("a") == ("good", "Primary", "Mixed")
    fleet.store.delete(Ref(kind="EngineRollout", name="bokeh", namespace=fleet.space))
    fleet.wait_promoted("late", "other")


def test_everything_may_be_deleted_in_any_order_and_nodes_go_on_serving(
    fleet: Fleet, started: dict[str, ScriptedNode]
) -> None:
    for kind in ("EngineSet", "QualityPolicy", "PreprocessContract", "EngineRollout", "QualityRun"):
        for found in fleet.store.objects(kind):
            if found.meta.namespace == fleet.space:
                if kind == "EngineSet":
                    fleet.let_go(found.meta.name)
                assert fleet.store.delete(Ref(kind=kind, name=found.meta.name, namespace=fleet.space))
        fleet.until(lambda k=kind: all(o.meta.namespace != fleet.space for o in fleet.store.objects(k)))
    for name, node in started.items():
        assert fleet.serving(name) == ("good", "Primary", "Mixed")
        assert fleet.wanted(name) == fleet.digest("good-a100")
        assert len(set(node.served)) == len(node.served)
    raw = fleet.api.call("GET", f"/apis/blurfleet.dev/v1alpha1/nodeengines/{fleet.space}-a")
    assert "finalizers" not in raw["metadata"]


def test_a_node_goes_with_its_node_object_and_a_relabelled_one_is_proven_anew(
    fleet: Fleet, started: dict[str, ScriptedNode], join: Join
) -> None:
    fleet.set("both", "both", classes=("a100", "jetson-orin"))
    fleet.change(engineSet="both")
    fleet.wait_promoted("bokeh", "both")
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"{fleet.space}-b"}}
    labels = {"nvidia.com/gpu.product": "Orin", "nvidia.com/gpu.compute.major": "8"}
    started["b"].device_class = "jetson-orin"
    fleet.api.merge(fleet.api.path(node), {"metadata": {"labels": labels}})
    fleet.until(lambda: fleet.wanted("b") == fleet.digest("both-jetson-orin"), what="proven as another class")
    fleet.wait_serving("b", "both")
    assert fleet.node("b").spec.device_class == "jetson-orin"
    assert fleet.digest("base-jetson-orin") in started["b"].served
    fleet.api.delete(node)
    fleet.until(lambda: fleet.node("b") is None, what="collected with its Node")


def test_an_agent_writes_neither_another_node_nor_any_spec(fleet: Fleet, started: dict[str, ScriptedNode]) -> None:
    other = Ref(kind="NodeEngine", name=f"{fleet.space}-b")
    with pytest.raises((AdmissionRefused, StoreError), match="may not write nodeengines"):
        started["a"].store.write_status(other, fleet.node("b").status)
    with pytest.raises(StoreError, match="cannot patch resource"):
        started["a"].store.apply(fleet.node("a"))
    with pytest.raises((AdmissionRefused, StoreError), match="may not write leases"):
        started["a"].store.beat(f"{fleet.space}-b", "blurfleet-system", time.time(), every_s=30.0)


def test_a_spec_that_breaks_a_rule_says_what_to_do(fleet: Fleet, operator: OperatorProcess) -> None:
    fleet.ground()
    waves = [{"name": "one", "percent": 50}, {"name": "two", "percent": 20}]
    with pytest.raises((InvalidSpec, AdmissionRefused), match="must not decrease"):
        fleet.rollout("none", waves=waves)
