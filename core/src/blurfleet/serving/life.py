"""How long whoever asked still waits: until a deadline, or until they hang up. Work that nobody waits for is ended."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from blurfleet.errors import RequestEnded
from blurfleet.reasons import Reason


class RequestLife:
    """One request's time. Safe for many threads: the transport ends it, the work looks at it."""

    def __init__(self, seconds: float | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin now and last `seconds`; without them, for as long as the client stays."""
        self._clock = clock
        self._seconds = seconds
        self._began = clock()
        self._until = None if seconds is None else self._began + seconds
        self._lock = threading.Lock()
        self._gone = False
        self._watching: dict[object, Callable[[], object]] = {}

    def shorten(self, seconds: float) -> None:
        """Let it end `seconds` after it began, unless it ends earlier; who waits already waits as long as before."""
        if self._seconds is None or seconds < self._seconds:
            self._seconds, self._until = seconds, self._began + seconds

    def left_s(self) -> float | None:
        """Return the seconds left, 0 past the deadline, None where there is no deadline."""
        return None if self._until is None else max(0.0, self._until - self._clock())

    def within(self, seconds: float) -> float:
        """Return `seconds` or what is left, whichever is less."""
        left = self.left_s()
        return seconds if left is None else min(seconds, left)

    def over(self) -> bool:
        """Tell whether nobody waits any more."""
        return self._gone or self.left_s() == 0.0

    def check(self) -> None:
        """Raise RequestEnded (ClientGone, DeadlineExceeded) where nobody waits any more."""
        if self._gone:
            raise RequestEnded(Reason.CLIENT_GONE, "whoever asked has hung up", where="request")
        if self.left_s() == 0.0:
            raise self.too_late()

    def too_late(self) -> RequestEnded:
        """Return the error of a request whose deadline has passed."""
        return RequestEnded(
            Reason.DEADLINE_EXCEEDED,
            f"not answered within {self._seconds or 0.0:g} s",
            where="request",
            fix="allow it more time, or send a smaller picture",
        )

    def hang_up(self) -> None:
        """Note that whoever asked is gone, and end what was started for them."""
        with self._lock:
            self._gone = True
            watching = list(self._watching.values())
        for end in watching:
            end()

    @contextlib.contextmanager
    def ending(self, end: Callable[[], object]) -> Iterator[None]:
        """Call `end` once, from another thread, if the client hangs up while the block runs; at once if it has."""
        key = object()
        with self._lock:
            self._watching[key] = end
            gone = self._gone
        try:
            if gone:
                end()
            yield
        finally:
            with self._lock:
                self._watching.pop(key, None)
