"""What happens at a trip: the swap first, then what is written about it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, Protocol

import structlog

from blurfleet.api.meta import timestamp
from blurfleet.api.nodeengine import TripStatus
from blurfleet.quality.golden import number_text
from blurfleet.quality.state import GuardAction, LatchKind, Trip
from blurfleet.serving.routing import RoutedEngine
from blurfleet_agent.exporter import Metrics
from blurfleet_agent.frame_figures import Compared, Infer, answered
from blurfleet_agent.guard_spans import GuardSpans
from blurfleet_agent.journal import Journal
from blurfleet_agent.journal_records import Latch, Latched, Tripped
from blurfleet_agent.swap import SwapOrder, Swapper
from blurfleet_agent.watch import Watch


class Keeper(Protocol):
    """Where evidence goes: its place is known before it is written, so that a trip can be told at once."""

    def place(self, stage: str, alias: str, digest: str, reason: str, now: float) -> str: ...

    def trip(self, note: TripNote) -> bool: ...


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
    """Acts on trips of all models of a node."""

    def __init__(
        self,
        *,
        swapper: Swapper,
        journal: Journal,
        metrics: Metrics,
        keeper: Keeper,
        spans: GuardSpans | None = None,
    ) -> None:
        self._swapper = swapper
        self._journal = journal
        self._metrics = metrics
        self._keeper = keeper
        self._spans = spans or GuardSpans()
        self._log = structlog.get_logger("blurfleet.trips")

    def live(self, watch: Watch, action: GuardAction, frames: tuple[Compared, ...], now: float) -> TripNote | None:
        """Swap to the standby; None when the engine was no longer served. `write` keeps the evidence afterwards.

        The trip's story goes to disk with the swap's intent, so a crash right after loses none of it. Raises
        EngineError and NodeError when nothing could be moved: the caller keeps the trip and tries again.
        """
        found, primary, fallback = action.trip, watch.primary, watch.fallback
        assert found is not None
        assert primary is not None
        assert fallback is not None
        trip = self._status(watch, primary, found, now, "Live")
        order = SwapOrder(
            alias=watch.alias,
            to=fallback,
            role="Fallback",
            primary=primary,
            fallback=fallback,
            why="Trip",
            reason=found.reason,
            attempt=watch.attempt,
            latch=Latch(
                digest=primary.digest,
                attempt=watch.attempt,
                reason=found.reason,
                sentinel=action.latch is not LatchKind.DRIFT,
                at=now,
            ),
            trip=trip,
            instead_of=primary.digest,
        )
        with self._spans.swap(led_to(found, frames), _swap_facts(watch, found, order)) as span:
            result = self._swapper.swap(order)
            if result is None:
                return None
            span.set_attributes({"blurfleet.epoch": result.epoch, "blurfleet.swap_ms": result.swap_ms})
        self._metrics.swapped(watch.alias, seconds=result.swap_ms / 1e3, epoch=result.epoch)
        self._metrics.tripped(watch.alias, found.reason, swapped=True)
        trip = trip.model_copy(update={"epoch": result.epoch, "swap_ms": result.swap_ms})
        return self._told(
            TripNote(watch=watch, trip=trip, found=found, engine=primary, oracle=watch.oracle, frames=frames, now=now)
        )

    def shadow(self, watch: Watch, found: Trip, frames: tuple[Compared, ...], now: float) -> TripNote:
        """Latch a candidate that tripped in shadow; nothing served changes. `write` keeps the evidence afterwards."""
        assert watch.candidate is not None
        return self._latched(watch, watch.candidate.engine, watch.candidate.oracle, found, frames, now)

    def relatched(self, watch: Watch, found: Trip, frames: tuple[Compared, ...], now: float) -> TripNote:
        """Latch for good a primary that proved broken while it was to be re-proven; `write` keeps the evidence."""
        assert watch.primary is not None
        return self._latched(watch, watch.primary, watch.oracle, found, frames, now)

    def _latched(
        self,
        watch: Watch,
        engine: RoutedEngine,
        oracle: RoutedEngine | None,
        found: Trip,
        frames: tuple[Compared, ...],
        now: float,
    ) -> TripNote:
        latch = Latch(digest=engine.digest, attempt=watch.attempt, reason=found.reason, sentinel=True, at=now)
        self._journal.append(Latched(alias=watch.alias, latch=latch))
        self._metrics.tripped(watch.alias, found.reason, swapped=False)
        return self._told(
            TripNote(
                watch=watch,
                trip=self._status(watch, engine, found, now, "Shadow"),
                found=found,
                engine=engine,
                oracle=oracle,
                frames=frames,
                now=now,
            )
        )

    def write(self, note: TripNote, infer: Infer) -> None:
        """Keep the evidence of a trip that was told, the oracle's answer to the last frame included."""
        frames = note.frames
        if note.oracle is not None and frames:
            frames = (*frames[:-1], answered(frames[-1], note.oracle.engine, infer))
        if not self._keeper.trip(replace(note, frames=frames)):
            lost = note.trip.model_copy(update={"evidence": ""})
            self._journal.append(Tripped(alias=note.watch.alias, trip=lost))

    def _told(self, note: TripNote) -> TripNote:
        trip = note.trip
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
        return note

    def _status(
        self, watch: Watch, engine: RoutedEngine, found: Trip, now: float, stage: Literal["Live", "Shadow"]
    ) -> TripStatus:
        return TripStatus(
            digest=engine.digest,
            set=engine.set,
            attempt=watch.attempt,
            reason=found.reason,
            stage=stage,
            value=number_text(found.value),
            limit=number_text(found.limit),
            metric=found.metric,
            stream=found.stream,
            frame=found.frame,
            frames_to_detect=found.frames_to_detect,
            at=timestamp(now),
            latched=True,
            evidence=self._keeper.place(stage, watch.alias, engine.digest, found.reason, now),
        )


def led_to(found: Trip, frames: tuple[Compared, ...]) -> tuple[Compared, ...]:
    """Return the valid frames of the trip's stream from its first breach to the one that completed it."""
    stream = [frame for frame in frames if frame.sample.stream == found.stream and frame.sample.valid]
    return tuple(stream[-max(1, found.frames_to_detect) :])


def _swap_facts(watch: Watch, found: Trip, order: SwapOrder) -> dict[str, str]:
    return {
        "blurfleet.model": watch.alias,
        "blurfleet.reason": found.reason.value,
        "blurfleet.digest": order.to.digest,
        "blurfleet.engine": order.to.engine,
        "blurfleet.role": order.role,
        "blurfleet.instead_of": order.instead_of or "",
    }
