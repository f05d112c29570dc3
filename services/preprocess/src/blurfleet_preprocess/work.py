"""Requests are worked on by a fixed number of threads; few may wait, and the next one is told so at once.

Work that nobody waits for any more is not begun.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from fastapi import Request
from starlette.requests import ClientDisconnect

from blurfleet.reasons import Reason
from blurfleet.serving.life import RequestLife
from blurfleet_preprocess.problems import Overloaded

T = TypeVar("T")


class Workers:
    """`workers` threads and room for `waiting` more requests. Used from one event loop only."""

    def __init__(self, workers: int, waiting: int) -> None:
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="request")
        self._limit = workers + waiting
        self._held = 0

    async def run(self, work: Callable[[], T]) -> T:
        """Return what `work` returns, run with the caller's context. Raises Overloaded, and what `work` raises.

        Cancelled while it waits for a thread, it never runs and its place is free at once.
        """
        if self._held >= self._limit:
            raise Overloaded(Reason.OVERLOADED, f"{self._held} requests are under way", fix="try again in a moment")
        self._held += 1
        # The pool keeps what was cancelled until a thread comes by: the list lets go of the work, and the body with it.
        todo = [(contextvars.copy_context(), work)]
        try:
            loop = asyncio.get_running_loop()
            future = self._pool.submit(_only, todo)
        except BaseException:
            self._held -= 1
            raise
        # Bound to the thread's work, not to the waiting request: a client that hangs up must not free a slot in use.
        future.add_done_callback(lambda _: self._release(loop, todo))
        return await asyncio.wrap_future(future)

    async def run_for(self, request: Request, life: RequestLife, work: Callable[[], T]) -> T:
        """Return what `work` returns, as `run` does, while whoever sent `request` waits. Its body has been read.

        Raises ClientDisconnect and RequestEnded DeadlineExceeded as soon as that is so, besides what `run` raises. Work
        under way goes on until it looks at `life`, and holds its place until then.
        """
        life.check()
        running = asyncio.ensure_future(self.run(work))
        hang_up = asyncio.ensure_future(_hang_up(request))
        try:
            await asyncio.wait({running, hang_up}, timeout=life.left_s(), return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                return await running
            if hang_up.done():
                life.hang_up()
                raise ClientDisconnect
            raise life.too_late()
        finally:
            hang_up.cancel()
            running.cancel()

    def _release(self, loop: asyncio.AbstractEventLoop, todo: list[Any]) -> None:
        todo.clear()
        with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends
            loop.call_soon_threadsafe(self._done)

    def _done(self) -> None:
        self._held -= 1

    def close(self) -> None:
        """Wait for what is under way."""
        self._pool.shutdown(wait=True)


def _only(todo: list[tuple[contextvars.Context, Callable[[], T]]]) -> T:
    context, work = todo.pop()
    return context.run(work)


async def _hang_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
