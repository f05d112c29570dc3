"""The heartbeat of a node on the Kubernetes API: its Lease, renewed while the node's loop turns."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import structlog

from blurfleet.errors import BlurfleetError

_log = structlog.get_logger("blurfleet.lease")
_FIRST_WAIT_S = 1.0


class LeaseKeeper:
    """Calls `beat` every `every_s` seconds while `turning()`; after a failure sooner, with jitter, up to `every_s`."""

    def __init__(self, beat: Callable[[], None], turning: Callable[[], bool], *, every_s: float) -> None:
        self._beat = beat
        self._turning = turning
        self._every_s = every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)

    def start(self) -> None:
        """Begin with a beat at once."""
        self._thread.start()

    def close(self) -> None:
        """Stop; the Lease runs out by itself."""
        self._stop.set()
        self._thread.join(timeout=10.0)

    def _run(self) -> None:
        failures = 0
        wait = 0.0
        while not self._stop.wait(wait):
            wait = self._every_s * random.uniform(0.9, 1.0)
            if not self._turning():
                continue
            try:
                self._beat()
                failures = 0
            except BlurfleetError as error:
                if failures == 0:
                    _log.warning("lease not renewed", reason=error.reason, error=str(error))
                wait = min(wait, _FIRST_WAIT_S * 2.0 ** min(failures, 6)) * random.uniform(0.5, 1.0)
                failures += 1
