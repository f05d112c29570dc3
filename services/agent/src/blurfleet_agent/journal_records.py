"""What the journal remembers and how its records fold into one state."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from blurfleet.api.base import Model
from blurfleet.api.nodeengine import TripStatus
from blurfleet.serving.routing import RoutedEngine

JOURNAL_SCHEMA = 1
HOUR_S = 3600.0
KEPT_LATCHES = 64


class Latch(Model):
    """A trip that overrides spec. `sentinel` trips clear only by another attempt or digest; drift may be re-proven."""

    digest: str
    attempt: str
    reason: str
    sentinel: bool
    at: float


class Opened(Model):
    """First record of a file."""

    kind: Literal["opened"] = "opened"
    schema_version: Literal[1] = 1


class SwapIntent(Model):
    """Written before anything moves: from then on the node serves `to` at `epoch`, whatever happens in between."""

    kind: Literal["intent"] = "intent"
    alias: str
    epoch: int
    source: RoutedEngine | None = None
    to: RoutedEngine
    role: Literal["Primary", "Fallback"]
    primary: RoutedEngine
    fallback: RoutedEngine | None = None
    why: Literal["Serve", "Trip", "Rearm", "Quarantine"]
    reason: str
    attempt: str = ""
    latch: Latch | None = None
    trip: TripStatus | None = None
    at: float


class SwapDone(Model):
    """The alias answered at `epoch`."""

    kind: Literal["done"] = "done"
    alias: str
    epoch: int
    swap_ms: float = 0.0


class Latched(Model):
    """A digest was latched without a swap: a candidate that tripped in shadow."""

    kind: Literal["latched"] = "latched"
    alias: str
    latch: Latch


class Unlatched(Model):
    """A drift trip was re-proven: read in journals of before the intent of a Rearm said so itself."""

    kind: Literal["unlatched"] = "unlatched"
    alias: str
    digest: str
    attempt: str


class Tripped(Model):
    """What is known of a trip once the swap is done, e.g. how long it took."""

    kind: Literal["tripped"] = "tripped"
    alias: str
    trip: TripStatus


class AliasState(Model):
    """What the journal knows about one alias. `swaps` are the times of automatic swaps within the last hour."""

    epoch: int = 0
    intent: SwapIntent | None = None
    done: bool = True
    latches: tuple[Latch, ...] = ()
    swaps: tuple[float, ...] = ()
    trips: int = 0
    last_trip: TripStatus | None = None

    def latch(self, digest: str, attempt: str) -> Latch | None:
        """Return the latch that holds (digest, attempt) back, None where there is none."""
        return next((x for x in self.latches if x.digest == digest and x.attempt == attempt), None)


class JournalState(Model):
    """All aliases."""

    schema_version: Literal[1] = 1
    aliases: dict[str, AliasState] = Field(default_factory=dict)

    def of(self, alias: str) -> AliasState:
        """Return the state of `alias`, empty where it was never swapped."""
        return self.aliases.get(alias, AliasState())


class Snapshot(Model):
    """Stands for all records before it, after a compaction."""

    kind: Literal["snapshot"] = "snapshot"
    state: JournalState


Record = Opened | SwapIntent | SwapDone | Latched | Unlatched | Tripped | Snapshot
RECORDS: TypeAdapter[Record] = TypeAdapter(Annotated[Record, Field(discriminator="kind")])


def fold(state: JournalState, record: Record) -> JournalState:
    """Return the state after `record`. Pure; an epoch never goes down."""
    if isinstance(record, Snapshot):
        return record.state
    if isinstance(record, Opened):
        return state
    old = state.of(record.alias)
    return state.model_copy(update={"aliases": {**state.aliases, record.alias: _fold_alias(old, record)}})


def _fold_alias(old: AliasState, record: SwapIntent | SwapDone | Latched | Unlatched | Tripped) -> AliasState:
    match record:
        case SwapIntent():
            if record.epoch <= old.epoch:
                return old
            automatic = record.why in ("Trip", "Rearm")
            recent = tuple(t for t in old.swaps if record.at - t < HOUR_S)
            change: dict[str, object] = {
                "epoch": record.epoch,
                "intent": record,
                "done": False,
                "latches": _with_latch(_rearmed(old.latches, record), record.latch),
                "swaps": (*recent, record.at) if automatic else recent,
                "trips": old.trips + (record.why == "Trip"),
            }
            if record.trip is not None:
                change["last_trip"] = record.trip.model_copy(update={"epoch": record.epoch})
        case SwapDone():
            change = {"done": True} if record.epoch == old.epoch else {}
        case Latched():
            change = {"latches": _with_latch(old.latches, record.latch), "trips": old.trips + 1}
        case Unlatched():
            gone = (record.digest, record.attempt)
            change = {"latches": tuple(x for x in old.latches if (x.digest, x.attempt) != gone)}
        case Tripped():
            change = {"last_trip": record.trip}
    return old.model_copy(update=change)


def _rearmed(latches: tuple[Latch, ...], intent: SwapIntent) -> tuple[Latch, ...]:
    """Return what still holds once `intent` is written: a Rearm lifts the drift latch it was made for, no other."""
    if intent.why != "Rearm":
        return latches
    lifted = (intent.to.digest, intent.attempt)
    return tuple(x for x in latches if x.sentinel or (x.digest, x.attempt) != lifted)


def _with_latch(latches: tuple[Latch, ...], new: Latch | None) -> tuple[Latch, ...]:
    if new is None:
        return latches
    others = tuple(x for x in latches if (x.digest, x.attempt) != (new.digest, new.attempt))
    return (*others, new)[-KEPT_LATCHES:]
