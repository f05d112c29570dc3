"""What happens at a trip: the swap first, then what is written about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import structlog

from blurfleet.api.meta import timestamp
from blurfleet.api.nodeengine import TripStatus
from blurfleet.quality.golden import number_text
from blurfleet.quality.state import GuardAction, Trip
from blurfleet.serving.routing import RoutedEngine
from blurfleet_agent.exporter import Metrics
from blurfleet_agent.frame_figures import Compared, Infer, answered
from blurfleet_agent.journal import Journal
from blurfleet_agent.journal_records import Latch, Latched, Tripped
from blurfleet_agent.swap import SwapOrder, Swapper
from blurfleet_agent.watch import Watch

Keep = Callable[["TripNote"], str]


@dataclass(frozen=True, kw_only=True)
class TripNote:
    """All that evidence of a live or shadow trip is made of."""

    watch: Watch
    trip: TripStatus
    found: Trip
    engine: RoutedEngine
    oracle: RoutedEngine | None
    frames: tuple[Compared, ...]
    now: float


class TripDesk:
    """Acts on trips of all models of a node. `keep` writes evidence and returns its folder, empty on failure."""

    def __init__(self, *, swapper: Swapper, journal: Journal, metrics: Metrics, keep: Keep) -> None:
        self._swapper = swapper
        self._journal = journal
        self._metrics = metrics
        self._keep = keep
        self._log = structlog.get_logger("blurfleet.trips")

    def live(
        self,
        watch: Watch,
        action: GuardAction,
        frames: tuple[Compared, ...],
        now: float,
        infer: Infer,
    ) -> TripStatus | None:
        """Swap to the standby, then tell the story; None when the engine was no longer served.

        Raises EngineError and NodeError when nothing could be moved: the caller keeps the trip and tries again.
        """
        found, primary, fallback = action.trip, watch.primary, watch.fallback
        assert found is not None
        assert primary is not None
        assert fallback is not None
        latch = Latch(
            digest=primary.digest,
            attempt=watch.attempt,
            reason=found.reason,
            sentinel=action.latch is not None and action.latch.value != "Drift",
            at=now,
        )
        result = self._swapper.swap(
            SwapOrder(
                alias=watch.alias,
                to=fallback,
                role="Fallback",
                primary=primary,
                fallback=fallback,
                why="Trip",
                reason=found.reason,
                attempt=watch.attempt,
                latch=latch,
                instead_of=primary.digest,
            )
        )
        if result is None:
            return None
        self._metrics.swapped(watch.alias, seconds=result.swap_ms / 1e3, epoch=result.epoch)
        self._metrics.tripped(watch.alias, found.reason, swapped=True)
        trip = replace_trip(
            _status(watch, primary, found, now), stage="Live", epoch=result.epoch, swap_ms=result.swap_ms
        )
        complete = frames
        if watch.oracle is not None and frames:
            complete = (*frames[:-1], answered(frames[-1], watch.oracle.engine, infer))
        return self._tell(
            TripNote(
                watch=watch,
                trip=trip,
                found=found,
                engine=primary,
                oracle=watch.oracle,
                frames=complete,
                now=now,
            )
        )

    def shadow(self, watch: Watch, found: Trip, frames: tuple[Compared, ...], now: float) -> TripStatus:
        """Latch a candidate that tripped in shadow and tell the story; nothing served changes."""
        assert watch.candidate is not None
        engine = watch.candidate.engine
        latch = Latch(digest=engine.digest, attempt=watch.attempt, reason=found.reason, sentinel=True, at=now)
        self._journal.append(Latched(alias=watch.alias, latch=latch))
        self._metrics.tripped(watch.alias, found.reason, swapped=False)
        trip = replace_trip(_status(watch, engine, found, now), stage="Shadow")
        return self._tell(
            TripNote(
                watch=watch,
                trip=trip,
                found=found,
                engine=engine,
                oracle=watch.candidate.oracle,
                frames=frames,
                now=now,
            )
        )

    def _tell(self, note: TripNote) -> TripStatus:
        trip = replace_trip(note.trip, evidence=self._keep(note))
        face = self._swapper.face(note.watch.alias)
        self._journal.append(Tripped(alias=note.watch.alias, trip=trip))
        self._log.warning(
            "tripped",
            model=note.watch.alias,
            model_id=face.model_id if face is not None else "",
            stage=trip.stage,
            reason=trip.reason,
            value=trip.value,
            limit=trip.limit,
            digest=trip.digest,
            stream=trip.stream,
            frame=trip.frame,
            trace_id=note.found.trace,
            epoch=trip.epoch,
            swap_ms=round(trip.swap_ms, 3),
            evidence=trip.evidence,
        )
        return trip


def replace_trip(trip: TripStatus, **changes: object) -> TripStatus:
    """Return `trip` with `changes`."""
    return trip.model_copy(update=changes)


def _status(watch: Watch, engine: RoutedEngine, found: Trip, now: float) -> TripStatus:
    return TripStatus(
        digest=engine.digest,
        set=engine.set,
        attempt=watch.attempt,
        reason=found.reason,
        value=number_text(found.value),
        limit=number_text(found.limit),
        metric=found.metric,
        stream=found.stream,
        frame=found.frame,
        frames_to_detect=found.frames_to_detect,
        at=timestamp(now),
        latched=True,
    )
