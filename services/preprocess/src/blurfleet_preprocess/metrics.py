"""The gateway's Prometheus metrics, on a registry that is handed in. Label values are bounded: stages and reasons."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from blurfleet.reasons import Reason

Stage = Literal["queue", "decode", "contract", "infer", "check", "composite", "steady", "encode", "total"]
_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)

_FLICKER_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)


class GatewayMetrics:
    """What the gateway counts."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.requests = Counter(
            "blurfleet_requests", "Requests answered, by HTTP status", ["status"], registry=registry
        )
        self.seconds = Histogram(
            "blurfleet_request_seconds", "Time in each stage", ["stage"], buckets=_BUCKETS, registry=registry
        )
        for stage in get_args(Stage):
            self.seconds.labels(stage)
        self.withheld = Counter(
            "blurfleet_frames_withheld", "Mattes that were not served", ["reason"], registry=registry
        )
        for reason in (Reason.NON_FINITE_OUTPUT, Reason.OUT_OF_RANGE_OUTPUT, Reason.COLLAPSED_OUTPUT):
            self.withheld.labels(reason)  # a counter that is born at 1 has no increase to alert on
        self.suspect = Counter(
            "blurfleet_frames_suspect", "Near-constant mattes reported", ["reason"], registry=registry
        )
        self.engine_errors = Counter(
            "blurfleet_engine_errors", "Engines that did not answer", ["reason"], registry=registry
        )
        self.refusals = Counter(
            "blurfleet_contract_refusals", "Pictures and tensors refused", ["reason"], registry=registry
        )
        self.ready_tensors = Counter(
            "blurfleet_ready_tensors", "Ready tensors taken, by what their values say", ["standing"], registry=registry
        )

        self.streams_open = Gauge("blurfleet_streams_open", "Frame streams that are open", registry=registry)
        self.stream_frames = Counter(
            "blurfleet_stream_frames", "Frames of streams, by what became of them", ["outcome"], registry=registry
        )
        self.stream_flicker = Histogram(
            "blurfleet_stream_flicker",
            "Mean change of the matte between frames where the picture hardly changed: the engine's and what was sent",
            ["matte"],
            buckets=_FLICKER_BUCKETS,
            registry=registry,
        )

        self.spans = Counter("blurfleet_spans", "Spans, by what became of them", ["outcome"], registry=registry)

    def watch_samples(self, dropped: Callable[[], float], connected: Callable[[], float]) -> None:
        """Export how many samples for the agent were dropped, and whether the agent is connected."""
        gauge = Gauge("blurfleet_frame_samples_dropped", "Samples the agent never got", registry=self.registry)
        gauge.set_function(dropped)
        up = Gauge("blurfleet_frame_socket_connected", "1 while the agent takes samples", registry=self.registry)
        up.set_function(connected)
