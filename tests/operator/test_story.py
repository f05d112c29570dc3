"""Whole rollouts, from a person's change of one field to what every node serves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry
from simulated_fleet import Fleet, Script, digest, policy_spec, resource

from blurfleet.api.meta import condition
from blurfleet.api.nodeengine import NodeEngineSpec
from blurfleet.errors import AdmissionRefused
from blurfleet.reasons import Reason
from blurfleet.store.port import Ref, Store
from blurfleet_operator import controller
from blurfleet_operator.controller import settle
from blurfleet_operator.inventory import register
from blurfleet_operator.metrics import LoopMetrics
from blurfleet_operator.reconcile import Pass, reconcile
from blurfleet_operator.settings import ClassRule


@pytest.fixture
def fleet() -> Fleet:
    fleet = Fleet()
    fleet.set("fp32")
    fleet.promote("fp32")
    return fleet


def test_a_first_set_of_fp32_goes_live_on_every_node_and_is_known_good(fleet: Fleet) -> None:
    assert fleet.all_serve() == dict.fromkeys(("a100-0", "orin-0", "orin-1"), "fp32/Primary")
    status = fleet.status()
    assert (status.phase, status.nodes, status.last_known_good, status.fallback) == ("Promoted", "3/3", "fp32", "fp32")
    assert [fleet.said(k)[0] for k in ("Ready", "Promoted", "FallbackReady", "NodesReachable")] == ["True"] * 4


def test_naive_fp16_fails_golden_on_both_classes_and_is_never_served(fleet: Fleet) -> None:
    fleet.set("naive", precision="FP16")
    bad = {c: digest(f"naive-{c}") for c in ("a100", "jetson-orin")}
    fleet.script = Script(golden={("*", d): "oracle passes" for d in bad.values()})
    fleet.change(engine_set="naive")
    fleet.until(lambda: fleet.status().phase == "RolledBack")
    assert fleet.quarantined() == {(d, c) for c, d in bad.items()}
    assert fleet.all_serve() == dict.fromkeys(("a100-0", "orin-0", "orin-1"), "fp32/Primary")
    assert fleet.status().last_known_good == "fp32"
    assert fleet.said("Ready") == ("False", "Quarantined")
    runs = {(r.spec.node, r.spec.stage, r.spec.verdict) for r in fleet.store.objects("QualityRun")}
    assert {("a100-0", "Golden", "Fail"), ("orin-0", "Golden", "Fail"), ("orin-1", "Golden", "Fail")} <= runs
    fleet.change(engine_set="fp32")
    with pytest.raises(AdmissionRefused) as caught:
        fleet.change(engine_set="naive")
    assert caught.value.reason is Reason.QUARANTINED
    assert bad["a100"] in caught.value.message


def test_a_mixed_set_is_promoted_wave_by_wave_and_then_stands_by_with_its_own_fp32(fleet: Fleet) -> None:
    fleet.set("mixed", precision="Mixed", net="net2")
    waves = [{"name": "first", "nodes": ("orin-0",)}, {"name": "half", "percent": 50}, {"name": "all", "percent": 100}]
    fleet.change(engine_set="mixed", waves=waves)
    order: list[str] = []
    for _ in range(30):
        order += [n for n, s in fleet.all_serve().items() if s == "mixed/Primary" and n not in order]
        if len(order) < 3 and (spec := fleet.spec("orin-0")) is not None and spec.candidate is not None:
            assert spec.fallback is not None
            assert spec.fallback.set == "fp32"
        fleet.tick()
    assert order == ["orin-0", "a100-0", "orin-1"]
    assert fleet.status().phase == "Promoted"
    assert {fleet.spec(n).fallback.set for n in ("a100-0", "orin-0", "orin-1")} == {"mixed"}
    assert fleet.status().last_known_good == "mixed"


def test_a_set_that_breaks_only_on_live_frames_is_taken_off_its_class_at_the_second_node(fleet: Fleet) -> None:
    fleet.set("mixed", precision="Mixed")
    fleet.promote("mixed")
    untouched = fleet.spec("a100-0")
    fleet.set("live-only", precision="Mixed", net="stem", classes=("jetson-orin",))
    bad = digest("live-only-jetson-orin")
    fleet.change(engine_set="live-only", selector={"classes": ("jetson-orin",)}, waves=[{"name": "o", "percent": 100}])
    fleet.until(lambda: fleet.serves("orin-0") == fleet.serves("orin-1") == "live-only/Primary")
    fleet.script = Script(live={("orin-0", bad): "CollapsedOutput"})
    fleet.until(lambda: fleet.serves("orin-0") == "mixed/Fallback" or fleet.serves("orin-0") == "live-only/Fallback")
    fleet.tick(3)
    assert fleet.status().tripped == 1
    assert fleet.quarantined() == set()
    assert fleet.serves("orin-1") == "live-only/Primary"
    fleet.script = Script(live={("*", bad): "CollapsedOutput"})
    fleet.until(lambda: fleet.status().phase == "RolledBack")
    assert fleet.quarantined() == {(bad, "jetson-orin")}
    assert fleet.all_serve() == dict.fromkeys(("a100-0", "orin-0", "orin-1"), "mixed/Primary")
    assert fleet.spec("a100-0") == untouched
    assert fleet.status().reverted_classes == ("jetson-orin",)
    assert fleet.reasons().count("ClassReverted") == 1


def test_int8_let_past_golden_by_a_warning_trips_deer_live_and_goes_back_to_the_old_policy(fleet: Fleet) -> None:
    fleet.store.apply(resource("QualityPolicy", "lenient", policy_spec(shadow_samples=0)))
    fleet.set("int8", precision="INT8")
    fleet.script = Script(live={("*", digest(f"int8-{c}")): "DEERExceeded" for c in ("a100", "jetson-orin")})
    fleet.change(engine_set="int8", policy_ref="lenient")
    fleet.until(lambda: fleet.status().phase == "RolledBack")
    fleet.tick()
    assert set(fleet.all_serve().values()) == {"fp32/Primary"}
    assert {fleet.spec(n).policy_name for n in ("a100-0", "orin-0")} == {"strict"}
    reasons = {q.spec.reason for q in fleet.store.objects("EngineQuarantine")}
    assert reasons == {"DEERExceeded"}
    live = {(r.spec.node, r.spec.reason) for r in fleet.store.objects("QualityRun") if r.spec.stage == "Live"}
    assert ("a100-0", "DEERExceeded") in live


def test_after_good_a_and_bad_b_a_failing_c_goes_back_to_a_never_to_b(fleet: Fleet) -> None:
    for name, net in (("b", "net-b"), ("c", "net-c")):
        fleet.set(name, precision="FP16", net=net)
        fleet.script = Script(live={("*", digest(f"{name}-{c}")): "DEERExceeded" for c in ("a100", "jetson-orin")})
        fleet.change(engine_set=name)
        fleet.until(lambda: fleet.status().phase == "RolledBack")
        assert fleet.all_serve() == dict.fromkeys(("a100-0", "orin-0", "orin-1"), "fp32/Primary")


def test_a_promoted_set_that_trips_days_later_goes_back_to_the_one_promoted_before_it(fleet: Fleet) -> None:
    fleet.set("mixed", precision="Mixed")
    fleet.promote("mixed")
    fleet.now += 3 * 86400
    fleet.script = Script(live={("orin-0", digest("mixed-jetson-orin")): "MaxAbsErrorExceeded"})
    fleet.tick(4)
    assert (fleet.status().phase, fleet.status().tripped, fleet.said("Ready")) == (
        "Promoted",
        1,
        ("False", "HoldTripped"),
    )
    fleet.script = Script(live={("*", digest("mixed-jetson-orin")): "MaxAbsErrorExceeded"})
    fleet.until(lambda: fleet.status().phase == "RolledBack")
    fleet.tick()
    assert fleet.all_serve() == {"a100-0": "mixed/Primary", "orin-0": "fp32/Primary", "orin-1": "fp32/Primary"}


def test_undo_by_pointing_at_the_set_before_skips_the_canary_within_the_rollback_window(fleet: Fleet) -> None:
    fleet.set("mixed", precision="Mixed", net="net2")
    fleet.promote("mixed", waves=[{"name": "one", "percent": 1}, {"name": "all", "percent": 100}])
    fleet.script = Script(shadow={("*", digest("net-fp32")): "no data"})
    fleet.change(engine_set="fp32")
    fleet.until(lambda: fleet.status().phase == "Promoted" and fleet.status().set == "fp32")
    assert set(fleet.all_serve().values()) == {"fp32/Primary"}


def test_undo_after_the_rollback_window_is_proven_again(fleet: Fleet) -> None:
    fleet.set("mixed", precision="Mixed", net="net2")
    fleet.promote("mixed")
    fleet.now += 7200
    fleet.script = Script(shadow={("*", digest("net-fp32")): "no data"})
    fleet.change(engine_set="fp32")
    fleet.tick(8)
    assert set(fleet.all_serve().values()) == {"mixed/Primary"}
    assert (fleet.status().phase, fleet.said("AnalysisConclusive")) == ("Holding", ("False", "HoldNoData"))


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(Script(shadow={("*", digest("mixed-a100")): "no data"}), id="no live sample came"),
        pytest.param(Script(shadow={("*", digest("mixed-a100")): "few"}), id="too few samples are valid"),
        pytest.param(Script(golden={("*", digest("mixed-a100")): "no oracle"}), id="the oracle did not run"),
        pytest.param(Script(golden={("*", digest("mixed-a100")): "failed load"}), id="the candidate does not load"),
        pytest.param(Script(rotten=frozenset({"a100-0"})), id="the fallback is rotten"),
    ],
)
def test_doubt_holds_and_neither_promotes_nor_reverts(fleet: Fleet, script: Script) -> None:
    fleet.set("mixed", precision="Mixed")
    fleet.script = script
    fleet.change(engine_set="mixed")
    fleet.tick(20)
    assert fleet.serves("a100-0") == "fp32/Primary"
    assert fleet.status().phase == "Holding"
    assert fleet.status().reverted_classes == ()
    assert fleet.quarantined() == set()
    fleet.script = Script()
    fleet.ops(retry="again")
    fleet.until(lambda: fleet.status().phase == "Promoted")


BROKEN = Script(golden={("orin-0", digest("mixed-jetson-orin")): "oracle fails"}, rotten=frozenset({"orin-0"}))


def went_out(fleet: Fleet) -> bool:
    return (fleet.status().set, fleet.status().outcome) == ("mixed", "Promoted")


def test_a_suspect_node_is_drained_named_and_the_others_go_on_without_it(fleet: Fleet) -> None:
    fleet.set("mixed", precision="Mixed")
    fleet.script = BROKEN
    waves = [{"name": "canary", "percent": 50}, {"name": "all", "percent": 100}]
    fleet.change(engine_set="mixed", waves=waves)
    fleet.until(lambda: went_out(fleet))
    assert fleet.all_serve() == {"a100-0": "mixed/Primary", "orin-0": "fp32/Primary", "orin-1": "mixed/Primary"}
    assert (fleet.status().drained, fleet.status().nodes) == (("orin-0",), "2/2")
    assert fleet.said("NodesHealthy") == ("False", "NodeSuspect")
    assert fleet.quarantined() == set()
    assert fleet.status().reverted_classes == ()
    assert fleet.reasons().count("NodeSuspect") == 1
    assert sends_clients_away(fleet) == {"orin-0"}


def sends_clients_away(fleet: Fleet) -> set[str]:
    told = {n: fleet.spec(n) for n in ("a100-0", "orin-0", "orin-1")}
    return {name for name, entry in told.items() if entry is not None and entry.drained}


def test_a_drained_node_gets_its_clients_back_once_its_standby_passes_and_no_sooner(fleet: Fleet) -> None:
    fleet.set("mixed", precision="Mixed")
    fleet.script = BROKEN
    fleet.change(engine_set="mixed")
    fleet.until(lambda: sends_clients_away(fleet) == {"orin-0"})
    fleet.ops(abort="stop")
    fleet.tick(10)
    assert fleet.status().outcome == "Aborted"
    assert sends_clients_away(fleet) == {"orin-0"}
    assert fleet.said("NodesHealthy") == ("False", "NodeSuspect")
    fleet.script = Script()
    fleet.until(lambda: sends_clients_away(fleet) == set())
    assert fleet.said("NodesHealthy") == ("True", "Serving")


@pytest.mark.parametrize(
    ("then", "words"),
    [
        pytest.param({}, "drained: orin-0; every FP32", id="while it is suspect"),
        pytest.param({"paused": True}, "drained: orin-0; every FP32", id="paused"),
        pytest.param({"ops": {"abort": "stop"}}, "still drained: orin-0; no standby", id="aborted"),
        pytest.param({"engine_set": "fp32"}, "still drained: orin-0; no standby", id="back to the set of before"),
    ],
)
def test_no_node_is_called_healthy_whose_clients_are_sent_away(
    fleet: Fleet, then: dict[str, object], words: str
) -> None:
    fleet.set("mixed", precision="Mixed")
    fleet.script = BROKEN
    fleet.change(engine_set="mixed")
    fleet.until(lambda: sends_clients_away(fleet) == {"orin-0"})
    fleet.change(**then)
    for _ in range(12):
        fleet.tick()
        assert sends_clients_away(fleet) == {"orin-0"}
        assert fleet.said("NodesHealthy") == ("False", "NodeSuspect")
    found = condition(fleet.status().conditions, "NodesHealthy")
    assert found is not None
    assert found.message.startswith(words)


def test_a_suspect_node_keeps_its_clients_where_no_other_of_its_class_answers(fleet: Fleet) -> None:
    fleet.set("mixed", precision="Mixed")
    bad = ("a100-0", digest("mixed-a100"))
    fleet.script = Script(golden={bad: "oracle fails"}, rotten=frozenset({"a100-0"}))
    fleet.change(engine_set="mixed")
    fleet.tick(20)
    assert fleet.status().drained == ("a100-0",)
    assert sends_clients_away(fleet) == set()


def test_a_class_of_which_every_node_is_suspect_holds_the_rollout(fleet: Fleet) -> None:
    fleet.set("mixed", precision="Mixed")
    bad = {(n, digest("mixed-jetson-orin")): "oracle fails" for n in ("orin-0", "orin-1")}
    fleet.script = Script(golden=bad, rotten=frozenset({"orin-0", "orin-1"}))
    fleet.change(engine_set="mixed")
    fleet.tick(20)
    assert fleet.said("Progressing") == ("False", "HoldNodeSuspect")
    assert fleet.status().drained == ("orin-0", "orin-1")
    assert fleet.status().outcome == ""
    assert fleet.quarantined() == set()
    assert fleet.serves("orin-0") == fleet.serves("orin-1") == "fp32/Primary"
    assert sends_clients_away(fleet) == set()


def test_a_named_canary_that_is_suspect_holds_rather_than_let_the_next_wave_begin_unseen(fleet: Fleet) -> None:
    fleet.set("mixed", precision="Mixed")
    fleet.script = BROKEN
    waves = [{"name": "canary", "nodes": ["orin-0"]}, {"name": "all", "percent": 100}]
    fleet.change(engine_set="mixed", waves=waves)
    fleet.tick(20)
    assert fleet.said("Progressing") == ("False", "HoldNodeSuspect")
    assert fleet.serves("orin-1") == "fp32/Primary"


def test_a_drained_node_that_passes_in_a_new_attempt_takes_part_again(fleet: Fleet) -> None:
    fleet.set("mixed", precision="Mixed")
    fleet.script = BROKEN
    fleet.change(engine_set="mixed")
    fleet.until(lambda: went_out(fleet))
    fleet.script = Script()
    fleet.ops(retry="mended")
    fleet.until(lambda: fleet.serves("orin-0") == "mixed/Primary")
    fleet.until(lambda: went_out(fleet))
    assert (fleet.status().drained, fleet.status().nodes) == ((), "3/3")
    assert fleet.said("NodesHealthy") == ("True", "Serving")


def test_a_drained_node_does_not_count_among_those_that_run_the_engine(fleet: Fleet) -> None:
    fleet.set("mixed", precision="Mixed")
    fleet.script = BROKEN
    fleet.change(engine_set="mixed")
    fleet.until(lambda: went_out(fleet))
    fleet.script = replace(BROKEN, live={("orin-1", digest("mixed-jetson-orin")): "DEERExceeded"})
    fleet.until(lambda: fleet.serves("orin-1") == "fp32/Primary")
    assert fleet.status().reverted_classes == ("jetson-orin",)


def relabelled(fleet: Fleet) -> NodeEngineSpec:
    """What the operator writes once a Node's labels say another class."""
    old = fleet.store.get(Ref(kind="NodeEngine", name="orin-1"))
    node = {"metadata": {"name": "orin-1", "uid": "u", "labels": {"nvidia.com/gpu.product": "NVIDIA-A100"}}}
    rule = ClassRule(device_class="a100", labels={"nvidia.com/gpu.product": "*A100*"})
    (moved,) = register([node], [old], (rule,))
    assert moved.resource.spec == NodeEngineSpec(device_class="a100")
    return moved.resource.spec


def edited(fleet: Fleet) -> NodeEngineSpec:
    """What a person writes who changes the class in a file and nothing else."""
    old = fleet.store.get(Ref(kind="NodeEngine", name="orin-1"))
    return old.spec.model_copy(update={"device_class": "a100"})


@pytest.mark.parametrize("moved", [relabelled, edited], ids=["by its labels", "by a person's edit"])
def test_a_node_moved_to_another_class_serves_only_what_it_proved_of_that_class(
    fleet: Fleet, moved: Callable[[Fleet], NodeEngineSpec]
) -> None:
    fleet.set("mixed", precision="Mixed")
    fleet.promote("mixed")
    old = fleet.store.get(Ref(kind="NodeEngine", name="orin-1"))
    fleet.store.apply(replace(old, spec=moved(fleet)))
    seen: list[tuple[str, str]] = []

    def back() -> bool:
        told = fleet.spec("orin-1")
        if told is not None:
            engines = (told.primary.variant if told.primary else "", told.candidate.variant if told.candidate else "")
            if engines not in seen:
                seen.append(engines)
        return fleet.serving_digest("orin-1") == digest("mixed-a100")

    fleet.tick()
    fleet.until(back)
    fp32, mixed = "net-fp32-a100-fp32", "mixed-a100-a100-mixed"
    assert seen[0] == ("", fp32)
    assert seen[-1] == (mixed, "")
    assert {engine for pair in seen for engine in pair} == {"", fp32, mixed}


def test_a_retrained_set_that_means_something_else_is_said_once_and_holds_nothing(fleet: Fleet) -> None:
    fleet.set("mixed", precision="Mixed", net="retrained")
    fleet.script = Script(changed=frozenset({"mixed"}), shadow={("*", digest("mixed-a100")): "no data"})
    fleet.change(engine_set="mixed")
    fleet.tick(5)
    assert fleet.said("SemanticChange") == ("True", "SemanticChange")
    assert fleet.said("Progressing")[1] == "HoldNoData"
    fleet.tick(5)
    assert fleet.reasons().count("SemanticChange") == 1
    fleet.script = Script(changed=frozenset({"mixed"}))
    fleet.until(lambda: went_out(fleet))
    assert fleet.quarantined() == set()


def test_bad_weights_go_back_to_known_good_without_blaming_a_precision(fleet: Fleet) -> None:
    fleet.set("export", precision="Mixed", net="bad-net")
    fleet.script = Script(golden={("*", digest(f"export-{c}")): "oracle fails" for c in ("a100", "jetson-orin")})
    fleet.change(engine_set="export")
    fleet.until(lambda: fleet.status().phase == "RolledBack")
    assert fleet.status().reverted_classes == ("a100", "jetson-orin")
    assert fleet.quarantined() == set()
    assert set(fleet.all_serve().values()) == {"fp32/Primary"}


def test_a_silent_node_is_unknown_and_never_promoted_for(fleet: Fleet) -> None:
    fleet.set("mixed", precision="Mixed")
    fleet.script = Script(silent=frozenset({"orin-1"}))
    fleet.now += 120
    fleet.change(engine_set="mixed")
    fleet.tick(10)
    assert (fleet.said("NodesReachable"), fleet.said("Progressing")) == (
        ("Unknown", "PartialFleet"),
        ("False", "PartialFleet"),
    )
    assert fleet.status().nodes == "2/3"
    assert fleet.status().outcome == ""
    fleet.script = Script()
    fleet.until(lambda: fleet.status().phase == "Promoted")


def test_a_first_set_of_reduced_precision_starts_from_its_own_fp32() -> None:
    fleet = Fleet()
    fleet.set("mixed", precision="Mixed")
    fleet.rollout("mixed")
    seen: list[str] = []
    for _ in range(12):
        fleet.tick()
        serving = next(iter(fleet.store.objects("NodeEngine"))).status.models
        if serving and serving[0].serving is not None and serving[0].serving.precision not in seen:
            seen.append(serving[0].serving.precision)
    assert seen == ["FP32", "Mixed"]
    assert fleet.status().phase == "Promoted"


def test_a_node_that_joins_after_promotion_proves_the_set_for_itself(fleet: Fleet) -> None:
    fleet.set("mixed", precision="Mixed")
    fleet.promote("mixed")
    fleet.join("orin-2", "jetson-orin")
    fleet.tick()
    assert (fleet.status().phase, fleet.said("Ready")[0]) == ("Promoted", "False")
    fleet.until(lambda: fleet.serves("orin-2") == "mixed/Primary")
    fleet.tick()
    assert fleet.said("Ready") == ("True", "Promoted")


def test_a_promoted_fleet_at_rest_is_not_written_to(fleet: Fleet) -> None:
    fleet.set("mixed", precision="Mixed")
    fleet.promote("mixed")
    settle(fleet.store, clock=lambda: fleet.now)
    before = fleet.store.writes
    assert settle(fleet.store, clock=lambda: fleet.now) == 1
    assert settle(fleet.store, clock=lambda: fleet.now + 30) == 1
    assert fleet.store.writes == before


WAVES = [{"name": "first", "nodes": ("orin-0",)}, {"name": "all", "percent": 100}]


@pytest.mark.parametrize(
    ("doubt", "phase", "reason"),
    [
        pytest.param("NoData", "Holding", "NoData", id="no frame came: it holds"),
        pytest.param("StreamStopped", "Holding", "StreamStopped", id="frames stopped: it holds"),
        pytest.param("InsufficientSamples", "Progressing", "WaveInProgress", id="the first frames are on their way"),
    ],
)
def test_no_wave_is_done_and_nothing_is_promoted_while_what_serves_is_not_judged(
    fleet: Fleet, doubt: str, phase: str, reason: str
) -> None:
    fleet.set("mixed", precision="Mixed", net="net2")
    fleet.script = Script(unjudged={("*", digest("mixed-jetson-orin")): doubt})
    fleet.change(engine_set="mixed", waves=WAVES)
    fleet.tick(12)
    assert fleet.all_serve() == {"a100-0": "fp32/Primary", "orin-0": "mixed/Primary", "orin-1": "fp32/Primary"}
    assert (fleet.status().phase, fleet.said("Progressing")[1]) == (phase, reason)
    assert fleet.said("AnalysisConclusive") == ("False", doubt)
    fleet.script = Script()
    fleet.until(lambda: fleet.status().phase == "Promoted" and fleet.status().set == "mixed")
    assert set(fleet.all_serve().values()) == {"mixed/Primary"}


def test_a_promoted_set_stays_ready_when_cameras_are_off_and_says_that_nothing_is_judged(fleet: Fleet) -> None:
    fleet.set("mixed", precision="Mixed", net="net2")
    fleet.promote("mixed")
    fleet.script = Script(unjudged={("orin-0", digest("mixed-jetson-orin")): "StreamStopped"})
    fleet.tick(3)
    assert fleet.status().phase == "Promoted"
    assert fleet.said("Ready")[0] == "True"
    assert fleet.said("AnalysisConclusive") == ("False", "StreamStopped")


def test_each_class_that_goes_back_is_counted_once(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = CollectorRegistry()
    metrics = LoopMetrics(registry)

    def counted(store: Store, now: float) -> Pass:
        done = reconcile(store, now)
        for gone in done.reverted:
            metrics.reverted(gone.device_class, gone.model, gone.reason)
        return done

    monkeypatch.setattr(controller, "reconcile", counted)
    fleet.set("naive", precision="FP16")
    bad = [digest(f"naive-{c}") for c in ("a100", "jetson-orin")]
    fleet.script = Script(golden={("*", d): "oracle passes" for d in bad})
    fleet.change(engine_set="naive")
    fleet.until(lambda: fleet.status().phase == "RolledBack")
    fleet.tick(5)
    for device_class in ("a100", "jetson-orin"):
        labels = {"device_type": device_class, "node": "", "model": "bokeh", "scope": "class", "reason": "GoldenFailed"}
        assert registry.get_sample_value("blurfleet_rollbacks_total", labels) == 1.0
