"""The dashboards as the chart hands them to Grafana's sidecar."""

from __future__ import annotations

import json

from tests.charts.rendering import CHART, of, render


def test_dashboards_come_as_committed_and_only_when_asked_for() -> None:
    assert not [b for b in of("ConfigMap", render()) if b["metadata"]["name"] == "blurfleet-dashboards"]
    wanted = {"monitoring": {"dashboards": {"enabled": True, "labels": {"grafana_dashboard": "1", "team": "blur"}}}}
    [found] = [b for b in of("ConfigMap", render(wanted)) if b["metadata"]["name"] == "blurfleet-dashboards"]
    labels = found["metadata"]["labels"]
    assert (labels["grafana_dashboard"], labels["team"]) == ("1", "blur")
    given = {name: json.loads(text) for name, text in found["data"].items()}
    assert given == {p.name: json.loads(p.read_text()) for p in (CHART / "dashboards").glob("*.json")}
    assert {board["uid"] for board in given.values()} == {"blurfleet-fleet", "blurfleet-node"}
