"""What the operator says about itself to Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server


class LoopMetrics:
    """Figures of the passes, registered where the caller says."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.seconds = Histogram(
            "blurfleet_operator_pass_seconds",
            "Time of one pass over the fleet",
            registry=registry,
            buckets=(0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 30),
        )
        self.writes = Counter("blurfleet_operator_writes", "Objects, statuses and events written", registry=registry)
        self.failures = Counter("blurfleet_operator_failures", "Writes refused and passes failed", registry=registry)
        # The agents count scope "node" under the same name; a class has no one node.
        self.rollbacks = Counter(
            "blurfleet_rollbacks",
            "Swaps away from a primary.",
            ("device_type", "node", "model", "scope", "reason"),
            registry=registry,
        )
        self.acting = Gauge("blurfleet_operator_acting", "1 while this operator acts, 0 in standby", registry=registry)
        self.unbrought = Gauge(
            "blurfleet_operator_unbrought_changes",
            "Changes that only a listing found: a watch is dead",
            registry=registry,
        )
        self.away = Counter("blurfleet_operator_store_away", "Turns without an API server", registry=registry)

    def is_acting(self) -> bool:
        """Tell whether this operator acts, as its gauge says."""
        [family] = self.acting.collect()
        return family.samples[0].value == 1.0

    def reverted(self, device_class: str, model: str, reason: str) -> None:
        """Count a class of nodes that was sent back."""
        self.rollbacks.labels(device_class, "", model, "class", reason).inc()


def serve(registry: CollectorRegistry, host: str, port: int) -> tuple[int, object]:
    """Serve the registry; return the port it listens on and the server, which has `shutdown`. Raises OSError."""
    server, _ = start_http_server(port, addr=host, registry=registry)
    return int(server.server_port), server
