"""Room at the doors: so many requests at once and waiting, so many open streams, and of one client fewer."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator

from blurfleet.reasons import Reason
from blurfleet.serving.life import RequestLife
from blurfleet_preprocess.problems import Overloaded

MAX_STREAMS = 64
MAX_STREAMS_OF_ONE = 32


class Slots:
    """Room for `workers` requests at once and `waiting` more. Safe for many threads."""

    def __init__(self, workers: int, waiting: int) -> None:
        self._changed = threading.Condition()
        self._workers = workers
        self._limit = workers + waiting
        self._held = 0
        self._running = 0

    @contextlib.contextmanager
    def one(self, life: RequestLife) -> Iterator[None]:
        """Hold a slot while the block runs, waiting for it if need be. Raises Overloaded, RequestEnded."""
        with self._changed:
            if self._held >= self._limit:
                raise Overloaded(Reason.OVERLOADED, f"{self._held} requests are under way", fix="try again in a moment")
            self._held += 1
        running = 0
        try:
            with life.ending(self._look_again):
                running = self._begin(life)
            yield
        finally:
            with self._changed:
                self._held -= 1
                self._running -= running
                self._changed.notify_all()

    def _begin(self, life: RequestLife) -> int:
        with self._changed:
            self._changed.wait_for(lambda: self._running < self._workers or life.over(), life.left_s())
            life.check()
            self._running += 1
        return 1

    def _look_again(self) -> None:
        with self._changed:
            self._changed.notify_all()


class OpenStreams:
    """How many streams are open, all and of one client: over gRPC each holds a thread. Safe for many threads."""

    def __init__(self, all_: int = MAX_STREAMS, of_one: int = MAX_STREAMS_OF_ONE) -> None:
        self._all = all_
        self._of_one = of_one
        self._lock = threading.Lock()
        self._open: Counter[str] = Counter()

    def open(self, client: str) -> str:
        """Count one more, and return its client. Raises Overloaded."""
        with self._lock:
            for count, limit, whose in (
                (self._open[client], self._of_one, "of this client "),
                (self._open.total(), self._all, ""),
            ):
                if count >= limit:
                    raise Overloaded(Reason.OVERLOADED, f"{count} streams {whose}are open", fix="close one")
            self._open[client] += 1
        return client

    def close(self, client: str) -> None:
        """Count one less."""
        with self._lock:
            self._open[client] -= 1
            self._open += Counter()  # forgets who has none
