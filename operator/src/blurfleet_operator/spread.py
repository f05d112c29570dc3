"""Doing the same to many objects at the same time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def spread(work: Callable[[T], object], items: Sequence[T], *, threads: int) -> None:
    """Call `work` with each item, on up to `threads` threads; return when all are done. Raises what `work` raises."""
    if threads == 1 or len(items) <= 1:
        for item in items:
            work(item)
        return
    with ThreadPoolExecutor(max_workers=threads, thread_name_prefix="spread") as pool:
        list(pool.map(work, items))
