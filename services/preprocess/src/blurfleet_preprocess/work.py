"""Requests are worked on by a fixed number of threads; few may wait, and the next one is told so at once."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from blurfleet.reasons import Reason
from blurfleet_preprocess.problems import Overloaded

T = TypeVar("T")


class Workers:
    """`workers` threads and room for `waiting` more requests. Used from one event loop only."""

    def __init__(self, workers: int, waiting: int) -> None:
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="request")
        self._limit = workers + waiting
        self._held = 0

    async def run(self, work: Callable[[], T]) -> T:
        """Return what `work` returns, run with the caller's context. Raises Overloaded, and what `work` raises."""
        if self._held >= self._limit:
            raise Overloaded(Reason.OVERLOADED, f"{self._held} requests are under way", fix="try again in a moment")
        self._held += 1
        try:
            loop, context = asyncio.get_running_loop(), contextvars.copy_context()
            future = self._pool.submit(lambda: context.run(work))
        except BaseException:
            self._held -= 1
            raise
        # Bound to the thread's work, not to the waiting request: a client that hangs up must not free a slot in use.
        future.add_done_callback(lambda _: self._release(loop))
        return await asyncio.wrap_future(future)

    def _release(self, loop: asyncio.AbstractEventLoop) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends
            loop.call_soon_threadsafe(self._done)

    def _done(self) -> None:
        self._held -= 1

    def close(self) -> None:
        """Wait for what is under way."""
        self._pool.shutdown(wait=True)
