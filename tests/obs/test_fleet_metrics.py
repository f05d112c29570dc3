"""The operator's figures of the fleet, read from the objects that its real decisions wrote."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from tests.operator.simulated_fleet import Fleet, Script, digest

from blurfleet.api.meta import Condition
from blurfleet.errors import StoreError
from blurfleet.reasons import Reason
from blurfleet.store.port import Ref
from blurfleet_operator.decide.hearing import Heard, Hearing
from blurfleet_operator.fleet_metrics import FleetCollector
from blurfleet_operator.metrics import LoopMetrics
from blurfleet_operator.observe import World, read_world

ROLLOUT = {"rollout": "default/bokeh", "model": "bokeh"}


def exported(fleet: Fleet) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(FleetCollector(lambda: read_world(fleet.store, fleet.now), lambda: True))
    return registry


def series(registry: CollectorRegistry, name: str) -> set[tuple[str, ...]]:
    """Return the label values of all series of `name` that are not 0."""
    found = (s for family in registry.collect() for s in family.samples if s.name == name and s.value)
    return {tuple(s.labels.values()) for s in found}


def test_a_reverted_class_its_phase_reason_and_quarantine_are_exported_and_leave_with_the_next_attempt(
    fleet: Fleet,
) -> None:
    registry = exported(fleet)
    assert registry.get_sample_value("blurfleet_rollout_phase", {**ROLLOUT, "phase": "Promoted"}) == 1.0
    assert series(registry, "blurfleet_class_reverted") == set()
    fleet.set("naive", precision="FP16")
    fleet.script = Script(golden={("*", digest("naive-jetson-orin")): "oracle passes"})
    fleet.change(engine_set="naive")
    fleet.until(lambda: fleet.status().phase == "RolledBack")
    assert series(registry, "blurfleet_rollout_phase") == {("default/bokeh", "bokeh", "RolledBack")}
    assert series(registry, "blurfleet_rollout_reason") == {("default/bokeh", "bokeh", "RolledBack")}
    assert series(registry, "blurfleet_class_reverted") == {("default/bokeh", "bokeh", "jetson-orin")}
    labels = {"device_type": "jetson-orin", "reason": "MaxAbsErrorExceeded"}
    assert registry.get_sample_value("blurfleet_quarantines", labels) == 1.0
    fleet.change(engine_set="fp32")
    fleet.until(lambda: fleet.status().phase == "Promoted")
    assert series(registry, "blurfleet_class_reverted") == set()


def test_a_node_that_is_silent_is_told_from_those_that_are_heard_from(fleet: Fleet) -> None:
    registry = exported(fleet)
    assert series(registry, "blurfleet_node_silent") == set()
    fleet.script = Script(silent=frozenset({"orin-1"}))
    fleet.tick(10, seconds=10.0)
    assert series(registry, "blurfleet_node_silent") == {("jetson-orin", "orin-1")}
    heard = {"device_type": "a100", "node": "a100-0"}
    assert registry.get_sample_value("blurfleet_node_silent", heard) == 0.0


def test_silence_is_what_the_listener_heard_whatever_the_nodes_clocks_say(fleet: Fleet) -> None:
    fleet.tick(10, seconds=100.0)
    nodes = {
        "a100-0": Heard(text="2001-01-01T00:00:00Z", at=1000.0, sure=True),  # its clock is wrong, but it speaks
        "orin-0": Heard(text="x", at=900.0, sure=True),
        "orin-1": Heard(text="", at=0.0, sure=False),  # never spoke
    }
    hearing = Hearing(nodes=nodes, listened=1000.0)
    registry = CollectorRegistry()
    registry.register(FleetCollector(lambda: read_world(fleet.store, fleet.now, hearing), lambda: True))
    assert series(registry, "blurfleet_node_silent") == {("jetson-orin", "orin-0")}


def test_a_suspect_node_is_named_with_its_model(fleet: Fleet) -> None:
    registry = exported(fleet)
    assert series(registry, "blurfleet_node_suspect") == set()
    ref = Ref(kind="NodeEngine", name="orin-0")
    status = fleet.store.get(ref).status
    found = Condition(type="NodeSuspect", status="True", reason=Reason.NODE_SUSPECT)
    models = tuple(m.model_copy(update={"conditions": (*m.conditions, found)}) for m in status.models)
    fleet.store.write_status(ref, status.model_copy(update={"models": models}))
    assert series(registry, "blurfleet_node_suspect") == {("jetson-orin", "orin-0", "bokeh")}


def test_a_store_that_is_away_and_an_operator_that_stands_by_export_no_figures_of_the_fleet(fleet: Fleet) -> None:
    def away() -> World:
        raise StoreError(Reason.STORE_UNREADABLE, "away")

    registry = CollectorRegistry()
    metrics = LoopMetrics(registry)
    registry.register(FleetCollector(away, lambda: True))
    assert b"blurfleet_operator_pass_seconds_count 0.0" in generate_latest(registry)
    assert b"blurfleet_rollout_phase" not in generate_latest(registry)
    waiting = CollectorRegistry()
    metrics = LoopMetrics(waiting)
    waiting.register(FleetCollector(lambda: read_world(fleet.store, fleet.now), metrics.is_acting))
    assert b"blurfleet_rollout_phase" not in generate_latest(waiting)
    metrics.acting.set(1)
    assert b'blurfleet_rollout_phase{model="bokeh",phase="Promoted",rollout="default/bokeh"' in generate_latest(waiting)


@pytest.fixture
def fleet() -> Fleet:
    made = Fleet()
    made.set("fp32")
    made.promote("fp32")
    return made
