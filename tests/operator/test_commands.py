"""Abort, retry, promote and pause: each acts once per new token, from every phase, and mutes no trip."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from simulated_fleet import NOW, Fleet, Script, digest

from blurfleet.reasons import Reason
from blurfleet.store.port import Ref, ref_of

NODES = ("a100-0", "orin-0", "orin-1")


@pytest.fixture
def fleet() -> Fleet:
    fleet = Fleet()
    fleet.set("fp32")
    fleet.promote("fp32")
    fleet.set("mixed", precision="Mixed", net="net2")
    return fleet


GATED = [{"name": "first", "nodes": ("orin-0",), "gate": "Manual"}, {"name": "all", "percent": 100}]
SOAKED = [{"name": "first", "nodes": ("orin-0",), "soak": "60s"}, {"name": "all", "percent": 100}]


def loading(fleet: Fleet) -> None:
    fleet.change(engine_set="mixed")
    fleet.tick()


def holding(fleet: Fleet) -> None:
    fleet.script = Script(shadow={("*", digest("mixed-a100")): "no data"})
    fleet.change(engine_set="mixed")
    fleet.until(lambda: fleet.status().phase == "Holding")


def gated(fleet: Fleet) -> None:
    fleet.change(engine_set="mixed", waves=GATED)
    fleet.until(lambda: fleet.said("Progressing") == ("False", "WaitingForGate"))


def soaking(fleet: Fleet) -> None:
    fleet.change(engine_set="mixed", waves=SOAKED)
    fleet.until(lambda: fleet.said("Progressing") == ("True", "WaitingForSoak"))


def paused(fleet: Fleet) -> None:
    fleet.change(engine_set="mixed")
    fleet.tick()
    fleet.change(paused=True)
    fleet.tick(3)
    assert fleet.said("Progressing") == ("False", "Paused")


def tripped(fleet: Fleet) -> None:
    fleet.script = Script(live={("orin-0", digest("mixed-jetson-orin")): "DEERExceeded"})
    fleet.change(engine_set="mixed", waves=[{"name": "all", "percent": 100}])
    fleet.until(lambda: fleet.said("Progressing") == ("False", "HoldTripped") or fleet.status().tripped == 1)


def stalled(fleet: Fleet) -> None:
    gated(fleet)
    fleet.tick(seconds=700)
    assert fleet.said("Progressing") == ("False", "ProgressDeadlineExceeded")


def promoted(fleet: Fleet) -> None:
    fleet.promote("mixed")


def rolled_back(fleet: Fleet) -> None:
    fleet.script = Script(golden={("*", digest("mixed-a100")): "oracle passes"})
    fleet.change(engine_set="mixed")
    fleet.until(lambda: fleet.status().phase == "RolledBack")


def missing_set(fleet: Fleet) -> None:
    gated(fleet)
    fleet.change(engine_set="typo")
    fleet.tick()
    assert fleet.said("Ready") == ("False", "UnknownEngineSet")


PHASES = (loading, holding, gated, soaking, paused, tripped, stalled, promoted, rolled_back, missing_set)


@pytest.mark.parametrize("reach", PHASES, ids=lambda f: f"abort while {f.__name__.replace('_', ' ')}")
def test_abort_brings_every_node_back_to_known_good_in_bounded_time(
    fleet: Fleet, reach: Callable[[Fleet], None]
) -> None:
    reach(fleet)
    fleet.ops(abort="now")
    fleet.until(lambda: fleet.status().outcome == "Aborted", ticks=2)
    fleet.tick(3)
    assert fleet.all_serve() == dict.fromkeys(NODES, "fp32/Primary")
    assert all(fleet.spec(n).candidate is None for n in NODES)
    assert all(fleet.spec(n).fallback.set == "fp32" for n in NODES)
    assert fleet.status().last_known_good == "fp32"


def test_an_abort_acts_once_and_a_removed_token_does_nothing(fleet: Fleet) -> None:
    loading(fleet)
    fleet.ops(abort="now")
    fleet.until(lambda: fleet.status().phase == "Aborted")
    fleet.ops(retry="r1")
    fleet.until(lambda: fleet.status().phase == "Promoted")
    fleet.change(ops={})
    fleet.tick(5)
    assert set(fleet.all_serve().values()) == {"mixed/Primary"}
    assert fleet.reasons().count("Aborted") == 1


def test_an_abort_of_a_set_that_has_not_begun_takes_nothing_off_the_nodes(fleet: Fleet) -> None:
    fleet.promote("mixed")
    fleet.change(engine_set="typo")
    fleet.tick()
    fleet.ops(abort="now")
    fleet.tick(3)
    assert set(fleet.all_serve().values()) == {"mixed/Primary"}
    assert (fleet.status().acted.abort, fleet.status().phase) == ("now", "Stalled")
    assert fleet.status().last_known_good == "mixed"


def test_an_abort_of_a_class_that_goes_back_already_leaves_the_reason_it_went_back_for(fleet: Fleet) -> None:
    fleet.script = Script(golden={("*", digest(f"mixed-{c}")): "oracle passes" for c in ("a100", "jetson-orin")})
    fleet.change(engine_set="mixed")
    fleet.until(lambda: fleet.status().phase == "RolledBack")
    fleet.ops(abort="now")
    fleet.tick(3)
    assert (fleet.status().phase, fleet.status().acted.abort) == ("RolledBack", "now")
    assert "Aborted" not in fleet.reasons()
    assert set(fleet.all_serve().values()) == {"fp32/Primary"}


def test_an_abort_after_all_sets_were_deleted_leaves_every_node_serving(fleet: Fleet) -> None:
    fleet.promote("mixed")
    for name in ("fp32", "mixed"):
        fleet.lose(name)
    fleet.ops(abort="now")
    fleet.tick(3)
    assert all(fleet.spec(n).primary is not None for n in NODES)
    assert len(fleet.all_serve()) == len(NODES)


def test_an_aborted_set_is_not_tried_again_without_a_retry(fleet: Fleet) -> None:
    loading(fleet)
    fleet.ops(abort="now")
    fleet.tick(30)
    assert (fleet.status().phase, set(fleet.all_serve().values())) == ("Aborted", {"fp32/Primary"})


def test_a_promote_token_opens_the_gate_of_the_wave_it_was_given_in_and_no_other(fleet: Fleet) -> None:
    waves = [
        {"name": "first", "nodes": ("orin-0",), "gate": "Manual"},
        {"name": "second", "nodes": ("orin-1",), "gate": "Manual"},
        {"name": "all", "percent": 100},
    ]
    fleet.change(engine_set="mixed", waves=waves)
    fleet.until(lambda: fleet.said("Progressing") == ("False", "WaitingForGate"))
    fleet.tick(5)
    assert fleet.status().wave == "first"
    fleet.ops(promote="p1")
    fleet.until(lambda: fleet.said("Progressing") == ("False", "WaitingForGate") and fleet.status().wave == "second")
    fleet.tick(5)
    assert fleet.status().wave == "second"
    fleet.ops(promote="p2")
    fleet.until(lambda: fleet.status().phase == "Promoted")


def test_a_soak_is_waited_for_and_a_promote_token_ends_it(fleet: Fleet) -> None:
    soaking(fleet)
    fleet.tick(40)
    assert fleet.status().wave == "first"
    fleet.ops(promote="enough")
    fleet.tick()
    assert fleet.status().wave == "all"


def test_a_soak_that_is_over_opens_the_next_wave(fleet: Fleet) -> None:
    soaking(fleet)
    fleet.tick(61)
    assert fleet.status().wave == "all"


@pytest.mark.parametrize("reach", [gated, paused, stalled], ids=lambda f: f"while {f.__name__}")
def test_a_pending_gate_a_pause_and_a_passed_deadline_mute_no_trip(
    fleet: Fleet, reach: Callable[[Fleet], None]
) -> None:
    fleet.change(correlation={"nodes": 1, "window": "10m"})
    if reach is paused:
        fleet.change(engine_set="mixed")
        fleet.until(lambda: fleet.serves("orin-0") == "mixed/Primary")
        fleet.change(paused=True)
    else:
        reach(fleet)
    fleet.script = Script(live={("orin-0", digest("mixed-jetson-orin")): "NonFiniteOutput"})
    fleet.tick(3)
    assert fleet.serves("orin-0") == "fp32/Primary"
    assert fleet.quarantined() == {(digest("mixed-jetson-orin"), "jetson-orin")}


def test_a_paused_rollout_promotes_nothing_that_was_proven_meanwhile(fleet: Fleet) -> None:
    paused(fleet)
    fleet.tick(10)
    assert set(fleet.all_serve().values()) == {"fp32/Primary"}
    fleet.change(paused=False)
    fleet.until(lambda: fleet.status().phase == "Promoted")


def test_a_retry_clears_the_latch_of_a_tripped_node(fleet: Fleet) -> None:
    bad = digest("mixed-jetson-orin")
    fleet.promote("mixed")
    fleet.script = Script(live={("orin-0", bad): "NonFiniteOutput"})
    fleet.tick(3)
    assert fleet.serves("orin-0") == "mixed/Fallback"
    fleet.script = Script()
    fleet.tick(3)
    assert fleet.serves("orin-0") == "mixed/Fallback"
    fleet.ops(retry="r1")
    fleet.tick(3)
    assert fleet.serves("orin-0") == "mixed/Primary"
    assert (fleet.status().tripped, fleet.said("Ready")) == (0, ("True", "Promoted"))
    assert fleet.spec("orin-0").attempt.endswith("/r1")


def test_a_new_set_does_not_bring_a_tripped_engine_back_while_it_is_proven(fleet: Fleet) -> None:
    bad = digest("mixed-jetson-orin")
    fleet.promote("mixed")
    fleet.script = Script(live={("orin-0", bad): "NonFiniteOutput"})
    fleet.tick(3)
    fleet.set("next", precision="Mixed", net="net3")
    fleet.script = Script(shadow={("*", digest(f"next-{c}")): "no data" for c in ("a100", "jetson-orin")})
    fleet.change(engine_set="next")
    seen = set()
    for _ in range(10):
        fleet.tick()
        seen.add(fleet.serving_digest("orin-0"))
    assert seen == {digest("net2-fp32")}
    assert fleet.serves("orin-1") == "mixed/Primary"


def test_a_superseded_set_is_replaced_as_candidate_and_kept_where_it_serves_until_the_next_arrives(
    fleet: Fleet,
) -> None:
    gated(fleet)
    fleet.set("next", precision="Mixed", net="net3")
    fleet.change(engine_set="next", waves=[{"name": "a", "nodes": ("a100-0",), "gate": "Manual"}, *GATED[1:]])
    fleet.tick(2)
    assert (fleet.spec("a100-0").candidate or fleet.spec("a100-0").primary).set == "next"
    assert fleet.serves("orin-0") == "mixed/Primary"
    fleet.ops(promote="go")
    fleet.until(lambda: fleet.status().phase == "Promoted")
    assert set(fleet.all_serve().values()) == {"next/Primary"}


def test_the_progress_deadline_stalls_without_reverting_and_ends_when_progress_is_made(fleet: Fleet) -> None:
    stalled(fleet)
    assert fleet.serves("orin-0") == "mixed/Primary"
    fleet.ops(promote="go")
    fleet.until(lambda: fleet.status().phase == "Promoted")


def test_a_trip_of_one_node_stops_every_further_node(fleet: Fleet) -> None:
    gated(fleet)
    fleet.join("orin-9", "jetson-orin")
    fleet.change(
        correlation={"nodes": 2, "window": "10m"}, waves=[{"name": "first", "nodes": ("orin-0", "orin-9")}, *GATED[1:]]
    )
    waits = {("orin-9", digest("mixed-jetson-orin")): "no data"}
    fleet.script = Script(shadow=waits)
    fleet.tick(3)
    fleet.script = Script(shadow=waits, live={("orin-0", digest("mixed-jetson-orin")): "DEERExceeded"})
    fleet.tick(12)
    assert fleet.said("Progressing") == ("False", "HoldTripped")
    assert fleet.serves("a100-0") == "fp32/Primary"
    assert fleet.spec("a100-0").candidate is None
    assert fleet.quarantined() == set()


def test_lifting_a_quarantine_changes_nothing_until_a_retry(fleet: Fleet) -> None:
    rolled_back(fleet)
    fleet.script = Script()
    for q in fleet.store.objects("EngineQuarantine"):
        fleet.store.delete(ref_of(q))
    fleet.tick(5)
    assert set(fleet.all_serve().values()) == {"fp32/Primary"}
    fleet.ops(retry="r1")
    fleet.until(lambda: fleet.status().phase == "Promoted")


def test_a_retry_of_a_quarantined_set_is_refused_by_name(fleet: Fleet) -> None:
    rolled_back(fleet)
    fleet.ops(retry="r1")
    fleet.tick(3)
    assert fleet.said("Ready") == ("False", Reason.QUARANTINED)
    assert set(fleet.all_serve().values()) == {"fp32/Primary"}
    assert fleet.status().acted.retry is None


def test_an_expired_quarantine_is_deleted_and_said(fleet: Fleet) -> None:
    fleet.quarantine(digest("old"), "a100", expiry="2027-01-15T08:00:30Z")
    fleet.tick()
    assert fleet.refused_on("a100-0") == (digest("old"),)
    assert fleet.refused_on("orin-0") == ()
    assert fleet.quarantined() == {(digest("old"), "a100")}
    fleet.now = NOW + 31
    fleet.tick()
    assert fleet.quarantined() == set()
    assert fleet.refused_on("a100-0") == ()
    assert "QuarantineExpired" in [e.reason.value for e in fleet.store.events()]


@pytest.mark.parametrize("how", ["the spec points at a set that does not exist", "its set was deleted"])
def test_a_refused_spec_mutes_no_trip_of_what_is_running(fleet: Fleet, how: str) -> None:
    fleet.change(correlation={"nodes": 1, "window": "10m"})
    gated(fleet)
    if how.startswith("the spec"):
        fleet.change(engine_set="typo")
    else:
        fleet.lose("mixed")
    fleet.tick(2)
    assert fleet.said("Ready") == ("False", "UnknownEngineSet")
    assert fleet.serves("orin-0") == "mixed/Primary"
    fleet.script = Script(live={("orin-0", digest("mixed-jetson-orin")): "NonFiniteOutput"})
    fleet.tick(3)
    assert fleet.serves("orin-0") == "fp32/Primary"
    assert fleet.quarantined() == {(digest("mixed-jetson-orin"), "jetson-orin")}


def test_a_class_selected_later_falls_back_to_what_another_rollout_left_there(fleet: Fleet) -> None:
    fleet.store.delete(Ref(kind="EngineRollout", name="bokeh", namespace="default"))
    fleet.rollout("mixed", selector={"classes": ("a100",)})
    fleet.until(lambda: fleet.status().outcome == "Promoted")
    assert fleet.all_serve() == {"a100-0": "mixed/Primary", "orin-0": "fp32/Primary", "orin-1": "fp32/Primary"}
    fleet.change(selector={})
    fleet.tick(2)
    assert {k.set for k in fleet.status().known_good if k.device_class == "jetson-orin"} == {"fp32"}
    assert fleet.spec("orin-0").fallback.set == "fp32"


def test_a_first_set_that_was_never_promoted_is_not_known_good_for_the_next() -> None:
    fleet = Fleet()
    fleet.set("one", precision="Mixed", net="net1")
    fleet.rollout("one", waves=GATED)
    fleet.until(lambda: fleet.said("Progressing") == ("False", "WaitingForGate"))
    fleet.set("two", precision="Mixed", net="net2")
    fleet.change(engine_set="two")
    fleet.tick(3)
    assert fleet.status().known_good == ()


def test_every_condition_is_of_the_generation_it_was_observed_at(fleet: Fleet) -> None:
    fleet.promote("mixed")
    status = fleet.status()
    generation = fleet.store.get(Ref(kind="EngineRollout", name="bokeh", namespace="default")).meta.generation
    assert status.observed_generation == generation > 1
    assert {c.observed_generation for c in status.conditions} == {generation}
    assert {c.type for c in status.conditions} == {
        "Ready",
        "Progressing",
        "Promoted",
        "FallbackReady",
        "NodesReachable",
        "NodesHealthy",
        "SemanticChange",
        "AnalysisConclusive",
        "ReferencesFound",
        "Reconciling",
        "Stalled",
    }


def test_one_event_is_said_for_each_transition(fleet: Fleet) -> None:
    fleet.promote("mixed")
    fleet.tick(10)
    said = fleet.reasons()
    assert said.count("Promoted") == 2
    assert said.count("Accepted") == 2


def test_a_set_replaced_long_after_its_promotion_was_good_until_then_and_needs_no_canary(fleet: Fleet) -> None:
    fleet.promote("mixed")
    fleet.now += 86400
    fleet.set("next", precision="Mixed", net="net3")
    fleet.promote("next")
    fleet.script = Script(shadow={("*", digest(f"mixed-{c}")): "no data" for c in ("a100", "jetson-orin")})
    fleet.change(engine_set="mixed")
    fleet.until(lambda: fleet.status().outcome == "Promoted" and fleet.status().set == "mixed")
    assert set(fleet.all_serve().values()) == {"mixed/Primary"}


def test_a_candidate_of_a_superseded_set_is_taken_off_nodes_that_the_new_one_has_not_reached(fleet: Fleet) -> None:
    fleet.script = Script(shadow={("*", digest(f"mixed-{c}")): "no data" for c in ("a100", "jetson-orin")})
    fleet.change(engine_set="mixed")
    fleet.tick(3)
    assert {fleet.spec(n).candidate.set for n in NODES} == {"mixed"}
    fleet.set("next", precision="Mixed", net="net3")
    fleet.change(engine_set="next", waves=[{"name": "a", "nodes": ("a100-0",), "gate": "Manual"}, *GATED[1:]])
    fleet.tick()
    for name in ("orin-0", "orin-1"):
        told = fleet.spec(name)
        assert told.candidate is None
        assert (told.primary.set, told.oracle.set, told.golden.digest) == ("fp32", "fp32", digest("golden of net"))


def test_a_wave_that_serves_is_not_done_while_a_fallback_is_rotten(fleet: Fleet) -> None:
    gated(fleet)
    fleet.script = Script(rotten=frozenset({"orin-0"}))
    fleet.tick()
    fleet.ops(promote="go")
    fleet.tick(5)
    assert (fleet.status().wave, fleet.said("Progressing")) == ("first", ("False", "FallbackNotProven"))
    assert fleet.said("FallbackReady") == ("False", "FallbackNotProven")
    fleet.script = Script()
    fleet.until(lambda: fleet.status().phase == "Promoted")


def test_an_opened_gate_is_closed_again_for_the_next_set(fleet: Fleet) -> None:
    gated(fleet)
    fleet.change(waves=[GATED[0], {"name": "all", "nodes": NODES}], paused=True)
    fleet.ops(promote="go")
    fleet.tick(2)
    fleet.set("next", precision="Mixed", net="net3")
    fleet.change(engine_set="next", waves=GATED, paused=False)
    fleet.tick(15)
    assert (fleet.status().wave, fleet.said("Progressing")) == ("first", ("False", "WaitingForGate"))


def test_the_only_set_ever_promoted_is_given_up_to_its_own_fp32_which_stays_known_good() -> None:
    fleet = Fleet()
    fleet.set("only", precision="Mixed")
    fleet.promote("only")
    fleet.ops(abort="stop")
    fleet.tick(3)
    assert {fleet.serving_digest(n) for n in NODES} == {digest("net-fp32")}
    assert fleet.status().last_known_good == "only"
    fleet.set("next", precision="Mixed", net="net3")
    fleet.script = Script(live={("*", digest(f"next-{c}")): "DEERExceeded" for c in ("a100", "jetson-orin")})
    fleet.change(engine_set="next")
    fleet.until(lambda: fleet.status().phase == "RolledBack")
    assert {fleet.spec(n).primary.set for n in NODES} == {"only"}
    fleet.script = Script(shadow={("*", digest(f"only-{c}")): "no data" for c in ("a100", "jetson-orin")})
    fleet.change(engine_set="only")
    fleet.tick(10)
    assert fleet.status().outcome == ""
