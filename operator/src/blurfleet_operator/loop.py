"""The operator's own thread: woken by changes and by time, it registers nodes and runs passes until nothing is left.

One thread and one pass at a time: a pass sees the whole fleet, so no two decisions about one object ever overlap. Only
the writing to many nodes is spread over threads.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import structlog

from blurfleet.api.kinds import Resource
from blurfleet.errors import BlurfleetError, StoreConflict, StoreError
from blurfleet.store.kube import KubeStore
from blurfleet_operator.alarm import Alarm
from blurfleet_operator.decide.hearing import Hearing, hear
from blurfleet_operator.decide.standing import Standing
from blurfleet_operator.metrics import LoopMetrics
from blurfleet_operator.observe import WATCHED
from blurfleet_operator.reconcile import Pass, reconcile
from blurfleet_operator.rollcall import RollCall
from blurfleet_operator.settings import OperatorSettings
from blurfleet_operator.spread import spread
from blurfleet_operator.standby import Gate
from blurfleet_operator.unbrought import Unbrought

# What people write comes through kopf; NodeEngine, which a fleet writes, is followed by the store itself.
FOLLOWED = "NodeEngine"
FED = (*(kind for kind in WATCHED if kind != FOLLOWED), "QualityRun", "Node")
_PASSES_IN_A_ROW = 8
_LONGEST_REST_S = 1.0
_AWAY_S = 1.0
_AGAIN_S = 2.0
_DOUBTED_S = 5.0
_DEAF_S = 30.0
_PATIENCE_S = 0.5  # as long, at least, a pass writes what can wait
_LAST_WORDS_S = 10.0
_log = structlog.get_logger("blurfleet.operator")


class Loop:
    """Owns the passes. Handlers call `saw`; `turned` says when the loop last came round (monotonic seconds)."""

    def __init__(
        self,
        store: KubeStore,
        settings: OperatorSettings,
        metrics: LoopMetrics,
        gate: Gate,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._s = settings
        self._metrics = metrics
        self._gate = gate
        self._standing: Standing | None = None
        self._clock = clock
        self._monotonic = monotonic
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._alarm = Alarm()
        self._recoveries = 0
        self._refused = False
        self._unbrought = Unbrought()
        self._nodes = RollCall(store, settings, metrics, self._alarm, clock)
        self._owed: Mapping[str, Resource] = {}
        self._hearing = Hearing(limit=settings.silent_after_s)
        self._listed_at = -1e12
        self.turned = monotonic()
        self._thread = threading.Thread(target=self._run, name="operator-loop", daemon=True)
        for kind in FED:
            store.feed(kind)

    def start(self) -> None:
        """Begin to turn."""
        self._store.follow_leases(self._s.namespace)
        self._store.follow(FOLLOWED, told=self._wake.set, saw=self._alarm.heard)
        self._thread.start()

    def close(self) -> None:
        """End after the pass that runs; what it has not written the next operator writes."""
        self._stop.set()
        self._wake.set()
        self._alarm.ring()
        self._thread.join(timeout=20.0)
        with contextlib.suppress(BlurfleetError):
            self._gate.release()  # else the Lease runs out by itself

    def saw(self, kind: str, change: str | None, body: Mapping[str, Any]) -> None:
        """Take one change from a watch: `change` is ADDED, MODIFIED, DELETED, or None at the first listing."""
        self._unbrought.brought(kind, body)
        self._store.offer(kind, change or "ADDED", body)
        self._wake.set()

    @property
    def hearing(self) -> Hearing:
        """Return what was last heard of nodes; any thread may ask."""
        return self._hearing

    @property
    def stale(self) -> bool:
        """Tell whether the loop has not come round for too long."""
        return self._monotonic() - self.turned > self._s.stale_after_s

    @property
    def blind(self) -> dict[str, int]:
        """Return the kinds whose watch brings nothing, each with how many changes only a listing found."""
        return self._unbrought.overdue(self._monotonic(), self._store.holds)

    def _run(self) -> None:
        due = 0.0
        while not self._stop.is_set():
            woken = self._wake.wait(timeout=max(0.0, min(due - self._monotonic(), self._gate.every_s)))
            began = self._monotonic()
            if not self._acts():
                due = 0.0
                with contextlib.suppress(BlurfleetError):
                    self._hear()  # so that who takes over knows who is silent
                self.turned = self._monotonic()
                self._stop.wait(self._gate.every_s)
                continue
            if not woken and began < due:
                self.turned = began
                continue
            self._wake.clear()
            due = self._turn() + self._monotonic()
            took = self._monotonic() - began
            self.turned = self._monotonic()
            # A pass over a large fleet takes long while thousands of changes arrive: rest in proportion.
            self._alarm.wait(min(_LONGEST_REST_S, max(self._s.gap_s, took / 2)))
        self._pay()

    def _pay(self) -> None:
        """Record what was judged and not yet recorded: the nodes may report it no more."""
        until = self._monotonic() + _LAST_WORDS_S
        with contextlib.suppress(BlurfleetError):
            spread(
                self._store.apply,
                list(self._owed.values()),
                threads=self._s.writers,
                while_=lambda: self._monotonic() < until,
            )

    def _acts(self) -> bool:
        """Tell whether this operator acts now; one that begins to lists everything anew, as it saw nothing before."""
        try:
            standing = self._gate.look()
        except StoreConflict:
            return False  # another operator wrote in this moment; look again
        except BlurfleetError as error:
            self._metrics.away.inc()
            _log.warning("peers cannot be asked", reason=error.reason.value, message=error.message, fix=error.fix)
            return False
        if standing != self._standing:
            self._unbrought.forget()  # in standby nothing is watched
            if standing.acts:
                self._listed_at = -1e12
            _log.info("operator", acts=standing.acts, reason=standing.reason.value, message=standing.message)
            self._standing = standing
        self._metrics.acting.set(standing.acts)
        return standing.acts

    def _turn(self) -> float:
        """Turn once; return after how many seconds to turn again though nothing changes."""
        try:
            self._freshen()
            self._metrics.unbrought.set(sum(self.blind.values()))
            more = self._nodes.register()
            self._listen()
            done = self._settle()
            # After what is due: when many fall silent at once, no class may wait for all of them to be written.
            more = self._nodes.doubt(self._hearing) or more
            self._store.settle_events()
        except StoreError as error:
            self._metrics.away.inc()
            _log.warning("store is away", reason=error.reason.value, message=error.message)
            return _AWAY_S
        except Exception:
            # A defect in one pass must not end the next; liveness stays true, the counter tells.
            self._metrics.failures.inc()
            _log.exception("pass failed")
            return _AWAY_S
        if more:
            self._wake.set()
        self._refused = self._refused or self._nodes.refused or done.failures > 0
        again = random.uniform(0.5, 1.0) * _AGAIN_S if done.failures else self._s.resync_s
        return min(again, done.requeue_after)

    def _freshen(self) -> None:
        """List everything anew where changes may have been missed: at the start, after an outage, now and then."""
        recoveries = self._store.recoveries
        age = self._monotonic() - self._listed_at
        # A refused write may mean that what was decided on is no longer there.
        due = age > self._s.relist_s or (self._refused and age > _DOUBTED_S)
        if not due and recoveries == self._recoveries:
            return
        for kind in FED:
            self._unbrought.found(kind, self._store.relist(kind), self._monotonic())
        self._recoveries, self._listed_at = recoveries, self._monotonic()
        self._refused = self._nodes.refused = False

    def _listen(self) -> None:
        """Hear the nodes. Before one is called silent the server is asked: it may be the watch that is."""
        before = self._hearing.silent
        self._hear()
        if self._hearing.silent - before:
            self._store.relist("Lease")
            self._hear()

    def _hear(self) -> None:
        away = min(max(_DEAF_S, 3 * self._s.resync_s), self._s.silent_after_s)
        now, wall = self._monotonic(), self._clock()
        self._hearing = hear(self._hearing, self._store.heartbeats(), now, wall=wall, away=away)

    def _settle(self) -> Pass:
        for _ in range(_PASSES_IN_A_ROW):
            began = self._monotonic()
            self._alarm.hush()
            done = reconcile(
                self._store,
                self._clock(),
                writers=self._s.writers,
                hearing=self._hearing,
                history_limit=self._s.history_limit,
                patience_s=_PATIENCE_S,
                owed=self._owed,
                alarmed=self._alarm.rings,
                monotonic=self._monotonic,
            )
            self._owed = done.owed
            took = self._monotonic() - began
            self._metrics.seconds.observe(took)
            if done.writes:
                _log.info("pass", seconds=round(took, 3), writes=done.writes, failures=done.failures)
            self._metrics.failures.inc(done.failures)
            self._metrics.writes.inc(done.writes)
            for gone in done.reverted:
                self._metrics.reverted(gone.device_class, gone.model, gone.reason)
            self.turned = self._monotonic()
            if done.writes == 0 or self._stop.is_set():
                break
        return done
