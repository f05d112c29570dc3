"""Every injected revert becomes an alert in a real Prometheus: counted, one by one."""

from __future__ import annotations

from tests.obs.conftest import Exporters, Prometheus
from tests.operator.simulated_fleet import Script, digest

from blurfleet.deadline import came_true

ROUNDS = (("jetson-orin",), ("a100",), ("a100", "jetson-orin"), ("jetson-orin",))


def test_all_injected_reverts_appear_in_alerts_and_end_with_the_next_good_set(
    exporters: Exporters, prometheus: Prometheus
) -> None:
    injected = seen = 0
    for number, classes in enumerate(ROUNDS):
        name = f"naive{number}"
        with exporters.lock:
            fleet = exporters.fleet
            fleet.set(name, precision="FP16")
            fleet.script = Script(golden={("*", digest(f"{name}-{c}")): "oracle passes" for c in classes})
            fleet.change(engine_set=name)
            fleet.until(lambda: exporters.fleet.status().phase == "RolledBack")
            injected += len(exporters.fleet.status().reverted_classes)
        wanted = [("default/bokeh", "bokeh", c) for c in sorted(classes)]
        assert came_true(lambda w=wanted: _reverted(prometheus) == w, 30.0), _reverted(prometheus)
        assert came_true(lambda: len(prometheus.firing("BlurfleetRolledBack")) == 1, 30.0)
        seen += len(_reverted(prometheus))
        with exporters.lock:
            exporters.fleet.script = Script()
            exporters.fleet.change(engine_set="fp32")
            exporters.fleet.until(lambda: exporters.fleet.status().phase == "Promoted")
        assert came_true(lambda: _reverted(prometheus) == [], 30.0), _reverted(prometheus)
        assert came_true(lambda: prometheus.firing("BlurfleetRolledBack") == [], 30.0)
    assert (seen, injected) == (5, 5)


def test_the_one_node_that_is_silent_is_named_among_those_that_are_not(
    exporters: Exporters, prometheus: Prometheus
) -> None:
    with exporters.lock:
        exporters.fleet.script = Script(silent=frozenset({"orin-1"}))
        exporters.fleet.tick(10, seconds=10.0)
    silent = "max by (node) (blurfleet_node_silent) == 1"
    assert came_true(lambda: [r["metric"]["node"] for r in prometheus.query(silent)] == ["orin-1"], 30.0)
    assert came_true(lambda: _waiting(prometheus) == ["orin-1"], 30.0)


def _waiting(prometheus: Prometheus) -> list[str]:
    """Return the nodes whose silence is alerted about as soon as it has lasted a minute."""
    alerts = (a["labels"] for a in prometheus.get("alerts")["alerts"])
    return [labels["node"] for labels in alerts if labels["alertname"] == "BlurfleetNodeSilent"]


def _reverted(prometheus: Prometheus) -> list[tuple[str, str, str]]:
    found = prometheus.firing("BlurfleetClassReverted")
    return sorted((a["rollout"], a["model"], a["device_type"]) for a in found)
