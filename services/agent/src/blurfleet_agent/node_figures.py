"""The node's status as Prometheus figures, made anew at each scrape: what no longer holds leaves no series behind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from blurfleet.api.meta import condition, is_true
from blurfleet.api.nodeengine import ModelStatus, NodeEngineStatus, TripStatus
from blurfleet.api.policy import SENTINELS
from blurfleet.quality.rules import BoundRule
from blurfleet.quality.verdict import COMPARATORS, Comparator
from blurfleet.reasons import Reason

_MODEL = ("device_type", "node", "model")
Limits = Mapping[str, float]


def strictest(rules: Iterable[BoundRule]) -> Limits:
    """Return metric -> the limit that is breached first. Sentinels have none: one bad pixel is enough."""
    found: dict[str, float] = {}
    for rule in rules:
        if rule.metric in SENTINELS:
            continue
        pick = max if COMPARATORS[rule.metric] is Comparator.BELOW else min
        name = rule.metric.value
        found[name] = pick(rule.limit, found.get(name, rule.limit))
    return found


def tripped_on(model: ModelStatus) -> Reason | str:
    """Return why the primary is off or should be: a trip's reason, Quarantined; empty where it is not."""
    armed, healthy = condition(model.conditions, "Armed"), condition(model.conditions, "ActiveHealthy")
    if healthy is not None and healthy.status == "False" and healthy.reason is Reason.FALLBACK_NOT_PROVEN:
        return Reason.FALLBACK_NOT_PROVEN
    if model.serving is None or model.serving.role != "Fallback" or armed is None:
        return ""
    if armed.reason is Reason.LATCHED and model.last_trip is not None:
        return model.last_trip.reason
    return armed.reason if armed.reason in (Reason.LATCHED, Reason.QUARANTINED) else ""


class NodeFigures(Collector):
    """Exports the last status that was shown to it. `node` and `device_class` become labels."""

    def __init__(self, *, node: str, device_class: str) -> None:
        self._who = (device_class, node)
        self._shown: tuple[NodeEngineStatus, Mapping[str, Limits]] = (NodeEngineStatus(), {})

    def show(self, status: NodeEngineStatus, limits: Mapping[str, Limits]) -> None:
        """Export `status` from now on; `limits` holds the live limits of each model in force. Any thread may scrape."""
        self._shown = (status, limits)

    def describe(self) -> Iterable[Metric]:
        """Return nothing: the names are known from the first scrape."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield the figures of the last status."""
        status, limits = self._shown
        yield from self._node(status)
        yield from self._serving(status)
        yield from self._trips(status)
        yield self._limits(limits)

    def _node(self, status: NodeEngineStatus) -> Iterator[Metric]:
        facts = status.facts
        labels = ("runtime_version", "triton_version", "agent_version", "memory_source", "simulated")
        info = GaugeMetricFamily("blurfleet_node_info", "What a node runs.", labels=("device_type", "node", *labels))
        said = (facts.runtime_version, facts.triton_version, facts.agent_version, facts.memory_source)
        info.add_metric((*self._who, *said, str(status.simulated).lower()), 1.0)
        yield info
        for name, words, value in (
            ("memory_total_bytes", "Memory that engines are loaded into.", facts.memory_total_bytes),
            ("memory_available_bytes", "What of it is left.", facts.memory_available_bytes),
            ("runtime_mismatch", "1 while the runtime is not the configured one.", self._mismatch(status)),
        ):
            one = GaugeMetricFamily(f"blurfleet_{name}", words, labels=("device_type", "node"))
            one.add_metric(self._who, float(value))
            yield one

    @staticmethod
    def _mismatch(status: NodeEngineStatus) -> int:
        return int(is_true(status.conditions, "RuntimeMismatch"))

    def _serving(self, status: NodeEngineStatus) -> Iterator[Metric]:
        serving = GaugeMetricFamily(
            "blurfleet_serving_info", "What a model is served from.", labels=(*_MODEL, "set", "role", "precision")
        )
        phase = GaugeMetricFamily("blurfleet_guard_phase", "1 for the guard's phase.", labels=(*_MODEL, "phase"))
        off = GaugeMetricFamily(
            "blurfleet_tripped", "1 while a primary is off, or should be, and why.", labels=(*_MODEL, "reason")
        )
        for model in status.models:
            who = (*self._who, model.name)
            phase.add_metric((*who, model.guard), 1.0)
            if model.serving is not None:
                serving.add_metric((*who, model.serving.set, model.serving.role, model.serving.precision), 1.0)
            reason = tripped_on(model)
            if reason:
                off.add_metric((*who, reason), 1.0)
        yield from (serving, phase, off)

    def _trips(self, status: NodeEngineStatus) -> Iterator[Metric]:
        trips = [((*self._who, m.name), m.last_trip) for m in status.models if m.last_trip is not None]
        info = GaugeMetricFamily(
            "blurfleet_last_trip_info",
            "The last trip of a model.",
            labels=(*_MODEL, "set", "stage", "reason", "metric"),
        )
        for who, trip in trips:
            info.add_metric((*who, trip.set, trip.stage, trip.reason, trip.metric), 1.0)
        yield info
        for name, words, of in _TRIP_FIGURES:
            one = GaugeMetricFamily(f"blurfleet_last_trip_{name}", words, labels=_MODEL)
            for who, trip in trips:
                found = of(trip)
                if found is not None:
                    one.add_metric(who, found)
            yield one

    def _limits(self, limits: Mapping[str, Limits]) -> Metric:
        found = GaugeMetricFamily(
            "blurfleet_guard_limit", "The live limit that is breached first.", labels=(*_MODEL, "metric")
        )
        for model, of in limits.items():
            for metric, limit in of.items():
                found.add_metric((*self._who, model, metric), limit)
        return found


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _instant(text: str) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None


def _at(trip: TripStatus) -> float | None:
    return _instant(trip.at)


_TRIP_FIGURES = (
    ("value", "The figure that tripped.", lambda t: _number(t.value)),
    ("limit", "The limit that it breached.", lambda t: _number(t.limit)),
    ("frame", "The frame that completed the trip, within its stream.", lambda t: float(t.frame)),
    ("frames_to_detect", "Judged frames from the first breach to the trip.", lambda t: float(t.frames_to_detect)),
    ("swap_seconds", "From the decision to the alias READY; 0 where nothing was swapped.", lambda t: t.swap_ms / 1e3),
    ("timestamp_seconds", "When it tripped, by the node's clock.", _at),
)
