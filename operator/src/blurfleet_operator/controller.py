"""The loop: a pass after every change in the store, and one a second because time passes too."""

from __future__ import annotations

import time
from collections.abc import Callable

import structlog

from blurfleet.errors import StoreError
from blurfleet.store.port import Store
from blurfleet_operator.observe import WATCHED
from blurfleet_operator.reconcile import reconcile

# A pass writes, and its own writes may allow the next step at once; more than this in a row waits for the next change.
_PASSES_IN_A_ROW = 8
_log = structlog.get_logger("blurfleet.controller")


def run(store: Store, *, stopped: Callable[[], bool], clock: Callable[[], float] = time.time) -> None:
    """Reconcile until `stopped()`; a store that is away is tried again at the next change or second.

    `clock` gives seconds since the epoch. Stores yield at least each second, which is the resync.
    """
    for _ in store.watch(WATCHED, stopped):
        if stopped():
            return
        settle(store, clock=clock, stopped=stopped)


def settle(store: Store, *, clock: Callable[[], float], stopped: Callable[[], bool] = lambda: False) -> int:
    """Run passes until one writes nothing; return how many ran. Bounded, so that a watch is never starved."""
    for count in range(1, _PASSES_IN_A_ROW + 1):
        try:
            done = reconcile(store, clock())
        except StoreError as error:
            _log.warning("store is away", reason=error.reason.value, message=error.message)
            return count
        if done.writes == 0 or stopped():
            return count
    return _PASSES_IN_A_ROW
