"""Memory for pictures at work: each says how much it needs before it is decoded, and waits its turn for it."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Iterator

from blurfleet.errors import ContractRefused
from blurfleet.imageheader import ImageHeader
from blurfleet.reasons import Reason
from blurfleet.serving.life import RequestLife

DEFAULT_BYTES = 2 << 30
_BYTES_PER_PIXEL, _BYTES_PER_PIXEL_16 = 13, 28
"""At the peak, decoded, composed and encoded: measured on 50 million pixels as 10.7 to 12.7, and 27.1 at 16 bit."""
DEPTH_BYTES_PER_PIXEL = 60
"""What mode depth takes besides: its layers (64 measured beyond the picture, on 12 million pixels)."""


def needed(header: ImageHeader) -> int:
    """Return the bytes that a picture takes at the most while it is decoded, blurred and encoded."""
    per_pixel = _BYTES_PER_PIXEL_16 if header.mode.endswith(";16") else _BYTES_PER_PIXEL
    return header.width * header.height * per_pixel


class Room:
    """`limit` bytes for all pictures; one that needs more than that is refused. First come, first served."""

    def __init__(self, limit: int = DEFAULT_BYTES) -> None:
        self.limit = limit
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
        return self._waiting[0] is me and self.held + count <= self.limit

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
        self._more = 0
        self.bytes = 0

    def need_more(self, bytes_per_pixel: int) -> None:
        """Note, before the picture is decoded, that it takes so much more than `needed` says."""
        self._more = bytes_per_pixel

    def take(self, header: ImageHeader) -> None:
        """Wait until there is room for that picture. Raises ContractRefused ImageTooLarge, RequestEnded."""
        if self._room is None:
            return
        count = needed(header) + self._more * header.width * header.height
        if count > self._room.limit:
            raise ContractRefused(
                Reason.IMAGE_TOO_LARGE,
                f"{header.width}x{header.height} takes {count} bytes at work, {self._room.limit} are given",
                where="image",
                fix="send a smaller picture, or raise BLURFLEET_PICTURE_BYTES",
            )
        self._room.take(self, count, self._life)
