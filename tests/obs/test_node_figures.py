"""The agent's figures of its node, as Prometheus scrapes them."""

from __future__ import annotations

import math

import pytest
from prometheus_client import CollectorRegistry

from blurfleet.api.meta import Condition
from blurfleet.api.nodeengine import ModelStatus, NodeEngineStatus, NodeFacts, Serving, TripStatus
from blurfleet.quality.rules import bind, default_policy, resolve
from blurfleet.reasons import Reason
from blurfleet_agent.exporter import Metrics
from blurfleet_agent.node_figures import strictest

NODE = {"device_type": "jetson-orin", "node": "orin-0"}
MODEL = {**NODE, "model": "bokeh"}
TRIP = TripStatus(
    digest="sha256:" + "a" * 64,
    set="mixed",
    reason="DEERExceeded",
    metric="DEER",
    value="inf",
    limit="0.18",
    stream="cam",
    frame=812,
    frames_to_detect=3,
    at="2027-01-15T08:00:00.000Z",
    swap_ms=24.0,
)


def said(kind: str, status: str, reason: Reason) -> Condition:
    return Condition(type=kind, status=status, reason=reason)


def model(role: str, *conditions: Condition, trip: TripStatus | None = TRIP) -> ModelStatus:
    serving = Serving(digest="sha256:" + "b" * 64, engine="bokeh__b", set="mixed", role=role, precision="FP32", epoch=2)
    return ModelStatus(name="bokeh", serving=serving, guard="Swapped", last_trip=trip, conditions=conditions)


class Exported:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.metrics = Metrics(self.registry, node="orin-0", device_class="jetson-orin")

    def show(
        self, *models: ModelStatus, conditions: tuple[Condition, ...] = (), facts: NodeFacts | None = None
    ) -> None:
        status = NodeEngineStatus(models=models, conditions=conditions, facts=facts or NodeFacts(), simulated=True)
        rules = bind(resolve(default_policy(), "jetson-orin"), "Live")
        self.metrics.figures.show(status, {"bokeh": strictest(rules)})

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)

    def labels(self, name: str, label: str) -> set[str]:
        return {s.labels[label] for f in self.registry.collect() for s in f.samples if s.name == name}


@pytest.fixture
def exported() -> Exported:
    return Exported()


def test_which_engine_serves_and_the_whole_last_trip_are_exported(exported: Exported) -> None:
    exported.show(model("Fallback", said("Armed", "False", Reason.LATCHED)))
    serving = {"set": "mixed", "role": "Fallback", "precision": "FP32"}
    assert exported.value("blurfleet_serving_info", **MODEL, **serving) == 1.0
    assert exported.value("blurfleet_guard_phase", **MODEL, phase="Swapped") == 1.0
    tripped = {"set": "mixed", "stage": "Live", "reason": "DEERExceeded", "metric": "DEER"}
    assert exported.value("blurfleet_last_trip_info", **MODEL, **tripped) == 1.0
    figures = ("value", "limit", "frame", "frames_to_detect", "swap_seconds", "timestamp_seconds")
    found = {name: exported.value(f"blurfleet_last_trip_{name}", **MODEL) for name in figures}
    assert found == {
        "value": math.inf,
        "limit": 0.18,
        "frame": 812.0,
        "frames_to_detect": 3.0,
        "swap_seconds": 0.024,
        "timestamp_seconds": 1_800_000_000.0,
    }


@pytest.mark.parametrize(
    ("found", "reasons"),
    [
        pytest.param(model("Fallback", said("Armed", "False", Reason.LATCHED)), {"DEERExceeded"}, id="tripped"),
        pytest.param(
            model("Fallback", said("Armed", "False", Reason.QUARANTINED), trip=None), {"Quarantined"}, id="quarantined"
        ),
        pytest.param(
            model("Primary", said("ActiveHealthy", "False", Reason.FALLBACK_NOT_PROVEN)),
            {"FallbackNotProven"},
            id="it should be off, but there is nothing to swap to",
        ),
        pytest.param(model("Primary", said("Armed", "True", Reason.SERVING)), set(), id="back on the primary"),
        pytest.param(
            model("Fallback", said("Armed", "False", Reason.SWAPPED)), set(), id="the fallback serves, nothing tripped"
        ),
        pytest.param(ModelStatus(name="bokeh"), set(), id="nothing serves"),
    ],
)
def test_tripped_says_why_while_it_holds_and_nothing_afterwards(
    exported: Exported, found: ModelStatus, reasons: set[str]
) -> None:
    exported.show(model("Fallback", said("Armed", "False", Reason.LATCHED)))
    exported.show(found)
    assert exported.labels("blurfleet_tripped", "reason") == reasons


def test_the_limit_that_is_breached_first_stands_beside_the_last_live_value(exported: Exported) -> None:
    exported.show(model("Primary"))
    assert exported.value("blurfleet_guard_limit", **MODEL, metric="MaxAbsError") == 0.0035
    assert exported.value("blurfleet_guard_limit", **MODEL, metric="DEER") == 0.18
    assert exported.labels("blurfleet_guard_limit", "metric") == {"MaxAbsError", "DEER"}
    figures = {"MaxAbsError": math.nan, "DEER": 0.04, "SSIM": None}
    for source in ("Live", "Shadow"):
        exported.metrics.sample(
            "bokeh", source=source, verdict="Pass", max_abs=None, deer=None, now=1.0, figures=figures
        )
        figures = {"DEER": 0.99}
    assert exported.value("blurfleet_guard_value", **MODEL, metric="DEER") == 0.04
    assert math.isnan(exported.value("blurfleet_guard_value", **MODEL, metric="MaxAbsError"))
    assert exported.labels("blurfleet_guard_value", "metric") == {"MaxAbsError", "DEER"}


def test_a_limit_that_is_a_floor_is_strictest_at_its_highest() -> None:
    policy = default_policy()
    ssim = next(r for r in policy.metrics if r.metric == "SSIM").model_copy(update={"source": "Live"})
    rules = (ssim, ssim.model_copy(update={"limit": "0.9"}))
    assert strictest(bind(rules, "Live")) == {"SSIM": 0.9}


def test_what_the_node_runs_and_whether_it_is_what_was_configured(exported: Exported) -> None:
    facts = NodeFacts(runtime_version="10.3.0", triton_version="2.61.0", agent_version="0.1.0", memory_source="Unified")
    exported.show(facts=facts, conditions=(said("RuntimeMismatch", "True", Reason.RUNTIME_MISMATCH),))
    versions = {"runtime_version": "10.3.0", "triton_version": "2.61.0", "agent_version": "0.1.0"}
    info = exported.value("blurfleet_node_info", **NODE, **versions, memory_source="Unified", simulated="true")
    assert info == 1.0
    assert exported.value("blurfleet_runtime_mismatch", **NODE) == 1.0
    exported.show(facts=facts, conditions=(said("RuntimeMismatch", "Unknown", Reason.NO_DATA),))
    assert exported.value("blurfleet_runtime_mismatch", **NODE) == 0.0
