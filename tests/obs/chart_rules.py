"""The chart's alerts as Helm renders them."""

from __future__ import annotations

from typing import Any

from tests.charts.rendering import of, render


def groups(**values: Any) -> list[dict[str, Any]]:
    """Return the PrometheusRule's groups under `values`."""
    monitored = {"monitoring": {"prometheusRule": True}, **values}
    [rule] = of("PrometheusRule", render(monitored))
    found: list[dict[str, Any]] = rule["spec"]["groups"]
    return found
