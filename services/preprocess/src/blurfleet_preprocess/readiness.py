"""Ready means: a real inference through the alias came back, and the node is not drained.

Probes that come together share one inference.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from blurfleet.errors import EngineError, NodeError
from blurfleet.reasons import Reason
from blurfleet_preprocess.dataplane import Gateway


class Readiness:
    """Remembers the last good probe for `cache_s` seconds; a bad one is asked again at once."""

    def __init__(
        self,
        gateway: Gateway,
        *,
        cache_s: float,
        clock: Callable[[], float] = time.monotonic,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._gateway = gateway
        self._stopping = stopping
        self._cache_s = cache_s
        self._clock = clock
        self._lock = threading.Lock()
        self._last: tuple[float, dict[str, Any]] | None = None

    def check(self) -> dict[str, Any]:
        """Return who serves: engine, epoch, and the epoch that the alias itself answered.

        Raises EngineError (NodeSuspect where the node is drained: requests that come all the same are still answered),
        NodeError (Draining: the process is about to end).
        """
        if self._stopping():
            raise NodeError(
                Reason.DRAINING, "about to stop", where=self._gateway.alias, fix="ask another node; this one comes back"
            )
        if self._gateway.snapshot().route.drained:
            raise EngineError(
                Reason.NODE_SUSPECT,
                "drained: FP32 engines fail golden frames on this node, other nodes of its class answer",
                where=self._gateway.alias,
                fix="look at the device; a new attempt (`ops.retry`) proves it again",
            )
        with self._lock:
            now = self._clock()
            if self._last is not None and now - self._last[0] < self._cache_s:
                return self._last[1]
            self._last = None
            snapshot, alias_epoch = self._gateway.probe_alias()
            route = snapshot.route
            facts = {
                "ready": True,
                "engine": route.active.engine,
                "precision": route.active.precision,
                "role": route.serving,
                "epoch": route.epoch,
                "alias_epoch": alias_epoch,
                "simulated": snapshot.simulated,
            }
            self._last = (now, facts)
            return facts
