"""Slow work, one piece at a time, beside the loop that decides: staging, loading, golden inference, unloading."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import structlog

from blurfleet.api.nodeengine import NodeModel
from blurfleet.errors import BlurfleetError, NodeError
from blurfleet.reasons import Reason
from blurfleet_agent.aliases import Proof
from blurfleet_agent.decide import Action
from blurfleet_agent.engines import LoadReport
from blurfleet_agent.remembered import Remembered
from blurfleet_agent.view import GoldenAnswer

Answer = LoadReport | GoldenAnswer | Proof | None


@dataclass(frozen=True, kw_only=True)
class Job:
    """One piece of work: for which model as it was wished then, and since when (seconds since the epoch)."""

    model: NodeModel
    notes: Remembered
    action: Action
    began: float


@dataclass(frozen=True, kw_only=True)
class Outcome(Job):
    """What became of a job: its answer, or the error that ended it."""

    answer: Answer = None
    error: BlurfleetError | None = None


class Worker:
    """Does one job at a time on a thread of its own. `wake` is called when it is done."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="agent-work")
        self._wake = wake
        self._log = structlog.get_logger("blurfleet.work")
        self._running: tuple[Job, Future[Answer]] | None = None

    @property
    def idle(self) -> bool:
        """Tell whether nothing runs and no outcome waits."""
        return self._running is None

    def start(self, job: Job, work: Callable[[], Answer]) -> None:
        """Begin `work`; only when idle."""
        assert self._running is None
        future = self._pool.submit(work)
        self._running = (job, future)
        future.add_done_callback(lambda _: self._wake())

    def take(self) -> Outcome | None:
        """Return what was finished, once; None while it runs or when idle."""
        if self._running is None or not self._running[1].done():
            return None
        (job, future), self._running = self._running, None
        answer: Answer = None
        error: BlurfleetError | None = None
        try:
            answer = future.result()
        except BlurfleetError as raised:
            error = raised
        except Exception as raised:
            # A defect in one piece of work must not take down the guard, which lives in this process.
            self._log.exception("work failed", model=job.model.name)
            error = NodeError(Reason.CHECK_FAILED, f"{type(raised).__name__}: {raised}", where=job.model.name)
        return Outcome(model=job.model, notes=job.notes, action=job.action, began=job.began, answer=answer, error=error)

    def close(self) -> None:
        """Let what runs end, start nothing more."""
        self._pool.shutdown(wait=True, cancel_futures=True)
