"""Dashboards as committed, read only what is exported, and a real Prometheus answers each of their questions."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from tests.charts.rendering import CHART
from tests.obs.chart_rules import groups
from tests.obs.conftest import NODE, Exporters, Prometheus

from blurfleet.deadline import came_true

ROOT = Path(__file__).parents[2]
SERIES = re.compile(r"\b(?:blurfleet|fp16)_[a-z0-9_]+")


def _generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "dashboards/generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["generate"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


GENERATE = _generator()
EXPRESSIONS = sorted(set(GENERATE.expressions()))


def test_the_committed_dashboards_are_what_the_generator_writes() -> None:
    committed = {p.name: p.read_text() for p in (CHART / "dashboards").glob("*.json")}
    assert committed == GENERATE.dashboards()


def test_panels_do_not_overlap_and_ids_are_unique() -> None:
    for text in GENERATE.dashboards().values():
        board = json.loads(text)
        cells = [
            (x, y)
            for p in (panel["gridPos"] for panel in board["panels"])
            for x in range(p["x"], p["x"] + p["w"])
            for y in range(p["y"], p["y"] + p["h"])
        ]
        assert len(cells) == len(set(cells)), board["title"]
        assert max(x for x, _ in cells) < 24
        assert len({p["id"] for p in board["panels"]}) == len(board["panels"])


def test_dashboards_and_alerts_read_only_what_our_processes_export(exporters: Exporters) -> None:
    exporters.work()
    with exporters.lock:
        exporters.fleet.quarantine("sha256:" + "c" * 64)
    asked = {name for expr in EXPRESSIONS for name in SERIES.findall(expr)}
    asked |= {name for g in groups() for r in g["rules"] for name in SERIES.findall(r["expr"])}
    asked |= {name for b in GENERATE.BOARDS for _, query in b.variables for name in SERIES.findall(query)}
    # Only of a class that stands reverted; and the memory store stamps no creation.
    sometimes = {"blurfleet_class_reverted", "blurfleet_quarantine_newest_timestamp_seconds"}
    assert asked - exporters.names() <= sometimes
    assert len(asked) > 30


@pytest.mark.parametrize("expr", EXPRESSIONS)
def test_prometheus_answers_what_a_panel_asks(exporters: Exporters, prometheus: Prometheus, expr: str) -> None:
    asked = expr.replace("$node", NODE)
    if "class_reverted" in expr:
        assert prometheus.query(asked) == []  # nothing is reverted here: no error is all that is asked
        return

    def answered() -> bool:
        exporters.work()
        return bool(prometheus.query(asked))

    assert came_true(answered, 30.0), asked


def test_the_node_s_board_alone_says_why_it_swapped(exporters: Exporters, prometheus: Prometheus) -> None:
    board = next(b for b in GENERATE.BOARDS if b.uid == "blurfleet-node")
    questions = {p.title: p.queries[0][0].replace("$node", NODE) for p in board.panels}
    assert came_true(lambda: bool(prometheus.query(questions["Why it swapped"])), 30.0)
    [why] = prometheus.query(questions["Why it swapped"])
    assert why["metric"] == {
        "model": "bokeh", "set": "mixed", "stage": "Live", "reason": "DEERExceeded", "metric": "DEER",
    }  # fmt: skip
    titles = ("Value that tripped", "Its limit", "Frame", "Frames to detect", "Swap took")
    values = {title: float(prometheus.query(questions[title])[0]["value"][1]) for title in titles}
    assert values == {
        "Value that tripped": 0.3, "Its limit": 0.18, "Frame": 812.0, "Frames to detect": 3.0, "Swap took": 0.024,
    }  # fmt: skip
    [serves] = prometheus.query(questions["It serves"])
    assert (serves["metric"]["role"], serves["metric"]["precision"]) == ("Fallback", "FP32")


def test_the_page_on_monitoring_names_every_figure(exporters: Exporters) -> None:
    page = (ROOT / "docs/monitoring.md").read_text()
    families = [f for registry in exporters.registries.values() for f in registry.collect()]
    names = {f"{f.name}_total" if f.type == "counter" else f.name for f in families}
    assert {name for name in names if f"`{name}`" not in page} == set()
