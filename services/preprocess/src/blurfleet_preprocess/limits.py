"""How much one client may ask: a token bucket for requests a second, and a number of requests at once. Pure.

The clock is passed in, and a refusal says in how many seconds to come back: the rate limiters at hand either wait or
count in windows, which a burst at a window's edge passes twice.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from blurfleet.errors import BlurfleetError
from blurfleet.reasons import Reason

_NOISE = 1e-9  # who waits as told is let in, whatever rounding makes of it
MAX_CLIENTS = 4096  # addresses, where there are no tokens; the least recent is forgotten


class TooManyRequests(BlurfleetError):
    """One client asks more than its share. `retry_after_s` is when the next request has a chance."""

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(Reason.RATE_LIMITED, message, where="client", fix=f"wait {retry_after_s:.2g} s")
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, kw_only=True)
class LimitSpec:
    """What each client may do. 0 is no limit; `burst` requests may come at once after a pause."""

    rate_hz: float = 0.0
    burst: int = 1
    at_once: int = 0


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """A client's allowance: `level` requests were allowed at time `at`; `held` are under way."""

    level: float
    at: float
    held: int = 0


def fresh(spec: LimitSpec, now: float) -> Bucket:
    """Return the bucket of a client that is not known: full."""
    return Bucket(level=float(max(spec.burst, 1)), at=now)


def taken(bucket: Bucket, spec: LimitSpec, now: float) -> tuple[Bucket, float]:
    """Return the bucket after one more request, and 0; or the bucket as it is now and the seconds to wait."""
    if not spec.rate_hz > 0:
        return bucket, 0.0
    passed = max(0.0, now - bucket.at)
    level = min(float(max(spec.burst, 1)), bucket.level + passed * spec.rate_hz)
    if level >= 1 - _NOISE:
        return replace(bucket, level=max(0.0, level - 1), at=now), 0.0
    return replace(bucket, level=level, at=now), (1 - level) / spec.rate_hz


class Limits:
    """The clients' buckets. Safe for many threads."""

    def __init__(self, spec: LimitSpec | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.spec = spec or LimitSpec()
        self._clock = clock
        self._lock = threading.Lock()
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()

    def take(self, client: str) -> None:
        """Count one request of `client`. Raises TooManyRequests."""
        if not self.spec.rate_hz > 0:
            return
        with self._lock:
            bucket, wait_s = taken(self._bucket(client), self.spec, self._clock())
            self._keep(client, bucket)
        if wait_s > 0:
            raise TooManyRequests(f"more than {self.spec.rate_hz:g} requests a second", retry_after_s=wait_s)

    @contextlib.contextmanager
    def held(self, client: str) -> Iterator[None]:
        """Hold one of the client's places while the block runs. Raises TooManyRequests."""
        if not self.spec.at_once > 0:
            yield
            return
        with self._lock:
            bucket = self._bucket(client)
            if bucket.held >= self.spec.at_once:
                raise TooManyRequests(f"more than {self.spec.at_once} requests at once", retry_after_s=1.0)
            self._keep(client, replace(bucket, held=bucket.held + 1))
        try:
            yield
        finally:
            with self._lock:
                bucket = self._bucket(client)
                self._keep(client, replace(bucket, held=max(0, bucket.held - 1)))

    def _bucket(self, client: str) -> Bucket:
        return self._buckets.get(client) or fresh(self.spec, self._clock())

    def _keep(self, client: str, bucket: Bucket) -> None:
        self._buckets[client] = bucket
        self._buckets.move_to_end(client)
        if len(self._buckets) > MAX_CLIENTS:
            # Whoever is being served is not forgotten: its place would be given out twice.
            idle = next((name for name, b in self._buckets.items() if b.held == 0), None)
            if idle is not None:
                del self._buckets[idle]
