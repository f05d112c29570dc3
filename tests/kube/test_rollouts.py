"""Rollouts on the real API server, by the real operator under the chart's account, over scripted nodes."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fleet_objects import Fleet
from operator_process import OperatorProcess
from scripted_nodes import ScriptedNode

from blurfleet.errors import AdmissionRefused, InvalidSpec, StoreError
from blurfleet.store.port import Ref

Join = Callable[..., ScriptedNode]


def test_the_examples_are_promoted_through_their_waves_and_gate_with_events_and_columns(
    fleet: Fleet, operator: OperatorProcess, join: Join
) -> None:
    nodes = {n: join(n, "a100" if n.startswith("a") else "jetson-orin") for n in ("a0", "a1", "o0", "o1")}
    fleet.until(lambda: all(fleet.node(n) is not None for n in nodes), what="every node is registered")
    fleet.apply_examples(wave_soak="1s")
    fleet.wait_phase("Holding", "WaitingForGate", within_s=60)
    # 5 % of two nodes is one, and so is 50 %: a wave never rounds down to none.
    held = fleet.table("enginerollouts")
    assert (held["WAVE"], held["NODES"], held["PHASE"]) == ("half", "2/4", "Holding")
    assert {n: fleet.serving(n)[0] for n in nodes} == {"a0": "bokeh-mixed-2", "a1": "", "o0": "bokeh-mixed-2", "o1": ""}
    fleet.change(ops={"promote": "go"})
    fleet.wait_promoted("bokeh", "bokeh-mixed-2", within_s=60)
    assert fleet.condition("bokeh", "Promoted") == ("True", "Promoted")
    assert {fleet.serving(n) for n in nodes} == {("bokeh-mixed-2", "Primary", "Mixed")}
    assert {n: node.errors for n, node in nodes.items()} == {n: [] for n in nodes}
    columns = fleet.table("enginerollouts")
    assert columns["AGE"]
    assert {k: v for k, v in columns.items() if k not in ("Name", "AGE")} == {
        "PHASE": "Promoted",
        "SET": "bokeh-mixed-2",
        "WAVE": "all",
        "NODES": "4/4",
        "TRIPPED": "0",
        "FALLBACK": "bokeh-mixed-2",
        "REASON": "Promoted",
    }
    page = (Path(__file__).parents[2] / "docs/gitops.md").read_text(encoding="utf-8")
    documented = re.findall(r"^\| `(\w+)` \|", page.partition("## What is said on the way")[2], re.MULTILINE)
    events = fleet.store.events(Ref(kind="EngineRollout", name="bokeh", namespace=fleet.space))
    assert {e.reason.value for e in events} == set(documented)
    # What one pass says has one time.
    told = [e.reason.value for e in sorted(events, key=lambda e: (e.at, documented.index(e.reason.value)))]
    assert list(dict.fromkeys(told)) == documented
    assert [m for r, m in fleet.said() if r == "WaveInProgress" and "begins" in m] == [
        "wave canary is done; half begins",
        "wave half is done; all begins",
    ]
    assert told.count("Promoted") == 1
    assert len(fleet.said("bokeh")) == len(set(fleet.said("bokeh")))
    assert operator.alive()
    assert {line["service"] for line in operator.logged()} == {"operator"}


def test_an_engine_that_fails_golden_is_quarantined_and_refused_from_then_on(
    fleet: Fleet, started: dict[str, ScriptedNode]
) -> None:
    bad = fleet.digest("naive-a100")
    for node in started.values():
        node.script.golden_fails.add(bad)
    fleet.set("naive", "naive")
    fleet.rollout("naive")
    fleet.wait_phase("RolledBack", "Quarantined")
    fleet.until(lambda: bad in fleet.quarantines(), what="quarantined")
    for name in started:
        fleet.wait_serving(name, "good")
        assert bad not in started[name].served
    held = f"{fleet.space}/naive"
    fleet.until(lambda: any(held in q.status.engine_sets for q in fleet.store.objects("EngineQuarantine")))
    before, spoken = fleet.get().meta.generation, fleet.reasons()
    fleet.rollout("naive")
    fleet.set("naive", "naive")
    assert fleet.get().meta.generation == before
    assert fleet.condition("bokeh", "Ready") == ("False", "Quarantined")
    assert fleet.condition("bokeh", "Stalled") == ("True", "Quarantined")
    assert fleet.reasons() == spoken
    fleet.rollout("good")
    fleet.wait_promoted("bokeh", "good")
    for _ in range(5):
        with pytest.raises(AdmissionRefused, match=f"engine set naive holds digest {bad}, quarantined on a100"):
            fleet.change(engineSet="naive")
    for number in range(5):
        fleet.remove("EngineSet", "naive")
        with pytest.raises(AdmissionRefused, match=f"digest {bad} is quarantined on a100: MaxAbsErrorExceeded"):
            fleet.set("naive" if number < 4 else "naive-by-another-name", "naive")
    assert fleet.get().spec.engine_set == "good"
    for name in started:
        assert fleet.serving(name) == ("good", "Primary", "Mixed")
        assert bad not in started[name].served


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
    fleet.remove("EngineRollout", "bokeh")
    fleet.wait_promoted("late", "other")


ORDERS = (
    ("EngineSet", "QualityPolicy", "PreprocessContract", "EngineRollout", "QualityRun", "EngineQuarantine"),
    ("EngineRollout", "PreprocessContract", "EngineQuarantine", "QualityRun", "EngineSet", "QualityPolicy"),
    ("QualityRun", "EngineQuarantine", "QualityPolicy", "EngineRollout", "EngineSet", "PreprocessContract"),
)


@pytest.mark.parametrize("order", ORDERS, ids=lambda o: o[0])
def test_everything_may_be_deleted_in_any_order_and_nodes_go_on_serving(
    order: tuple[str, ...], fleet: Fleet, started: dict[str, ScriptedNode]
) -> None:
    tombstone: dict[str, Any] = {
        "apiVersion": "blurfleet.dev/v1alpha1",
        "kind": "EngineQuarantine",
        "metadata": {"name": f"{fleet.space}-x"},
        "spec": {"digest": fleet.digest("elsewhere"), "reason": "DEERExceeded", "class": "a100"},
    }
    fleet.api.apply(tombstone)

    def mine(kind: str) -> list[Ref]:
        found = [o.meta for o in fleet.store.objects(kind)]
        return [
            Ref(kind=kind, name=m.name, namespace=m.namespace)
            for m in found
            if fleet.space in (m.namespace, m.name[:-2])
        ]

    fleet.until(lambda: all(mine(k) for k in order), what="there is one of each kind")
    bodies = [
        fleet.api.call("GET", fleet.api.where("blurfleet.dev/v1alpha1", k, r.name, r.namespace or ""))
        for k in order
        for r in mine(k)
    ]
    assert [b["metadata"]["name"] for b in bodies if "finalizers" in b["metadata"]] == []
    for kind in order:
        for ref in mine(kind):
            if kind == "EngineSet":
                fleet.let_go(ref.name)
            assert fleet.store.delete(ref)
        fleet.until(lambda k=kind: not mine(k), what=f"every {kind} is gone")
    digest = tombstone["spec"]["digest"]
    fleet.until(
        lambda: not any(digest in fleet.node(n).spec.quarantined for n in started), what="it is lifted on nodes"
    )
    for name, node in started.items():
        assert fleet.serving(name) == ("good", "Primary", "Mixed")
        assert fleet.wanted(name) == fleet.digest("good-a100")
        assert len(set(node.served)) == len(node.served)
    path = f"/apis/blurfleet.dev/v1alpha1/nodeengines/{fleet.space}-a"
    assert "finalizers" not in fleet.api.call("GET", path)["metadata"]
    before = started["a"].served[:]
    fleet.api.call("DELETE", path)
    fleet.until(lambda: fleet.node("a") is not None and fleet.serving("a")[0] == "", what="made anew for its Node")
    assert started["a"].served == before


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
