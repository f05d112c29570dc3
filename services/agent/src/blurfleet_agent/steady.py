"""A clock for timers that starts at the wall's time and is never set: a clock stepped back must not blind the guard."""

from __future__ import annotations

import time
from collections.abc import Callable


def steady_clock(
    wall: Callable[[], float] = time.time, ticks: Callable[[], float] = time.monotonic
) -> Callable[[], float]:
    """Return a clock in seconds since 1970 as the wall had it at this call, advanced by `ticks` alone.

    It is for intervals within one process. What people or a later process read is stamped by the wall.
    """
    offset = wall() - ticks()
    return lambda: offset + ticks()
