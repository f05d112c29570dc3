"""A bounded queue of frames between threads that forgets the oldest sound ones rather than make anyone wait."""

from __future__ import annotations

import threading

from blurfleet.serving.framecodec import FrameKind, FrameSample

QUEUE_BYTES = 64 << 20
"""Array bytes that may wait at one end of the socket: 32 frames of 320x320, three of 1024x1024."""


class FrameQueue:
    """At most `capacity` frames and `limit_bytes` of arrays; `put` never waits, `get` waits for a frame.

    A frame that the gateway withheld or suspects overtakes the plain samples, and is dropped only where none of those
    is left to drop. One frame is always kept, however large.
    """

    def __init__(self, capacity: int, *, limit_bytes: int = QUEUE_BYTES) -> None:
        self._capacity = capacity
        self._limit = limit_bytes
        self._frames: list[FrameSample] = []
        self._bytes = 0
        self._changed = threading.Condition()
        self._closed = False
        self.dropped = 0

    def put(self, frame: FrameSample) -> None:
        """Append `frame`; after `close` it is dropped."""
        with self._changed:
            if self._closed:
                self.dropped += 1
                return
            self._frames.append(frame)
            self._bytes += frame.nbytes
            while len(self._frames) > 1 and (len(self._frames) > self._capacity or self._bytes > self._limit):
                self._pop(self._first(FrameKind.SAMPLE))
                self.dropped += 1
            self._changed.notify()

    def get(self, timeout_s: float | None = None) -> FrameSample | None:
        """Return the frame that is due, None when `timeout_s` has passed or the queue is closed and empty."""
        with self._changed:
            self._changed.wait_for(lambda: self._frames or self._closed, timeout_s)
            return self._pop(self._first(FrameKind.WITHHELD, FrameKind.SUSPECT)) if self._frames else None

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

    def _first(self, *kinds: FrameKind) -> int:
        return next((place for place, frame in enumerate(self._frames) if frame.kind in kinds), 0)

    def _pop(self, place: int) -> FrameSample:
        frame = self._frames.pop(place)
        self._bytes -= frame.nbytes
        return frame
