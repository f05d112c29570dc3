"""Room for one: what comes later takes the place of what still waits."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

T = TypeVar("T")


class Latest(Generic[T]):
    """Hands over the newest item. Used from one event loop; one taker."""

    def __init__(self) -> None:
        self._item: T | None = None
        self._closed = False
        self._changed = asyncio.Event()

    def offer(self, item: T) -> None:
        """Let `item` wait, in place of whatever waited."""
        self._item = item
        self._changed.set()

    def close(self, *, discard: bool = False) -> None:
        """Say that nothing more comes; what waits is still handed over unless it is to be discarded."""
        self._closed = True
        if discard:
            self._item = None
        self._changed.set()

    async def take(self) -> T | None:
        """Return the newest item as soon as there is one, None once closed and empty."""
        while self._item is None and not self._closed:
            self._changed.clear()
            await self._changed.wait()
        item, self._item = self._item, None
        return item
