"""A bounded queue between threads that forgets the oldest rather than make anyone wait."""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class DropOldest(Generic[T]):
    """A bounded queue between threads: `put` never waits and pushes the oldest item out; `get` waits for one."""

    def __init__(self, capacity: int) -> None:
        self._items: deque[T] = deque(maxlen=capacity)
        self._changed = threading.Condition()
        self._closed = False
        self.dropped = 0

    def put(self, item: T) -> None:
        """Append `item`; after `close` it is dropped."""
        with self._changed:
            if self._closed:
                self.dropped += 1
                return
            self.dropped += len(self._items) == self._items.maxlen
            self._items.append(item)
            self._changed.notify()

    def get(self, timeout_s: float | None = None) -> T | None:
        """Return the oldest item, None when `timeout_s` has passed or the queue is closed and empty."""
        with self._changed:
            self._changed.wait_for(lambda: self._items or self._closed, timeout_s)
            return self._items.popleft() if self._items else None

    def wait_closed(self, timeout_s: float) -> bool:
        """Return True once the queue is closed, False when `timeout_s` has passed first."""
        with self._changed:
            return self._changed.wait_for(lambda: self._closed, timeout_s)

    def close(self) -> None:
        """Wake everyone who waits; what is queued can still be taken."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    @property
    def closed(self) -> bool:
        """Tell whether `close` was called."""
        return self._closed
