"""Where nodes go when a set is given up, while sets are pruned, replaced under their name, or were never good."""

from __future__ import annotations

import pytest
from simulated_fleet import Fleet, Script, digest, resource, set_spec

from blurfleet.api.meta import condition
from blurfleet.errors import AdmissionRefused
from blurfleet.store.port import Ref

NODES = ("a100-0", "orin-0", "orin-1")
CLASSES = ("a100", "jetson-orin")
GATED = [{"name": "one", "nodes": ("orin-0",), "gate": "Manual"}, {"name": "all", "percent": 100}]


def told(fleet: Fleet) -> dict[str, str]:
    """The primary and the fallback each node is told, as set/precision."""
    found = {}
    for name in NODES:
        entry = fleet.spec(name)
        found[name] = " ".join(f"{e.set}/{e.precision}" for e in (entry.primary, entry.fallback) if e)
    return found


def message(fleet: Fleet) -> str:
    found = condition(fleet.status().conditions, "Progressing")
    return found.message if found else ""


@pytest.fixture
def old() -> Fleet:
    """A fleet that serves the mixed engines of `old`; `new` is there."""
    fleet = Fleet()
    fleet.set("old", precision="Mixed", net="net1")
    fleet.promote("old")
    fleet.set("new", precision="Mixed", net="net2")
    return fleet


@pytest.mark.parametrize("pruned", [False, True])
def test_bad_weights_leave_every_node_on_the_set_that_was_good_be_its_object_pruned_or_not(
    old: Fleet, pruned: bool
) -> None:
    old.script = Script(golden={("*", digest(f"new-{c}")): "oracle fails" for c in CLASSES})
    old.change(engine_set="new")
    if pruned:
        old.lose("old")
    old.until(lambda: old.status().phase == "RolledBack")
    assert told(old) == dict.fromkeys(NODES, "old/Mixed old/FP32")
    assert set(old.all_serve().values()) == {"old/Primary"}
    assert message(old) == "a100, jetson-orin went back to old/Mixed"


def test_an_abort_of_an_untouched_canary_moves_nobody_though_the_good_set_was_pruned(old: Fleet) -> None:
    old.script = Script(shadow={("*", digest(f"new-{c}")): "no data" for c in CLASSES})
    old.change(engine_set="new")
    old.lose("old")
    old.tick(5)
    before = {name: old.store.get(Ref(kind="NodeEngine", name=name)).status.models for name in NODES}
    old.ops(abort="a")
    old.until(lambda: old.status().phase == "Aborted")
    assert told(old) == dict.fromkeys(NODES, "old/Mixed old/FP32")
    epochs = {name: old.store.get(Ref(kind="NodeEngine", name=name)).status.models[0].serving.epoch for name in NODES}
    assert epochs == {name: models[0].serving.epoch for name, models in before.items()}
    assert message(old) == "aborted; nodes go back to old/Mixed"


def test_a_node_that_took_the_new_set_goes_to_the_fp32_it_holds_of_the_pruned_one_and_that_is_said(old: Fleet) -> None:
    old.change(engine_set="new", waves=GATED)
    old.until(lambda: old.said("Progressing") == ("False", "WaitingForGate"))
    old.lose("old")
    old.ops(abort="a")
    old.until(lambda: old.status().phase == "Aborted")
    assert told(old) == {
        "a100-0": "old/Mixed old/FP32",
        "orin-0": "old/FP32 old/FP32",
        "orin-1": "old/Mixed old/FP32",
    }
    assert message(old) == "aborted; nodes go back to old/FP32, old/Mixed"


def test_the_fp32_held_of_the_newest_good_set_goes_before_an_older_set_that_is_still_there(old: Fleet) -> None:
    old.promote("new")
    old.set("newer", precision="Mixed", net="net3")
    old.change(engine_set="newer", waves=GATED)
    old.until(lambda: old.said("Progressing") == ("False", "WaitingForGate"))
    old.lose("new")
    old.ops(abort="a")
    old.until(lambda: old.status().phase == "Aborted")
    assert told(old) == {
        "a100-0": "new/Mixed new/FP32",
        "orin-0": "new/FP32 new/FP32",
        "orin-1": "new/Mixed new/FP32",
    }


def test_a_pruned_set_promoted_before_a_promoted_one_leaves_the_own_fp32_and_that_is_said(old: Fleet) -> None:
    old.promote("new")
    old.lose("old")
    old.ops(abort="a")
    old.until(lambda: old.status().phase == "Aborted")
    assert told(old) == dict.fromkeys(NODES, "new/FP32 new/FP32")
    assert message(old) == "aborted; nodes go back to new/FP32"


def test_a_primary_nobody_promoted_here_stays_where_nothing_was_ever_known_good() -> None:
    fleet = Fleet()
    fleet.set("one", precision="Mixed", net="net1")
    fleet.set("two", precision="Mixed", net="net2")
    fleet.rollout("one", waves=GATED)
    fleet.until(lambda: fleet.said("Progressing") == ("False", "WaitingForGate"))
    fleet.change(engine_set="two")
    fleet.tick()
    fleet.lose("one")
    fleet.ops(abort="a")
    fleet.until(lambda: fleet.status().phase == "Aborted")
    assert fleet.spec("orin-0").primary.digest == digest("one-jetson-orin")


def test_a_set_made_anew_with_other_bytes_is_another_attempt_that_begins_at_the_first_wave(old: Fleet) -> None:
    first = old.status().attempt
    old.lose("old")
    old.store.apply(resource("EngineSet", "old", set_spec("evil", precision="Mixed", net="net3")))
    old.change(waves=GATED)
    old.tick(10)
    status = old.status()
    assert (status.outcome, status.wave, status.attempt == first) == ("", "one", False)
    assert old.said("Progressing") == ("False", "WaitingForGate")
    serving = {name: old.serving_digest(name) for name in NODES}
    assert serving == {
        "a100-0": digest("old-a100"),
        "orin-0": digest("evil-jetson-orin"),
        "orin-1": digest("old-jetson-orin"),
    }


def test_replaced_bytes_that_fail_leave_every_node_on_those_that_were_promoted(old: Fleet) -> None:
    good = {name: old.serving_digest(name) for name in NODES}
    first = old.status().attempt
    old.script = Script(golden={("*", digest(f"evil-{c}")): "oracle passes" for c in CLASSES})
    old.lose("old")
    old.store.apply(resource("EngineSet", "old", set_spec("evil", precision="Mixed", net="net3")))
    old.until(lambda: old.status().phase == "RolledBack")
    assert old.status().attempt != first
    assert {name: old.serving_digest(name) for name in NODES} == good
    assert {old.spec(name).fallback.digest for name in NODES} == {digest("net1-fp32")}
    assert old.quarantined() == {(digest(f"evil-{c}"), c) for c in CLASSES}


def test_going_back_to_a_name_means_the_bytes_that_were_promoted_under_it(old: Fleet) -> None:
    old.change(engine_set="new", waves=GATED)
    old.until(lambda: old.said("Progressing") == ("False", "WaitingForGate"))
    old.lose("old")
    old.store.apply(resource("EngineSet", "old", set_spec("evil", precision="Mixed", net="net3")))
    old.ops(abort="a")
    old.until(lambda: old.status().phase == "Aborted")
    serving = {name: old.serving_digest(name) for name in NODES}
    assert serving == {
        "a100-0": digest("old-a100"),
        "orin-0": digest("net1-fp32"),
        "orin-1": digest("old-jetson-orin"),
    }


def test_the_same_bytes_under_the_same_name_are_the_same_attempt(old: Fleet) -> None:
    first = old.status()
    old.lose("old")
    old.tick(2)
    assert old.said("Ready") == ("False", "UnknownEngineSet")
    old.set("old", precision="Mixed", net="net1")
    old.tick(2)
    assert (old.status().attempt, old.status().outcome) == (first.attempt, "Promoted")
    assert old.said("Ready") == ("True", "Promoted")


def test_replaced_bytes_are_not_taken_for_those_proven_within_the_rollback_window(old: Fleet) -> None:
    old.promote("new")
    old.lose("old")
    old.store.apply(resource("EngineSet", "old", set_spec("evil", precision="Mixed", net="net3")))
    old.change(engine_set="old", waves=GATED)
    old.tick()
    assert old.spec("orin-0").primary.set == "new"
    assert old.spec("orin-0").candidate.digest == digest("evil-jetson-orin")
    assert (old.spec("a100-0").primary.set, old.spec("a100-0").candidate) == ("new", None)


def test_a_status_of_before_digests_were_kept_is_pinned_to_the_sets_that_are_there(old: Fleet) -> None:
    ref = Ref(kind="EngineRollout", name="bokeh", namespace="default")
    status = old.status()
    bare = tuple(k.model_copy(update={"set_digest": "", "engines": ()}) for k in status.known_good)
    old.store.write_status(ref, status.model_copy(update={"set_digest": "", "known_good": bare}))
    old.tick()
    assert old.status().known_good == status.known_good
    assert (old.status().set_digest, old.status().attempt) == (status.set_digest, status.attempt)
    assert {k.device_class: k.engines for k in status.known_good} == {
        c: tuple(sorted((digest(f"old-{c}"), digest("net1-fp32")))) for c in CLASSES
    }


def test_what_a_rollout_serves_or_would_go_back_to_is_kept_from_deletion(old: Fleet) -> None:
    ref = Ref(kind="EngineSet", name="old", namespace="default")
    assert old.status().keeps == ("old",)
    with pytest.raises(AdmissionRefused):
        old.store.delete(ref)
    old.change(engine_set="new", waves=GATED)
    old.until(lambda: old.said("Progressing") == ("False", "WaitingForGate"))
    assert old.status().keeps == ("new", "old")
    old.ops(promote="p")
    old.until(lambda: old.status().outcome == "Promoted")
    assert old.status().keeps == ("new", "old")
    with pytest.raises(AdmissionRefused):
        old.store.delete(ref)
    old.tick(2, seconds=1800.0)
    assert old.status().keeps == ("new", "old")
    old.tick(seconds=10.0)
    assert old.status().keeps == ("new",)
    assert old.store.delete(ref)


def test_a_set_that_was_given_up_may_be_deleted_the_one_that_serves_may_not(old: Fleet) -> None:
    old.script = Script(golden={("*", digest(f"new-{c}")): "oracle passes" for c in CLASSES})
    old.change(engine_set="new")
    old.until(lambda: old.status().phase == "RolledBack")
    assert old.status().keeps == ("old",)


def test_a_first_set_that_was_given_up_is_kept_where_its_fp32_is_all_there_is() -> None:
    fleet = Fleet()
    fleet.set("one", precision="Mixed", net="net1")
    fleet.rollout("one", waves=GATED)
    fleet.until(lambda: fleet.said("Progressing") == ("False", "WaitingForGate"))
    fleet.ops(abort="a")
    fleet.until(lambda: fleet.status().phase == "Aborted")
    assert fleet.status().keeps == ("one",)
    assert fleet.spec("orin-0").primary.precision == "FP32"
