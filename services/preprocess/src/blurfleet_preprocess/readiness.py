"""Ready means: a real inference through the alias came back. Probes that come together share one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from blurfleet_preprocess.dataplane import Gateway


class Readiness:
    """Remembers the last good probe for `cache_s` seconds; a bad one is asked again at once."""

    def __init__(self, gateway: Gateway, *, cache_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._gateway = gateway
        self._cache_s = cache_s
        self._clock = clock
        self._lock = threading.Lock()
        self._last: tuple[float, dict[str, Any]] | None = None

    def check(self) -> dict[str, Any]:
        """Return who serves: engine, epoch, and the epoch that the alias itself answered.

        Raises EngineError, NodeError.
        """
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
