"""Waiting for a condition, with a deadline: the one place that sleeps between two looks."""

from __future__ import annotations

import time
from collections.abc import Callable

POLL_S = 0.05


def came_true(holds: Callable[[], bool], within_s: float, *, poll_s: float = POLL_S) -> bool:
    """Return True as soon as `holds()` is true, False when `within_s` seconds have passed without it.

    Looks at once, then every `poll_s` seconds, and one last time at the deadline.
    """
    deadline = time.monotonic() + within_s
    while not holds():
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(poll_s, left))
    return True
