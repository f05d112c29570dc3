"""Doing the same to many objects at the same time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def always() -> bool:
    """Tell that there is time."""
    return True


def spread(
    work: Callable[[T], object], items: Sequence[T], *, threads: int, while_: Callable[[], bool] = always
) -> list[T]:
    """Call `work` with each item, on up to `threads` threads; return when all are done. Raises what `work` raises.

    Once `while_` is no longer true nothing more is begun, but for the first of each thread; returns what is left.
    """

    def one(number: int) -> bool:
        if number >= threads and not while_():
            return False
        work(items[number])
        return True

    if threads == 1 or len(items) <= 1:
        done = [one(number) for number in range(len(items))]
    else:
        with ThreadPoolExecutor(max_workers=threads, thread_name_prefix="spread") as pool:
            done = list(pool.map(one, range(len(items))))
    return [item for item, was_done in zip(items, done, strict=True) if not was_done]
