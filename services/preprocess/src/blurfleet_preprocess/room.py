"""Memory for pictures at work: each says how much it needs before it is decoded, and waits its turn for it."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator

from blurfleet.errors import ContractRefused
from blurfleet.imageheader import ImageHeader
from blurfleet.reasons import Reason
from blurfleet.serving.life import RequestLife
from blurfleet_preprocess.problems import Overloaded

DEFAULT_BYTES = 2 << 30
_BYTES_PER_PIXEL, _BYTES_PER_PIXEL_16 = 13, 28
"""At the peak, decoded, composed and encoded: measured on 50 million pixels as 10.7 to 12.7, and 27.1 at 16 bit."""
DEPTH_BYTES_PER_PIXEL = 60
"""What mode depth takes besides: its layers (64 measured beyond the picture, on 12 million pixels)."""


def needed(header: ImageHeader) -> int:
    """Return the bytes that a picture takes at the most while it is decoded, blurred and encoded."""
    per_pixel = _BYTES_PER_PIXEL_16 if header.mode.endswith(";16") else _BYTES_PER_PIXEL
    return header.width * header.height * per_pixel


_SMALL_SHARE, _RESERVE_SHARE = 64, 8
"""Small is what needs at most a 64th of the room (2.5 million pixels by default); an eighth is kept free for those."""


def large_at_once(workers: int) -> int:
    """Return how many of `workers` large pictures may hold, at work or waiting for room: a quarter is kept free."""
    return max(1, workers - max(1, workers // 4))


class Room:
    """`limit` bytes for all pictures; one that needs more than that is refused.

    Large ones wait in their order, each on a worker, so that at most `large` of them come in. Small ones pass them.
    """

    def __init__(self, limit: int = DEFAULT_BYTES, *, large: int = large_at_once(8)) -> None:
        self.limit = limit
        self._large = large
        self._shares: set[Share] = set()
        self._changed = threading.Condition()
        self._waiting: deque[Share] = deque()
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
        """Wait for `count` bytes. Raises RequestEnded, Overloaded."""
        if self._is_small(count):
            self._wait(share, count, life, self._small_fits)
            return
        with self._changed:
            if len(self._shares) >= self._large:
                message = f"{len(self._shares)} large pictures are under way"
                raise Overloaded(Reason.OVERLOADED, message, where="image", fix="try again in a moment")
            self._shares.add(share)
            self._waiting.append(share)
        try:
            self._wait(share, count, life, lambda count: self._waiting[0] is share and self._large_fits(count))
        finally:
            with self._changed:
                self._waiting.remove(share)
                self._changed.notify_all()

    def _wait(self, share: Share, count: int, life: RequestLife, fits: Callable[[int], bool]) -> None:
        with life.ending(self._look_again), self._changed:
            self._changed.wait_for(lambda: life.over() or fits(count), life.left_s())
            life.check()
            self.held += count
            share.bytes += count

    def _is_small(self, count: int) -> bool:
        return count <= self.limit // _SMALL_SHARE

    def _small_fits(self, count: int) -> bool:
        return self.held + count <= self.limit

    def _large_fits(self, count: int) -> bool:
        alone = not any(other.bytes for other in self._shares)
        return self.held + count <= (self.limit if alone else self.limit - self.limit // _RESERVE_SHARE)

    def _give_back(self, share: Share) -> None:
        with self._changed:
            self.held -= share.bytes
            share.bytes = 0
            self._shares.discard(share)
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
        """Wait until there is room for that picture. Raises ContractRefused ImageTooLarge, RequestEnded, Overloaded."""
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
