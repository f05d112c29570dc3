"""Commands that were given for another rollout, and nodes that a rollout names wrongly or no longer selects."""

from __future__ import annotations

import pytest
from simulated_fleet import Fleet, Script, digest

from blurfleet.store.port import Ref

ROLLOUT = Ref(kind="EngineRollout", name="bokeh", namespace="default")
CLASSES = ("a100", "jetson-orin")
SILENT_CANARY = Script(shadow={("*", digest(f"mixed-{c}")): "no data" for c in CLASSES})


@pytest.fixture
def fleet() -> Fleet:
    fleet = Fleet()
    fleet.set("fp32")
    fleet.promote("fp32")
    fleet.set("mixed", precision="Mixed", net="net2")
    return fleet


def test_an_abort_that_a_rollout_is_made_anew_with_is_not_obeyed(fleet: Fleet) -> None:
    fleet.store.delete(ROLLOUT)
    fleet.rollout("mixed", ops={"abort": "old"})
    fleet.until(lambda: fleet.status().outcome == "Promoted")
    assert set(fleet.all_serve().values()) == {"mixed/Primary"}
    assert (fleet.status().acted.abort, "Aborted" in fleet.reasons()) == ("old", False)
    fleet.ops(abort="new")
    fleet.until(lambda: fleet.status().phase == "Aborted")


def test_a_promote_that_a_rollout_is_made_anew_with_opens_no_gate(fleet: Fleet) -> None:
    fleet.store.delete(ROLLOUT)
    waves = [{"name": "one", "nodes": ("orin-0",), "gate": "Manual", "soak": "5s"}, {"name": "all", "percent": 100}]
    fleet.rollout("mixed", ops={"promote": "old", "retry": "r0"}, waves=waves)
    fleet.until(lambda: fleet.said("Progressing") == ("False", "WaitingForGate"))
    fleet.tick(20)
    assert (fleet.status().wave, fleet.status().gate_opened) == ("one", -1)
    assert fleet.status().attempt.endswith("/r0")
    assert set(fleet.all_serve().items()) >= {("orin-0", "mixed/Primary"), ("orin-1", "fp32/Primary")}
    fleet.ops(promote="new")
    fleet.until(lambda: fleet.status().outcome == "Promoted")


def test_a_command_given_while_another_rollout_has_the_nodes_does_not_act_when_that_goes(fleet: Fleet) -> None:
    fleet.rollout("mixed", name="late")
    fleet.tick(2)
    fleet.change("late", ops={"abort": "a", "promote": "p"})
    fleet.tick(2)
    status = fleet.status("late")
    assert (status.phase, status.acted.abort, status.acted.promote) == ("Stalled", "a", "p")
    assert fleet.said("Ready", "late") == ("False", "ModelOwned")
    assert set(fleet.all_serve().values()) == {"fp32/Primary"}
    fleet.store.delete(ROLLOUT)
    waves = [{"name": "one", "percent": 100, "gate": "Manual"}]
    fleet.change("late", waves=waves)
    fleet.until(lambda: fleet.said("Progressing", "late") == ("False", "WaitingForGate"))
    fleet.tick(5)
    assert (fleet.status("late").outcome, fleet.status("late").gate_opened) == ("", -1)


def test_a_node_that_is_deselected_in_mid_canary_lays_its_candidate_down_and_serves_on(fleet: Fleet) -> None:
    fleet.script = SILENT_CANARY
    fleet.change(engine_set="mixed")
    fleet.until(lambda: fleet.spec("a100-0").candidate is not None)
    before = fleet.spec("a100-0")
    fleet.change(selector={"nodes": ("orin-0", "orin-1")})
    fleet.tick(2)
    after = fleet.spec("a100-0")
    assert (after.candidate, after.primary, after.fallback) == (None, before.primary, before.fallback)
    assert (after.oracle.set, after.golden) == ("fp32", fleet.store.objects("EngineSet")[0].spec.golden)
    assert fleet.spec("orin-0").candidate is not None
    assert fleet.serves("a100-0") == "fp32/Primary"


def test_a_node_that_another_rollout_selects_keeps_that_ones_candidate(fleet: Fleet) -> None:
    fleet.script = SILENT_CANARY
    fleet.change(engine_set="mixed", selector={"nodes": ("orin-0", "orin-1")})
    fleet.rollout("mixed", name="late", selector={"nodes": ("a100-0",)})
    fleet.tick(4)
    given = {name: fleet.spec(name).candidate for name in ("a100-0", "orin-0", "orin-1")}
    assert None not in given.values()
    fleet.tick(4)
    assert {name: fleet.spec(name).candidate for name in given} == given


def test_a_wrong_name_beside_a_right_one_holds_the_wave_until_it_is_corrected(fleet: Fleet) -> None:
    waves = [{"name": "canary", "nodes": ("orin-0", "orin-7")}, {"name": "all", "percent": 100}]
    fleet.change(engine_set="mixed", waves=waves)
    fleet.tick(12)
    assert (fleet.status().phase, fleet.status().wave) == ("Holding", "canary")
    assert fleet.said("Progressing") == ("False", "UnknownNode")
    assert fleet.serves("orin-1") == "fp32/Primary"
    fleet.change(waves=[{"name": "canary", "nodes": ("orin-0", "orin-1")}, {"name": "all", "percent": 100}])
    fleet.until(lambda: fleet.status().outcome == "Promoted")


def test_a_wave_of_wrong_names_only_holds_and_stalls_at_the_deadline(fleet: Fleet) -> None:
    waves = [{"name": "canary", "nodes": ("orin-7",)}, {"name": "all", "percent": 100}]
    fleet.change(engine_set="mixed", waves=waves, progress_deadline="30s")
    fleet.tick(3)
    assert (fleet.status().phase, fleet.said("Progressing")) == ("Holding", ("False", "UnknownNode"))
    fleet.tick(3, seconds=15.0)
    assert fleet.said("Progressing") == ("False", "ProgressDeadlineExceeded")
    assert (fleet.status().phase, set(fleet.all_serve().values())) == ("Stalled", {"fp32/Primary"})


def test_a_selector_without_nodes_is_pending_and_stalls_at_the_deadline(fleet: Fleet) -> None:
    fleet.change(engine_set="mixed", selector={"nodes": ("orin-7",)}, progress_deadline="30s")
    fleet.tick()
    assert (fleet.status().phase, fleet.said("Progressing")) == ("Pending", ("False", "NoNodesSelected"))
    fleet.tick(3, seconds=15.0)
    assert (fleet.status().phase, fleet.said("Progressing")) == ("Stalled", ("False", "ProgressDeadlineExceeded"))


def test_a_node_named_in_a_wave_may_go_once_the_set_is_promoted(fleet: Fleet) -> None:
    fleet.promote("mixed", waves=[{"name": "one", "nodes": ("orin-0",)}, {"name": "all", "percent": 100}])
    fleet.store.delete(Ref(kind="NodeEngine", name="orin-0"))
    fleet.tick(2)
    assert fleet.said("Ready") == ("True", "Promoted")
