"""The loop: what every pass keeps, how soon it acts, and what it does with objects that are wrong."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from simulated_fleet import (
    FACTS,
    MODEL,
    NOW,
    Fleet,
    Script,
    agent,
    digest,
    policy_spec,
    resource,
    rollout_spec,
    set_spec,
)

from blurfleet.api.contract import ContractSpec
from blurfleet.api.meta import is_true, timestamp
from blurfleet.api.nodeengine import NodeEngineSpec, NodeEngineStatus
from blurfleet.contract import contract_hash
from blurfleet.errors import AdmissionRefused
from blurfleet.reasons import Reason
from blurfleet.store.folder import FolderStore
from blurfleet.store.memory import MemoryStore
from blurfleet.store.port import Ref
from blurfleet_operator import controller
from blurfleet_operator.reconcile import reconcile

ROLLOUT = Ref(kind="EngineRollout", name="bokeh", namespace="default")
OUTCOMES = st.sampled_from(["oracle passes", "oracle fails", "no oracle", "failed load", ""])
SHADOWS = st.sampled_from(["no data", "few", "DEERExceeded", ""])
SETS = ("fp32", "one", "two")
NODES = ("a100-0", "orin-0", "orin-1")


@st.composite
def scripts(draw: st.DrawFn) -> Script:
    engines = [digest(f"{s}-{c}") for s in ("one", "two") for c in ("a100", "jetson-orin")]
    golden = {(n, e): draw(OUTCOMES) for n in NODES for e in engines if draw(st.booleans())}
    shadow = {(n, e): draw(SHADOWS) for n in NODES for e in engines if draw(st.booleans())}
    live = {(n, e): "DEERExceeded" for n in NODES for e in engines if draw(st.integers(0, 3)) == 0}
    silent = frozenset(n for n in NODES if draw(st.integers(0, 5)) == 0)
    return Script(
        golden={k: v for k, v in golden.items() if v},
        shadow={k: v for k, v in shadow.items() if v},
        live=live,
        silent=silent,
    )


@st.composite
def acts(draw: st.DrawFn) -> list[tuple[str, str]]:
    kinds = st.sampled_from(
        [*(("set", s) for s in SETS), ("abort", ""), ("retry", ""), ("promote", ""), ("pause", ""), ("wait", "")]
    )
    return draw(st.lists(kinds, min_size=1, max_size=8))


def _act(fleet: Fleet, what: str, value: str) -> None:
    if what == "set":
        with contextlib.suppress(AdmissionRefused):
            fleet.change(engine_set=value)
    elif what in ("abort", "retry", "promote"):
        fleet.ops(**{what: value})
    elif what == "pause":
        fleet.change(paused=not fleet.store.get(ROLLOUT).spec.paused)


def _check(fleet: Fleet, epochs: dict[str, int]) -> None:
    bad = fleet.quarantined()
    for node in fleet.store.objects("NodeEngine"):
        assert isinstance(node.spec, NodeEngineSpec)
        assert isinstance(node.status, NodeEngineStatus)
        refused = {d for d, c in bad if c in (None, node.spec.device_class)}
        for model in node.spec.models:
            told = {e.digest for e in (model.primary, model.fallback, model.candidate, model.oracle) if e is not None}
            assert not told & refused
        assert refused == set(node.spec.quarantined)
        for observed in node.status.models:
            if observed.serving is not None:
                assert observed.serving.epoch >= epochs.get(node.meta.name, 0)
                epochs[node.meta.name] = observed.serving.epoch


def _promoted_only_when_proven(fleet: Fleet, before: dict[str, str]) -> None:
    """A set never becomes a node's primary unless the node proved it, or it was promoted before."""
    good = {k.set for k in fleet.status().known_good}
    for name in NODES:
        told = fleet.spec(name)
        if told is None or told.primary is None or told.primary.digest == before.get(name):
            continue
        status = fleet.store.get(Ref(kind="NodeEngine", name=name)).status
        candidate = next((m.candidate for m in status.models if m.candidate is not None), None)
        proven = candidate is not None and candidate.phase == "Proven" and candidate.digest == told.primary.digest
        assert proven or told.primary.set in good


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(script=scripts(), steps=acts())
def test_whatever_happens_quarantined_is_never_told_unproven_never_primary_and_rest_is_silent(
    script: Script, steps: list[tuple[str, str]]
) -> None:
    fleet = Fleet()
    fleet.set("fp32")
    fleet.set("one", precision="FP16", net="net1")
    fleet.set("two", precision="Mixed", net="net2")
    fleet.promote("fp32")
    fleet.script = script
    epochs: dict[str, int] = {}
    for count, (what, value) in enumerate(steps):
        _act(fleet, what, value or f"t{count}")
        for _ in range(6):
            before = {n: told.primary.digest for n in NODES if (told := fleet.spec(n)) is not None and told.primary}
            fleet.tick(seconds=5.0)
            _check(fleet, epochs)
            _promoted_only_when_proven(fleet, before)
    writes = fleet.store.writes
    settle_again = controller.settle(fleet.store, clock=lambda: fleet.now)
    assert (settle_again, fleet.store.writes) == (1, writes)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(script=scripts(), ticks=st.integers(0, 12))
def test_an_abort_at_any_moment_reverts_every_reachable_node_to_known_good(script: Script, ticks: int) -> None:
    fleet = Fleet()
    fleet.set("fp32")
    fleet.set("one", precision="FP16", net="net1")
    fleet.promote("fp32")
    fleet.script = script
    fleet.change(engine_set="one")
    fleet.tick(ticks)
    fleet.ops(abort="stop")
    fleet.tick(3)
    awake = [n for n in NODES if n not in script.silent]
    assert all(fleet.spec(n).primary.set == "fp32" and fleet.spec(n).candidate is None for n in NODES)
    assert all(fleet.serving_digest(n) == digest("net-fp32") for n in awake)


def test_an_object_that_is_wrong_stops_no_other() -> None:
    fleet = Fleet()
    fleet.set("fp32")
    fleet.rollout("typo", name="aaa-wrong", model="depth")
    fleet.store._objects[Ref(kind="NodeEngine", name="odd")] = resource(  # as if it was there before the rule was
        "NodeEngine", "odd", NodeEngineSpec(device_class="h100")
    )
    fleet.rollout("fp32")
    fleet.until(lambda: fleet.status().outcome == "Promoted")
    assert fleet.said("Ready", "aaa-wrong") == ("False", "UnknownEngineSet")
    assert fleet.said("NodesReachable") == ("False", "UnknownClass")
    assert fleet.spec("odd") is None


def test_a_rollout_that_cannot_be_decided_about_says_so_and_stops_no_other() -> None:
    fleet = Fleet()
    fleet.set("fp32")
    fleet.rollout("fp32", name="aaa", selector={"nodes": ("a100-0",)})
    fleet.rollout("fp32", selector={"classes": ("jetson-orin",)})
    fleet.tick()
    odd = Ref(kind="EngineRollout", name="aaa", namespace="default")
    fleet.store.write_status(odd, fleet.status("aaa").model_copy(update={"nodes": "what"}))
    fleet.until(lambda: fleet.status().outcome == "Promoted")
    assert fleet.said("Ready", "aaa") == ("False", "CheckFailed")


def test_two_rollouts_of_one_model_the_older_owns_it_and_the_younger_says_so_and_writes_nothing() -> None:
    fleet = Fleet()
    fleet.set("fp32")
    fleet.set("mixed", precision="Mixed", net="net2")
    fleet.promote("fp32")
    fleet.rollout("mixed", name="another")
    fleet.tick(5)
    assert (fleet.status("another").phase, fleet.said("Ready", "another")) == ("Stalled", ("False", "ModelOwned"))
    assert set(fleet.all_serve().values()) == {"fp32/Primary"}
    fleet.store.delete(ROLLOUT)
    fleet.until(lambda: fleet.status("another").outcome == "Promoted")
    known = {k.set for k in fleet.status("another").known_good}
    assert known == {"mixed", "fp32"}


def test_deleting_a_rollout_leaves_nodes_serving_what_they_serve() -> None:
    fleet = Fleet()
    fleet.set("fp32")
    fleet.promote("fp32")
    before = [n.spec for n in fleet.store.objects("NodeEngine")]
    fleet.store.delete(ROLLOUT)
    fleet.tick(3)
    assert [n.spec for n in fleet.store.objects("NodeEngine")] == before


def test_statuses_of_the_kinds_that_a_rollout_reads() -> None:
    fleet = Fleet()
    fleet.set("fp32")
    fleet.store.apply(resource("QualityPolicy", "empty", policy_spec(metrics=())))
    fleet.quarantine(digest("net-fp32"), "a100")
    fleet.tick()
    (contract,) = fleet.store.objects("PreprocessContract")
    assert contract.status.hash == contract_hash(ContractSpec())
    ready = {p.meta.name: p.status.conditions[0].reason for p in fleet.store.objects("QualityPolicy")}
    assert ready == {"strict": Reason.ACCEPTED, "empty": Reason.POLICY_WITHOUT_LIMITS}
    (held,) = fleet.store.objects("EngineQuarantine")
    assert held.status.engine_sets == ("default/fp32",)
    (engines,) = fleet.store.objects("EngineSet")
    assert not is_true(engines.status.conditions, "Verified")
    assert is_true(engines.status.conditions, "Compatible")


def test_old_verdicts_go_and_those_still_reported_stay() -> None:
    fleet = Fleet()
    fleet.set("fp32")
    fleet.promote("fp32")
    fleet.set("mixed", precision="Mixed", net="net2")
    fleet.script = Script(live={("orin-0", digest("mixed-jetson-orin")): "DEERExceeded"})
    fleet.change(engine_set="mixed")
    fleet.tick(8)
    runs = fleet.store.objects("QualityRun")
    assert len(runs) > 3
    fleet.now += 8 * 86400
    fleet.tick(2)
    left = fleet.store.objects("QualityRun")
    assert [(r.spec.node, r.spec.stage, r.spec.verdict) for r in left] == [("orin-0", "Live", "Fail")]


def test_a_class_goes_back_within_a_second_of_the_second_trip_and_the_loop_stops_when_told() -> None:
    fleet = Fleet()
    fleet.set("fp32")
    fleet.promote("fp32")
    fleet.set("mixed", precision="Mixed", net="net2")
    fleet.promote("mixed")
    stop = threading.Event()
    loop = threading.Thread(
        target=lambda: controller.run(fleet.store, stopped=stop.is_set, clock=lambda: fleet.now), daemon=True
    )
    loop.start()
    bad = Script(live={("*", digest("mixed-jetson-orin")): "DEERExceeded"})
    began = time.monotonic()
    for name in ("orin-0", "orin-1"):
        node = fleet.store.get(Ref(kind="NodeEngine", name=name))
        fleet.store.write_status(Ref(kind="NodeEngine", name=name), agent(name, node.spec, node.status, bad, fleet.now))
    while fleet.spec("orin-0").primary.set != "fp32" and time.monotonic() - began < 10:
        stop.wait(0.005)
    took = time.monotonic() - began
    stop.set()
    loop.join(60)
    assert not loop.is_alive()
    assert took < 1.0
    assert fleet.quarantined() == {(digest("mixed-jetson-orin"), "jetson-orin")}


@pytest.mark.parametrize("kind", ["memory", "folder"])
def test_the_same_decisions_over_both_stores(kind: str, tmp_path: Path) -> None:
    store = MemoryStore(clock=lambda: NOW) if kind == "memory" else FolderStore(tmp_path, clock=lambda: NOW)
    store.apply(resource("PreprocessContract", "rgb", ContractSpec()))
    store.apply(resource("QualityPolicy", "strict", policy_spec()))
    store.apply(resource("EngineSet", "mixed", set_spec("mixed", precision="Mixed")))
    store.apply(resource("NodeEngine", "a100-0", NodeEngineSpec(device_class="a100")))
    store.apply(resource("EngineRollout", "bokeh", rollout_spec("mixed")))
    node = Ref(kind="NodeEngine", name="a100-0")
    store.write_status(node, NodeEngineStatus(heartbeat=timestamp(NOW), facts=FACTS))
    for count in range(12):
        found = store.get(node)
        store.write_status(node, agent("a100-0", found.spec, found.status, Script(), NOW + count))
        controller.settle(store, clock=lambda count=count: NOW + count)
    status = store.get(ROLLOUT).status
    assert (status.phase, status.nodes, status.last_known_good) == ("Promoted", "1/1", "mixed")
    assert [m.primary.digest for m in store.get(node).spec.models if m.name == MODEL] == [digest("mixed-a100")]
    assert reconcile(store, NOW + 12).writes == 0


def test_a_broken_file_is_said_and_the_rest_goes_on(tmp_path: Path) -> None:
    store = FolderStore(tmp_path, clock=lambda: NOW)
    store.apply(resource("PreprocessContract", "rgb", ContractSpec()))
    (tmp_path / "enginerollouts/default").mkdir(parents=True, exist_ok=True)
    (tmp_path / "enginerollouts/default/torn.yaml").write_text("spec: [")
    reconcile(store, NOW)
    torn = Ref(kind="EngineRollout", name="torn", namespace="default")
    assert [e.reason for e in store.events(torn)] == [Reason.STORE_UNREADABLE]
    (contract,) = store.objects("PreprocessContract")
    assert contract.status.hash == contract_hash(ContractSpec())
    assert [reconcile(store, NOW).writes for _ in range(2)] == [0, 0]


def test_the_folder_operator_holds_no_init_file_that_would_shadow_the_standard_library() -> None:
    root = Path(__file__).parents[2]
    assert not (root / "operator" / "__init__.py").exists()
