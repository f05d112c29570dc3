"""What the fleet's objects say, as figures made anew at each scrape: what is gone leaves no series behind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from blurfleet.api.meta import condition, is_true
from blurfleet.api.quarantine import QuarantineSpec
from blurfleet.errors import BlurfleetError
from blurfleet_operator.decide.observation import RolloutView, instant
from blurfleet_operator.observe import World

# Not `namespace`: Prometheus gives every series of a pod one of that name, and renames ours.
_ROLLOUT = ("rollout", "model")


class FleetCollector(Collector):
    """Reads the store when it is scraped. A store that is away, or an operator that stands by, exports nothing.

    `read` returns the world, `acts` tells whether this operator acts now; both are called on the scraper's thread.
    """

    def __init__(self, read: Callable[[], World], acts: Callable[[], bool]) -> None:
        self._read = read
        self._acts = acts

    def describe(self) -> Iterable[Metric]:
        """Return nothing: the registry must not read the store to learn the names."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield the figures of this moment."""
        if not self._acts():
            return
        try:
            world = self._read()
        except BlurfleetError:
            return  # the loop counts and logs that the store is away
        yield from rollout_figures(world.rollouts)
        yield from node_figures(world)
        yield from quarantine_figures(world)


def rollout_figures(rollouts: Iterable[RolloutView]) -> tuple[Metric, ...]:
    """Return each rollout's phase and reason, and which classes it sent back; `rollout` is namespace/name."""
    phase = GaugeMetricFamily(
        "blurfleet_rollout_phase", "1 for the phase that a rollout is in.", labels=(*_ROLLOUT, "phase")
    )
    reason = GaugeMetricFamily(
        "blurfleet_rollout_reason", "1 for why a rollout is in its phase.", labels=(*_ROLLOUT, "reason")
    )
    reverted = GaugeMetricFamily(
        "blurfleet_class_reverted",
        "1 while a class stands reverted in a rollout's present attempt.",
        labels=(*_ROLLOUT, "device_type"),
    )
    for rollout in rollouts:
        status = rollout.status
        who = (f"{rollout.namespace}/{rollout.name}", rollout.spec.model)
        phase.add_metric((*who, status.phase), 1.0)
        why = condition(status.conditions, "Progressing")
        if why is not None:
            reason.add_metric((*who, why.reason), 1.0)
        for device_class in status.reverted_classes:
            reverted.add_metric((*who, device_class), 1.0)
    return phase, reason, reverted


def node_figures(world: World) -> tuple[Metric, ...]:
    """Return which nodes are silent or suspect. One that never spoke, or is in doubt after an outage, is not silent."""
    silent = GaugeMetricFamily(
        "blurfleet_node_silent", "1 while a node is not heard from.", labels=("device_type", "node")
    )
    suspect = GaugeMetricFamily(
        "blurfleet_node_suspect", "1 while a node's FP32 fails golden frames.", labels=("device_type", "node", "model")
    )
    gone = world.hearing.silent if world.hearing is not None else None
    for node in world.nodes:
        quiet = node.name in gone if gone is not None else not node.reachable(world.now)
        silent.add_metric((node.device_class, node.name), float(quiet))
        for model in node.status.models:
            fails = is_true(model.conditions, "NodeSuspect")
            suspect.add_metric((node.device_class, node.name, model.name), float(fails))
    return silent, suspect


def quarantine_figures(world: World) -> tuple[Metric, ...]:
    """Return how many quarantines are in force by class (empty: all) and reason, and when the newest was made."""
    count = GaugeMetricFamily(
        "blurfleet_quarantines", "Quarantines there are; no class: all.", labels=("device_type", "reason")
    )
    newest = GaugeMetricFamily(
        "blurfleet_quarantine_newest_timestamp_seconds",
        "When the newest quarantine was made, by the API server's clock.",
        labels=("device_type", "reason"),
    )
    counted: Counter[tuple[str, str]] = Counter()
    made: dict[tuple[str, str], float] = {}
    for resource in world.of("EngineQuarantine"):
        assert isinstance(resource.spec, QuarantineSpec)
        key = (resource.spec.device_class or "", resource.spec.reason)
        counted[key] += 1
        at = instant(resource.meta.creation_timestamp)
        if at is not None:
            made[key] = max(at, made.get(key, at))
    for key, number in counted.items():
        count.add_metric(key, float(number))
    for key, at in made.items():
        newest.add_metric(key, at)
    return count, newest
