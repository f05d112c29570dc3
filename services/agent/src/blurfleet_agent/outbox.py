"""Events of a node: noticed from its status, kept on disk, said in order once the store can be reached.

Each carries the time at which it happened, however late it is said. What was said is remembered too, so that neither a
restart nor an outage repeats it.
"""

from __future__ import annotations

import json
import random
import threading
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import structlog

from blurfleet.api.nodeengine import ModelStatus, NodeEngineStatus, TripStatus
from blurfleet.errors import BlurfleetError
from blurfleet.identity import digest12
from blurfleet.reasons import Reason
from blurfleet.store.atomic import write_atomic
from blurfleet.store.port import Event, Ref, Store

SCHEMA = 1
SOURCE = "agent"
_MOST_WAITING = 1000
# A server that has just come up refuses everybody until it knows its roles again: Forbidden is waited out as well.
_AWAY = (Reason.STORE_UNREADABLE, Reason.STORE_UNWRITABLE, Reason.CONFLICT, Reason.FORBIDDEN)
_log = structlog.get_logger("blurfleet.outbox")


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """One event that was not said yet; `at` is seconds since the epoch."""

    reason: str
    message: str
    type: Literal["Normal", "Warning"]
    at: float


@dataclass(kw_only=True)
class _Memory:
    said: dict[str, list[Any]] = field(default_factory=dict)  # model -> [epoch, time of the last trip]
    waiting: list[Waiting] = field(default_factory=list)


def noticed(model: ModelStatus, epoch: int, tripped_at: str, now: float) -> list[Waiting]:
    """Return what happened to `model` since `epoch` and the trip at `tripped_at`, in order of time. Pure."""
    found = []
    trip, serving = model.last_trip, model.serving
    if trip is not None and trip.at != tripped_at:
        found.append(
            Waiting(reason=_reason(trip), message=_trip_words(model, trip), type="Warning", at=_time(trip, now))
        )
    if serving is not None and serving.epoch != epoch:
        fallback = serving.role == "Fallback"
        found.append(
            Waiting(
                reason=Reason.SWAPPED.value if fallback else Reason.SERVING.value,
                message=f"{model.name}: {serving.engine} ({serving.precision}) serves as {serving.role} "
                f"at epoch {serving.epoch}",
                type="Warning" if fallback else "Normal",
                at=_swapped_at(trip, now) if found and fallback else now,
            )
        )
    return found


def _swapped_at(trip: TripStatus | None, now: float) -> float:
    # At least a millisecond, which is what an event's time holds: cause and effect stay in order.
    return _time(trip, now) + max(1.0, trip.swap_ms if trip is not None else 0.0) / 1e3


def _reason(trip: TripStatus) -> str:
    return trip.reason if trip.reason in frozenset(Reason) else Reason.TRIPPED.value


def _trip_words(model: ModelStatus, trip: TripStatus) -> str:
    figure = f": {trip.metric} {trip.value}, limit {trip.limit}" if trip.metric else ""
    return f"{model.name}: {digest12(trip.digest)} tripped in {trip.stage}{figure} (attempt {trip.attempt})"


def _time(trip: TripStatus | None, now: float) -> float:
    try:
        return datetime.fromisoformat(trip.at).timestamp() if trip is not None and trip.at else now
    except ValueError:
        return now


class Outbox:
    """Owned by the node's loop (`notice`); a thread of its own says what waits."""

    def __init__(self, store: Store, ref: Ref, path: Path) -> None:
        self._store = store
        self._ref = ref
        self._path = path
        self._lock = threading.Lock()
        self._memory = _read(path)
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="outbox", daemon=True)

    def start(self) -> None:
        """Begin to say what waits."""
        self._wake.set()
        self._thread.start()

    def close(self) -> None:
        """Stop; what waits is on disk."""
        self._stop.set()
        self._wake.set()
        self._thread.join(timeout=10.0)

    def notice(self, status: NodeEngineStatus, now: float) -> None:
        """Keep what happened since the last call. Never raises: events are a courtesy, never the truth."""
        fresh: list[Waiting] = []
        with self._lock:
            for model in status.models:
                epoch, tripped_at = self._memory.said.get(model.name, [0, ""])
                found = noticed(model, epoch, tripped_at, now)
                if found:
                    serving, trip = model.serving, model.last_trip
                    latest = [serving.epoch if serving else epoch, trip.at if trip else tripped_at]
                    self._memory.said[model.name] = latest
                    fresh += found
            if not fresh:
                return
            self._memory.waiting = [*self._memory.waiting, *fresh][-_MOST_WAITING:]
            self._keep()
        self._wake.set()

    def _run(self) -> None:
        failures = 0
        while not self._stop.is_set():
            self._wake.wait()
            self._wake.clear()
            while not self._stop.is_set() and self._memory.waiting:
                if self._say(self._memory.waiting[0]):
                    failures = 0
                    with self._lock:
                        del self._memory.waiting[0]
                        self._keep()
                else:
                    failures += 1
                    self._stop.wait(min(15.0, 0.5 * 2.0 ** min(failures, 6)) * random.uniform(0.5, 1.0))

    def _say(self, waiting: Waiting) -> bool:
        """Say one event; tell whether it is done with: refused for good counts as done."""
        event = Event(
            involved=self._ref,
            reason=Reason(waiting.reason),
            message=waiting.message,
            type=waiting.type,
            at=waiting.at,
            source=SOURCE,
            transition=f"{waiting.at:.6f}",
        )
        try:
            self._store.record(event)
        except BlurfleetError as error:
            if error.reason in _AWAY:
                return False
            _log.warning("event refused", reason=error.reason, error=str(error))
        except OSError as error:
            _log.warning("event not written", error=str(error))
            return False
        return True

    def _keep(self) -> None:
        body = {
            "schemaVersion": SCHEMA,
            "said": self._memory.said,
            "waiting": [asdict(w) for w in self._memory.waiting],
        }
        try:
            write_atomic(self._path, json.dumps(body).encode(), sync=False)
        except OSError as error:
            _log.warning("events not kept", error=str(error))


def _read(path: Path) -> _Memory:
    try:
        body = json.loads(path.read_bytes())
        if body["schemaVersion"] != SCHEMA:
            return _Memory()
        said = {str(k): [int(v[0]), str(v[1])] for k, v in body["said"].items()}
        return _Memory(said=said, waiting=[Waiting(**w) for w in body["waiting"]])
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return _Memory()
