"""The node's Prometheus metrics, in a registry of their own. Labels are bounded; NaN enters no counter or histogram."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, make_wsgi_app, start_http_server

from blurfleet_agent.health import Health, with_health
from blurfleet_agent.node_figures import NodeFigures

# An infinite DEER counts as this: beyond every bucket, and the histogram's sum stays a number.
DEER_CEILING = 10.0
SWAP_BUCKETS_S = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
DEER_BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.15, 0.18, 0.22, 0.3, 0.5, 1.0)
_NODE = ("device_type", "node", "model")


class Metrics:
    """All figures of one agent. `device_class` and `node` become labels; the registry is given, not global."""

    def __init__(self, registry: CollectorRegistry, *, node: str, device_class: str) -> None:
        self.registry = registry
        self._labels = (device_class, node)
        self._max_abs = Gauge(
            "fp16_max_abs_error",
            "Largest |candidate - oracle| of the last live sample; NaN where the output holds one.",
            _NODE,
            registry=registry,
        )
        self._stability = Gauge(
            "fp16_stability_score", "Share of the last 100 valid samples within limits.", _NODE, registry=registry
        )
        self._deer = Histogram(
            "blurfleet_deer_ratio",
            "Edge error rate of live samples; counted as 10 at most, which edges out of nothing reach.",
            _NODE,
            buckets=DEER_BUCKETS,
            registry=registry,
        )
        self._swap_seconds = Histogram(
            "blurfleet_swap_seconds",
            "From the decision to the alias READY.",
            _NODE,
            buckets=SWAP_BUCKETS_S,
            registry=registry,
        )
        self._trips = Counter("blurfleet_trips", "Guard trips.", (*_NODE, "reason"), registry=registry)
        self._rollbacks = Counter(
            "blurfleet_rollbacks", "Swaps away from a primary.", (*_NODE, "scope", "reason"), registry=registry
        )
        self._epoch = Gauge("blurfleet_serving_epoch", "Epoch that the alias serves.", _NODE, registry=registry)
        self._fallback = Gauge("blurfleet_fallback_ready", "1 while the standby is proven.", _NODE, registry=registry)
        self._samples = Counter(
            "blurfleet_guard_samples", "Judged samples.", (*_NODE, "source", "verdict"), registry=registry
        )
        self._last = Gauge(
            "blurfleet_guard_last_sample_timestamp_seconds", "When a sample was last judged.", _NODE, registry=registry
        )
        self._value = Gauge(
            "blurfleet_guard_value",
            "The last live sample's figure; NaN where the output holds one.",
            (*_NODE, "metric"),
            registry=registry,
        )
        self._drifted = Gauge(
            "blurfleet_input_drift", "1 while live pictures differ from calibration.", _NODE, registry=registry
        )
        self._drift_p = Gauge(
            "blurfleet_input_drift_p", "How likely live pictures are as in calibration.", _NODE, registry=registry
        )
        self.figures = NodeFigures(node=node, device_class=device_class)
        registry.register(self.figures)
        self._unsynced = Gauge(
            "blurfleet_journal_unsynced", "1 while the journal is not on disk.", ("node",), registry=registry
        )
        self._evidence = Counter(
            "blurfleet_evidence_unwritten", "Verdicts whose evidence could not be kept.", ("node",), registry=registry
        )
        self._spans = Counter("blurfleet_spans", "Spans, by what became of them.", ("outcome",), registry=registry)
        self._unsynced.labels(node).set(0)
        self._evidence.labels(node)  # a counter that is born at 1 has no increase to alert on

    def sample(
        self,
        model: str,
        *,
        source: str,
        verdict: str,
        max_abs: float | None,
        deer: float | None,
        now: float,
        figures: Mapping[str, float | None] | None = None,
    ) -> None:
        """Count one judged sample. `source` is Live, Shadow or Golden, `verdict` Pass, Fail or Inconclusive.

        `figures` holds metric -> value, None where the metric says nothing of this sample.
        """
        self._samples.labels(*self._labels, model, source, verdict).inc()
        if source != "Live":
            return
        self._last.labels(*self._labels, model).set(now)
        for metric, value in (figures or {}).items():
            if value is not None:
                self._value.labels(*self._labels, model, metric).set(value)
        if max_abs is not None:
            self._max_abs.labels(*self._labels, model).set(max_abs)
        if deer is not None and not math.isnan(deer):
            self._deer.labels(*self._labels, model).observe(min(deer, DEER_CEILING))

    def spans(self, outcome: str, spans: int) -> None:
        """Count spans that were Exported, Failed or Dropped."""
        self._spans.labels(outcome).inc(spans)

    def stability(self, model: str, share: float | None) -> None:
        """Set the stability score; None (no sample yet) leaves it unset."""
        if share is not None:
            self._stability.labels(*self._labels, model).set(share)

    def input_drift(self, model: str, *, drifted: bool, p: float) -> None:
        """Set whether the model's live inputs differ from its calibration frames, and the test's probability."""
        self._drifted.labels(*self._labels, model).set(int(drifted))
        self._drift_p.labels(*self._labels, model).set(p)

    def inputs_unknown(self, model: str) -> None:
        """Say nothing of the model's live inputs any more: they are held against another profile, or none."""
        for gauge in (self._drifted, self._drift_p):
            with contextlib.suppress(KeyError):
                gauge.remove(*self._labels, model)

    def swapped(self, model: str, *, seconds: float, epoch: int) -> None:
        """Note a swap of `seconds` to `epoch`."""
        if math.isfinite(seconds):
            self._swap_seconds.labels(*self._labels, model).observe(seconds)
        self._epoch.labels(*self._labels, model).set(epoch)

    def tripped(self, model: str, reason: str, *, swapped: bool) -> None:
        """Count a trip, and the node's roll-back where it swapped."""
        self._trips.labels(*self._labels, model, reason).inc()
        if swapped:
            self._rollbacks.labels(*self._labels, model, "node", reason).inc()

    def serving(self, model: str, *, epoch: int, fallback_ready: bool) -> None:
        """Set what is observed at every turn of the loop."""
        self._epoch.labels(*self._labels, model).set(epoch)
        self._fallback.labels(*self._labels, model).set(int(fallback_ready))

    def journal(self, *, unsynced: bool) -> None:
        """Set whether the journal is behind."""
        self._unsynced.labels(self._labels[1]).set(int(unsynced))

    def evidence_lost(self) -> None:
        """Count a verdict whose evidence could not be kept."""
        self._evidence.labels(self._labels[1]).inc()


class MetricsServer:
    """Serves the registry and the answers to probes on `host`, loopback unless told; port 0 takes a free one.

    `address` is host:port as a URL has it. Raises OSError where the address cannot be bound.
    """

    def __init__(
        self, registry: CollectorRegistry, port: int, host: str = "127.0.0.1", health: Health | None = None
    ) -> None:
        self._server, self._thread = start_http_server(port, addr=host, registry=registry)
        self._server.set_app(with_health(make_wsgi_app(registry), health or Health()))
        self.address = f"[{host}]:{self._server.server_port}" if ":" in host else f"{host}:{self._server.server_port}"

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
