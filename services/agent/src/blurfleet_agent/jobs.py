"""Slow work, one piece at a time, beside the loop that decides: staging, loading, golden inference, unloading."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import structlog

from blurfleet.errors import BlurfleetError, NodeError
from blurfleet.reasons import Reason
from blurfleet_agent.aliases import Proof
from blurfleet_agent.decide import Action
from blurfleet_agent.engines import LoadReport
from blurfleet_agent.view import GoldenResult

Answer = LoadReport | GoldenResult | Proof | None


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one action: its answer, or the error that ended it. `began` is seconds since the epoch."""

    alias: str
    attempt: str
    action: Action
    began: float
    answer: Answer = None
    error: BlurfleetError | None = None


class Worker:
    """Does one action at a time on a thread of its own. `wake` is called when it is done."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="agent-work")
        self._wake = wake
        self._log = structlog.get_logger("blurfleet.work")
        self._running: tuple[str, str, Action, float] | None = None
        self._future: Future[Answer] | None = None

    @property
    def idle(self) -> bool:
        """Tell whether nothing runs and no outcome waits."""
        return self._future is None

    @property
    def current(self) -> tuple[str, Action] | None:
        """Return (alias, action) of what runs, None when idle."""
        return None if self._running is None else (self._running[0], self._running[2])

    def start(self, alias: str, attempt: str, action: Action, work: Callable[[], Answer], now: float) -> None:
        """Begin `work`; only when idle."""
        assert self._future is None
        self._running = (alias, attempt, action, now)
        self._future = self._pool.submit(work)
        self._future.add_done_callback(lambda _: self._wake())

    def take(self) -> Outcome | None:
        """Return what was finished, once; None while it runs or when idle."""
        if self._future is None or self._running is None or not self._future.done():
            return None
        (alias, attempt, action, began), future = self._running, self._future
        self._running, self._future = None, None
        try:
            return Outcome(alias=alias, attempt=attempt, action=action, began=began, answer=future.result())
        except BlurfleetError as error:
            return Outcome(alias=alias, attempt=attempt, action=action, began=began, error=error)
        except Exception as error:
            # A defect in one piece of work must not take down the guard, which lives in this process.
            self._log.exception("work failed", model=alias)
            wrapped = NodeError(Reason.CHECK_FAILED, f"{type(error).__name__}: {error}", where=alias)
            return Outcome(alias=alias, attempt=attempt, action=action, began=began, error=wrapped)

    def close(self) -> None:
        """Let what runs end, start nothing more."""
        self._pool.shutdown(wait=True, cancel_futures=True)
