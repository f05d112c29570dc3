"""The swap protocol (journal, routing file, alias, proof, pruning) and what is owed when a step fails.

The gateways follow the routing file, so a swap has happened as soon as that is replaced; the alias catches up.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol

from blurfleet.api.nodeengine import TripStatus
from blurfleet.errors import BlurfleetError, EngineTimeout, NodeError
from blurfleet.reasons import Reason
from blurfleet.serving.routing import Route, RoutedEngine, RoutingTable, read_routing, write_routing
from blurfleet_agent.aliases import VERIFY_TIMEOUT_S, AliasMechanics, Face
from blurfleet_agent.ballast import Ballast
from blurfleet_agent.crash import CrashPoint, no_crash
from blurfleet_agent.journal import Journal
from blurfleet_agent.journal_records import AliasState, Latch, SwapDone, SwapIntent
from blurfleet_agent.recovery import RecoveryPlan, Served

READY_S = 2.0
LEAST_S = 0.05  # a call with no time left at all would say nothing of the alias


class Flips(Protocol):
    """What the swap needs of the alias's mechanics."""

    def ensure(self, engine: str) -> None: ...

    def prepare(self, alias: str, engine: str, epoch: int, face: Face) -> None: ...

    def load(self, alias: str, *, within_s: float) -> None: ...

    def await_ready(self, alias: str, epoch: int, *, within_s: float) -> None: ...

    def verify(self, alias: str, epoch: int, face: Face, *, within_s: float) -> None: ...

    def prune(self, alias: str, epoch: int) -> None: ...

    def is_ready(self, alias: str, epoch: int) -> bool: ...


@dataclass(frozen=True, kw_only=True)
class SwapOrder:
    """What to serve from now on, and why. With `instead_of`, only if that digest is what is served."""

    alias: str
    to: RoutedEngine
    role: Literal["Primary", "Fallback"]
    primary: RoutedEngine
    fallback: RoutedEngine | None
    why: Literal["Serve", "Trip", "Rearm", "Quarantine"]
    reason: Reason
    attempt: str = ""
    latch: Latch | None = None
    trip: TripStatus | None = None
    instead_of: str | None = None


@dataclass(frozen=True, kw_only=True)
class SwapResult:
    """How a swap went. `swap_ms` runs from the order to the alias READY (or given up), `verify_ms` is apart.

    `stale` is the error that left the alias behind, None where it answers at `epoch`.
    """

    epoch: int
    swap_ms: float
    verify_ms: float
    synced: bool
    stale: BlurfleetError | None


class Swapper:
    """Owns journal, routing file and aliases of a node. One swap at a time; safe for many threads.

    An alias has `ready_s` seconds to be loaded and READY; one that has not is owed, and `resume` brings it there.
    """

    def __init__(
        self,
        *,
        journal: Journal,
        routing_file: Path,
        flips: Flips | AliasMechanics,
        ballast: Ballast,
        simulated: bool,
        crash: CrashPoint = no_crash,
        ready_s: float = READY_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._journal = journal
        self._routing_file = routing_file
        self._flips = flips
        self._ballast = ballast
        self._simulated = simulated
        self._crash = crash
        self._clock = clock
        self._lock = threading.RLock()
        self._ready_s = ready_s
        # Apart, one for each alias: a trip must not wait for an alias that does not come up, least of all another's.
        self._alias_locks: dict[str, threading.Lock] = {}
        self._faces: dict[str, Face] = {}
        self._served: dict[str, Served] = {}
        self._floor: dict[str, int] = {}
        self._table = _readable(routing_file)

    def adopt(self, plans: dict[str, RecoveryPlan]) -> None:
        """Take over what recovery found; nothing moves yet, `resume` does."""
        with self._lock:
            for alias, plan in plans.items():
                self._floor[alias] = plan.next_epoch
                if plan.served is not None:
                    self._served[alias] = replace(plan.served, settled=False)

    def learn(self, alias: str, face: Face) -> None:
        """Remember tensors, probe and contract of `alias`: a trip must not have to look them up."""
        with self._lock:
            self._faces[alias] = face

    def face(self, alias: str) -> Face | None:
        """Return what `learn` was told, None before that."""
        return self._faces.get(alias)

    def served(self, alias: str) -> Served | None:
        """Return what `alias` points at, None where it never served."""
        return self._served.get(alias)

    def journal_of(self, alias: str) -> AliasState:
        """Return the journal's state of `alias`."""
        return self._journal.state.of(alias)

    def swap(self, order: SwapOrder) -> SwapResult | None:
        """Serve `order.to`; None when `instead_of` is no longer what is served.

        A journal that cannot be synced does not stop it, an alias that does not follow is owed (`resume`).
        Raises EngineError(EngineNotReady) when the engine does not answer and NodeError when the routing file cannot be
        replaced: then nothing has changed for the gateways.
        """
        with self._lock:
            old = self._served.get(order.alias)
            if order.instead_of is not None and (old is None or old.engine.digest != order.instead_of):
                return None
            began = time.perf_counter()
            self._flips.ensure(order.to.engine)
            self._crash("swap-decided")
            epoch = max(self.journal_of(order.alias).epoch + 1, self._floor.get(order.alias, 1))
            synced = self._journal.append(_intent(order, old, epoch, self._clock()))
            self._crash("journal-written")
            served = Served(
                engine=order.to,
                role=order.role,
                primary=order.primary,
                fallback=order.fallback,
                epoch=epoch,
                settled=False,
            )
            self._replace_routing(order.alias, served)
            self._served[order.alias] = served
            self._crash("routing-replaced")
        stale, ready_at = self._follow(order.alias, hasty=order.why == "Trip")
        return SwapResult(
            epoch=epoch,
            swap_ms=(ready_at - began) * 1e3,
            verify_ms=(time.perf_counter() - ready_at) * 1e3,
            synced=synced,
            stale=stale,
        )

    def resume(self, alias: str) -> BlurfleetError | None:
        """Serve again what was served, at its own epoch; return what still keeps the alias behind.

        Does not count as a swap. Raises NodeError when the routing file cannot be replaced.
        """
        with self._lock:
            served = self._served.get(alias)
            if served is None:
                return None
            try:
                self._flips.ensure(served.engine.engine)
            except BlurfleetError as error:
                return error
            if self.journal_of(alias).epoch < served.epoch:
                self._journal.append(_resumed(alias, served, self._clock()))
            self._replace_routing(alias, served)
        return self._follow(alias, hasty=False)[0]

    def unsettle(self, alias: str) -> None:
        """Note that the alias is gone (a restarted Triton); `resume` brings it back."""
        with self._lock:
            served = self._served.get(alias)
            if served is not None:
                self._served[alias] = replace(served, settled=False)

    def refresh(self, alias: str, fallback: RoutedEngine | None) -> None:
        """Tell the gateways of another standby or contract; epoch and engine stay. Raises NodeError."""
        with self._lock:
            served = self._served.get(alias)
            if served is None or (served.role == "Fallback" and fallback is None):
                return
            fresh = served if served.role == "Fallback" else replace(served, fallback=fallback)
            if self._table.models.get(alias) != self._route(alias, fresh):
                self._replace_routing(alias, fresh)
                self._served[alias] = fresh

    def drained(self, alias: str) -> bool:
        """Tell whether the gateways are told that `alias` wants no new clients; it survives swaps and restarts."""
        route = self._table.models.get(alias)
        return route is not None and route.drained

    def drain(self, alias: str, *, drained: bool) -> None:
        """Tell the gateways whether `alias` wants no new clients here; what is served stays. Raises NodeError."""
        with self._lock:
            known = self._table.models.get(alias)
            if known is not None and known.drained is not drained:
                self._write_routing(self._table.with_route(known.model_copy(update={"drained": drained})))

    def _follow(self, alias: str, *, hasty: bool) -> tuple[BlurfleetError | None, float]:
        """Bring the alias to what is routed by now; return what stopped it and when (perf_counter) it was READY.

        The guard is `hasty`: it has frames of other models to judge, so what takes longer is left to the loop.
        """
        until = time.monotonic() + self._ready_s
        with self._lock:
            lock = self._alias_locks.setdefault(alias, threading.Lock())
        if not lock.acquire(timeout=self._ready_s):
            return EngineTimeout(Reason.ALIAS_STALE, "still held by a swap before", where=alias), time.perf_counter()
        try:
            return self._follow_locked(alias, until, hasty=hasty)
        finally:
            lock.release()

    def _follow_locked(self, alias: str, until: float, *, hasty: bool) -> tuple[BlurfleetError | None, float]:
        def left(least: float) -> float:
            return max(least, until - time.monotonic())

        served, face = self._served[alias], self._faces.get(alias)
        ready_at = time.perf_counter()
        if served.settled:
            return None, ready_at  # whoever held the lock before did it: an alias is loaded once per swap
        if face is None:
            return NodeError(Reason.ALIAS_STALE, "the engine's record is not known yet", where=alias), ready_at
        try:
            self._ballast.retry_when_full(lambda: self._flips.prepare(alias, served.engine.engine, served.epoch, face))
            self._crash("alias-prepared")
            self._flips.load(alias, within_s=left(LEAST_S))
            self._crash("alias-loaded")
            self._flips.await_ready(alias, served.epoch, within_s=left(LEAST_S))
            ready_at = time.perf_counter()
            self._crash("alias-ready")
            self._flips.verify(alias, served.epoch, face, within_s=left(1.0) if hasty else VERIFY_TIMEOUT_S)
            self._crash("alias-verified")
        except BlurfleetError as error:
            return error, time.perf_counter()
        except OSError as error:
            return NodeError(Reason.ALIAS_STALE, f"alias cannot be written: {error}", where=alias), time.perf_counter()
        with contextlib.suppress(OSError):  # an old empty folder costs a little time until the next flip tries again
            self._flips.prune(alias, served.epoch)
        self._crash("alias-pruned")
        with self._lock:
            if self._served[alias].epoch == served.epoch:  # else another swap came in between and follows by itself
                self._journal.append(SwapDone(alias=alias, epoch=served.epoch))
                self._crash("journal-done")
                self._served[alias] = replace(self._served[alias], settled=True)
        return None, ready_at

    def _route(self, alias: str, served: Served) -> Route:
        face = self._faces.get(alias)
        known = self._table.models.get(alias)
        route = Route(
            alias=alias, epoch=served.epoch, serving=served.role, primary=served.primary, fallback=served.fallback
        )
        if known is not None:
            route = route.model_copy(update={"drained": known.drained})
        if face is not None:
            source: Face | Route = face
        elif known is not None:
            source = known
        else:
            return route
        return route.model_copy(
            update={
                "contract": source.contract,
                "contract_hash": source.contract_hash,
                "model_id": source.model_id,
            }
        )

    def _replace_routing(self, alias: str, served: Served) -> None:
        self._write_routing(self._table.with_route(self._route(alias, served)))

    def _write_routing(self, table: RoutingTable) -> None:
        table = table.model_copy(update={"simulated": self._simulated})
        try:
            self._ballast.retry_when_full(lambda: write_routing(self._routing_file, table))
        except OSError as error:
            raise NodeError(
                Reason.STORE_UNWRITABLE, f"routing file cannot be replaced: {error}", where=str(self._routing_file)
            ) from error
        self._table = table


def _readable(path: Path) -> RoutingTable:
    """Return the routing table, empty where it cannot be read: the journal is what recovery trusts then."""
    try:
        return read_routing(path)
    except NodeError:
        return RoutingTable()


def _intent(order: SwapOrder, old: Served | None, epoch: int, now: float) -> SwapIntent:
    return SwapIntent(
        alias=order.alias,
        epoch=epoch,
        source=old.engine if old else None,
        to=order.to,
        role=order.role,
        primary=order.primary,
        fallback=order.fallback,
        why=order.why,
        reason=order.reason,
        attempt=order.attempt,
        latch=order.latch,
        trip=order.trip,
        at=now,
    )


def _resumed(alias: str, served: Served, now: float) -> SwapIntent:
    return SwapIntent(
        alias=alias,
        epoch=served.epoch,
        to=served.engine,
        role=served.role,
        primary=served.primary,
        fallback=served.fallback,
        why="Serve",
        reason=Reason.RESUMED,
        at=now,
    )
