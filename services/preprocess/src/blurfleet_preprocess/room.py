"""Memory for pictures at work: each says how much it needs before it is decoded, and waits its turn for it."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Iterator

from blurfleet.imageheader import ImageHeader
from blurfleet.serving.life import RequestLife

DEFAULT_BYTES = 2 << 30
_BYTES_PER_PIXEL, _BYTES_PER_PIXEL_16 = 13, 28
"""At the peak, decoded, composed and encoded: measured on 50 million pixels as 10.7 to 12.7, and 27.1 at 16 bit."""


def needed(header: ImageHeader) -> int:
    """Return the bytes that a picture takes at the most while it is decoded, blurred and encoded."""
    per_pixel = _BYTES_PER_PIXEL_16 if header.mode.endswith(";16") else _BYTES_PER_PIXEL
    return header.width * header.height * per_pixel


class Room:
    """`limit` bytes for all pictures; one that needs more than that is let in alone. First come, first served."""

    def __init__(self, limit: int = DEFAULT_BYTES) -> None:
        self._limit = limit
        self._changed = threading.Condition()
        self._waiting: deque[object] = deque()
        self.held = 0

    @contextlib.contextmanager
    def share(self, life: RequestLife) -> Iterator[Share]:
        """Yield what one request may take from the room; it is given back when the block ends."""
        share = Share(self, life)
        try:
            yield share
        finally:
            self._give_back(share)

    def take(self, share: Share, count: int, life: RequestLife) -> None:
        """Wait for `count` bytes. Raises RequestEnded."""
        me = object()
        with life.ending(self._look_again), self._changed:
            self._waiting.append(me)
            try:
                self._changed.wait_for(lambda: life.over() or self._has(count, me), life.left_s())
                life.check()
                self.held += count
                share.bytes += count
            finally:
                self._waiting.remove(me)
                self._changed.notify_all()

    def _has(self, count: int, me: object) -> bool:
        return self._waiting[0] is me and (self.held == 0 or self.held + count <= self._limit)

    def _give_back(self, share: Share) -> None:
        with self._changed:
            self.held -= share.bytes
            share.bytes = 0
            self._changed.notify_all()

    def _look_again(self) -> None:
        with self._changed:
            self._changed.notify_all()


class Share:
    """What one request holds."""

    def __init__(self, room: Room | None = None, life: RequestLife | None = None) -> None:
        """Begin with nothing; without a room, everything is allowed."""
        self._room = room
        self._life = life or RequestLife()
        self.bytes = 0

    def take(self, header: ImageHeader) -> None:
        """Wait until there is room for that picture. Raises RequestEnded."""
        if self._room is not None:
            self._room.take(self, needed(header), self._life)
