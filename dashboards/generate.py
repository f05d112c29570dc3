"""Writes Grafana's dashboards as JSON: `python dashboards/generate.py` (`make gen`) into charts/blurfleet/dashboards.

Two of them: the fleet, and one node. Each panel answers one question of whoever was paged; every expression reads only
what our processes export.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TARGET = Path(__file__).parents[1] / "charts/blurfleet/dashboards"
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_WIDTH = 24
_NODE = 'node=~"$node"'


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One panel: `queries` are (expression, legend); a table shows the labels of what is there now."""

    title: str
    kind: str
    queries: tuple[tuple[str, str], ...]
    width: int = 12
    height: int = 8
    unit: str = "short"
    about: str = ""
    hidden: tuple[str, ...] = ("Time", "Value", "__name__", "job", "instance", "pod", "container", "endpoint")


@dataclass(frozen=True, kw_only=True)
class Board:
    """One dashboard; `variables` are (name, query of label values)."""

    uid: str
    title: str
    panels: tuple[Panel, ...]
    variables: tuple[tuple[str, str], ...] = ()
    links: tuple[dict[str, Any], ...] = field(default=())


FLEET = Board(
    uid="blurfleet-fleet",
    title="blurfleet: fleet",
    panels=(
        Panel(
            title="Nodes off their primary",
            kind="stat",
            width=6,
            height=4,
            queries=(("count(blurfleet_tripped == 1) or vector(0)", "tripped"),),
        ),
        Panel(
            title="Silent nodes",
            kind="stat",
            width=6,
            height=4,
            queries=(("sum(max by (node) (blurfleet_node_silent)) or vector(0)", "silent"),),
        ),
        Panel(
            title="Suspect nodes",
            kind="stat",
            width=6,
            height=4,
            queries=(("sum(max by (node) (blurfleet_node_suspect)) or vector(0)", "suspect"),),
        ),
        Panel(
            title="Quarantines in force",
            kind="stat",
            width=6,
            height=4,
            queries=(("sum(max by (device_type, reason) (blurfleet_quarantines)) or vector(0)", "quarantines"),),
        ),
        Panel(
            title="Rollouts: phase and reason",
            kind="table",
            queries=(
                (
                    "max by (rollout, model, phase, reason) (blurfleet_rollout_phase == 1)"
                    " * on (rollout) group_left (reason) max by (rollout, reason) (blurfleet_rollout_reason)",
                    "",
                ),
            ),
            about="Why a rollout is where it is. describe er has the sentence.",
        ),
        Panel(
            title="Classes sent back",
            kind="table",
            queries=(("max by (rollout, model, device_type) (blurfleet_class_reverted) == 1", ""),),
        ),
        Panel(
            title="Why nodes swapped: the last trip of each",
            kind="table",
            width=24,
            queries=(("max by (device_type, node, model, set, stage, reason, metric) (blurfleet_last_trip_info)", ""),),
            about="Figures, frame and time of each are on the node's board.",
        ),
        Panel(
            title="What each node serves",
            kind="table",
            width=24,
            queries=(("max by (device_type, node, model, set, role, precision) (blurfleet_serving_info) == 1", ""),),
        ),
        Panel(
            title="Trips per hour by reason",
            kind="timeseries",
            queries=(
                ("sum by (device_type, reason) (increase(blurfleet_trips_total[1h]))", "{{device_type}} {{reason}}"),
            ),
        ),
        Panel(
            title="Stability score, lowest node of each class",
            kind="timeseries",
            unit="percentunit",
            queries=(("min by (device_type, model) (fp16_stability_score)", "{{device_type}} {{model}}"),),
        ),
        Panel(
            title="Swap time, 99 % and half",
            kind="timeseries",
            unit="s",
            queries=(
                ("histogram_quantile(0.99, sum by (le) (rate(blurfleet_swap_seconds_bucket[1h])))", "99 %"),
                ("histogram_quantile(0.5, sum by (le) (rate(blurfleet_swap_seconds_bucket[1h])))", "half"),
            ),
        ),
        Panel(
            title="Requests by status",
            kind="timeseries",
            unit="reqps",
            queries=(("sum by (status) (rate(blurfleet_requests_total[5m]))", "{{status}}"),),
        ),
        Panel(
            title="Mattes withheld",
            kind="timeseries",
            queries=(("sum by (reason) (increase(blurfleet_frames_withheld_total[5m]))", "{{reason}}"),),
        ),
        Panel(
            title="The operator: passes, writes, failures",
            kind="timeseries",
            unit="ops",
            queries=(
                ("sum(rate(blurfleet_operator_pass_seconds_count[5m]))", "passes"),
                ("sum(rate(blurfleet_operator_writes_total[5m]))", "writes"),
                ("sum(rate(blurfleet_operator_failures_total[5m]))", "failures"),
                ("sum(rate(blurfleet_operator_store_away_total[5m]))", "API server away"),
            ),
        ),
    ),
)


def _trip(name: str) -> str:
    return f"max by (node, model) (blurfleet_last_trip_{name}{{{_NODE}}})"


NODE = Board(
    uid="blurfleet-node",
    title="blurfleet: node",
    variables=(("node", "label_values(blurfleet_journal_unsynced, node)"),),
    panels=(
        Panel(
            title="Why it swapped",
            kind="table",
            width=14,
            height=5,
            queries=((f"max by (model, set, stage, reason, metric) (blurfleet_last_trip_info{{{_NODE}}})", ""),),
            about="The last trip, also one that was cleared since.",
        ),
        Panel(
            title="It serves",
            kind="table",
            width=10,
            height=5,
            queries=((f"max by (model, set, role, precision) (blurfleet_serving_info{{{_NODE}}}) == 1", ""),),
        ),
        Panel(title="Value that tripped", kind="stat", width=4, height=4, queries=((_trip("value"), "{{model}}"),)),
        Panel(title="Its limit", kind="stat", width=4, height=4, queries=((_trip("limit"), "{{model}}"),)),
        Panel(title="Frame", kind="stat", width=4, height=4, queries=((_trip("frame"), "{{model}}"),), unit="none"),
        Panel(
            title="Frames to detect",
            kind="stat",
            width=4,
            height=4,
            queries=((_trip("frames_to_detect"), "{{model}}"),),
        ),
        Panel(
            title="Swap took", kind="stat", width=4, height=4, unit="s", queries=((_trip("swap_seconds"), "{{model}}"),)
        ),
        Panel(
            title="When (node's clock)",
            kind="stat",
            width=4,
            height=4,
            unit="dateTimeAsIso",
            queries=((f"1000 * {_trip('timestamp_seconds')}", "{{model}}"),),
        ),
        Panel(
            title="Value and limit",
            kind="timeseries",
            width=24,
            height=9,
            queries=(
                (f"max by (model, metric) (blurfleet_guard_value{{{_NODE}}})", "{{model}} {{metric}}"),
                (f"max by (model, metric) (blurfleet_guard_limit{{{_NODE}}})", "limit of {{model}} {{metric}}"),
            ),
            about="Last live sample against the limit that is breached first.",
        ),
        Panel(
            title="Verdicts per second",
            kind="timeseries",
            unit="ops",
            queries=(
                (
                    f"sum by (model, source, verdict) (rate(blurfleet_guard_samples_total{{{_NODE}}}[1m]))",
                    "{{model}} {{source}} {{verdict}}",
                ),
            ),
        ),
        Panel(
            title="Epoch: each step is a swap",
            kind="timeseries",
            unit="none",
            queries=((f"max by (model) (blurfleet_serving_epoch{{{_NODE}}})", "{{model}}"),),
        ),
        Panel(
            title="Guard's phase",
            kind="table",
            width=8,
            queries=((f"max by (model, phase) (blurfleet_guard_phase{{{_NODE}}}) == 1", ""),),
        ),
        Panel(
            title="Ready to swap",
            kind="timeseries",
            width=8,
            unit="none",
            queries=(
                (f"min by (model) (blurfleet_fallback_ready{{{_NODE}}})", "{{model}} fallback proven"),
                (f"1 - max(blurfleet_journal_unsynced{{{_NODE}}})", "journal on disk"),
                (f"1 - max(blurfleet_runtime_mismatch{{{_NODE}}})", "runtime as configured"),
            ),
        ),
        Panel(
            title="Memory that is left",
            kind="timeseries",
            width=8,
            unit="bytes",
            queries=(
                (f"max(blurfleet_memory_available_bytes{{{_NODE}}})", "available"),
                (f"max(blurfleet_memory_total_bytes{{{_NODE}}})", "total"),
            ),
        ),
        Panel(
            title="What it runs",
            kind="table",
            width=24,
            height=5,
            queries=(
                (
                    f"max by (runtime_version, triton_version, agent_version, memory_source, simulated)"
                    f" (blurfleet_node_info{{{_NODE}}})",
                    "",
                ),
            ),
        ),
    ),
)
BOARDS = (FLEET, NODE)


def dashboards() -> dict[str, str]:
    """Return file name -> JSON of each dashboard."""
    return {f"{b.uid}.json": json.dumps(_board(b), indent=1, ensure_ascii=False) + "\n" for b in BOARDS}


def expressions() -> Iterable[str]:
    """Return every expression of every panel."""
    return (expr for board in BOARDS for panel in board.panels for expr, _ in panel.queries)


def _board(board: Board) -> dict[str, Any]:
    other = [b for b in BOARDS if b is not board]
    return {
        "uid": board.uid,
        "title": board.title,
        "tags": ["blurfleet"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "utc",
        "links": [{"title": b.title, "type": "link", "url": f"/d/{b.uid}", "keepTime": True} for b in other],
        "templating": {"list": [_datasource(), *(_variable(name, query) for name, query in board.variables)]},
        "panels": _placed(board.panels),
    }


def _datasource() -> dict[str, Any]:
    return {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"}


def _variable(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": name,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
        "includeAll": False,
        "multi": False,
    }


def _placed(panels: Iterable[Panel]) -> list[dict[str, Any]]:
    """Lay panels out left to right; a row is as high as its highest one."""
    found: list[dict[str, Any]] = []
    x = y = high = 0
    for number, panel in enumerate(panels, start=1):
        if x + panel.width > _WIDTH:
            x, y, high = 0, y + high, 0
        place = {"x": x, "y": y, "w": panel.width, "h": panel.height}
        found.append({"id": number, "gridPos": place, **_panel(panel)})
        x, high = x + panel.width, max(high, panel.height)
    return found


def _panel(panel: Panel) -> dict[str, Any]:
    table = panel.kind == "table"
    targets = [
        {
            "refId": chr(ord("A") + number),
            "datasource": _SOURCE,
            "expr": expr,
            "legendFormat": legend,
            **({"format": "table", "instant": True} if table else {}),
        }
        for number, (expr, legend) in enumerate(panel.queries)
    ]
    body: dict[str, Any] = {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": _SOURCE,
        "targets": targets,
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "options": {},
    }
    if table:
        exclude = dict.fromkeys(panel.hidden, True)
        body["transformations"] = [{"id": "organize", "options": {"excludeByName": exclude}}]
    return body


def main() -> int:
    """Write the dashboards. Raises OSError."""
    TARGET.mkdir(parents=True, exist_ok=True)
    for name, text in dashboards().items():
        (TARGET / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
