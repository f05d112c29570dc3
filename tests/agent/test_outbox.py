"""What happened on a node is said once, in order, with the time it happened, however long the store is away."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from blurfleet.api.nodeengine import ModelStatus, NodeEngineStatus, Serving, TripStatus
from blurfleet.deadline import came_true
from blurfleet.errors import StoreError
from blurfleet.reasons import Reason
from blurfleet.store.memory import MemoryStore
from blurfleet.store.port import Event, Ref
from blurfleet_agent.lease import LeaseKeeper
from blurfleet_agent.outbox import Outbox

REF = Ref(kind="NodeEngine", name="orin-0")
DIGEST = "sha256:" + "a" * 64


class FlakyStore(MemoryStore):
    """A store that refuses events while it is away."""

    away = False
    why = Reason.STORE_UNWRITABLE

    def record(self, event: Event) -> None:
        if self.away:
            raise StoreError(self.why, "no answer")
        super().record(event)


def status(epoch: int, role: str = "Primary", trip_at: str = "") -> NodeEngineStatus:
    serving = Serving(digest=DIGEST, engine="bokeh__a", role=role, precision="Mixed", epoch=epoch)
    trip = TripStatus(digest=DIGEST, reason="DEERExceeded", metric="DEER", value="0.4", limit="0.18", at=trip_at)
    model = ModelStatus(name="bokeh", serving=serving, last_trip=trip if trip_at else None)
    return NodeEngineStatus(models=(model,))


def wait(holds: Callable[[], bool]) -> None:
    assert came_true(holds, 10.0, poll_s=0.01)


def said(store: MemoryStore) -> list[tuple[str, float]]:
    return [(e.reason.value, e.at) for e in store.events(REF)]


@pytest.mark.parametrize(
    "why",
    [
        pytest.param(Reason.STORE_UNWRITABLE, id="no answer"),
        pytest.param(Reason.FORBIDDEN, id="a server that has just come up and does not know its roles yet"),
    ],
)
def test_a_trip_while_the_store_is_away_is_said_later_at_its_own_time_before_the_swap(
    tmp_path: Path, why: Reason
) -> None:
    store = FlakyStore()
    store.why = why
    outbox = Outbox(store, REF, tmp_path / "events.json")
    outbox.start()
    outbox.notice(status(1), now=1_800_000_000.0)
    wait(lambda: len(said(store)) == 1)
    store.away = True
    outbox.notice(status(2, "Fallback", "2027-01-15T08:01:00.250Z"), now=1_800_000_061.0)
    outbox.close()
    store.away = False
    again = Outbox(store, REF, tmp_path / "events.json")
    again.start()
    wait(lambda: len(said(store)) == 3)
    again.notice(status(2, "Fallback", "2027-01-15T08:01:00.250Z"), now=1_800_000_090.0)
    again.close()
    assert said(store) == [
        ("Serving", 1_800_000_000.0),
        ("DEERExceeded", 1_800_000_060.25),
        ("Swapped", 1_800_000_060.251),
    ]


def test_an_agent_killed_before_it_noted_what_it_said_says_nothing_twice(tmp_path: Path) -> None:
    store, kept = FlakyStore(), tmp_path / "events.json"
    store.away = True
    outbox = Outbox(store, REF, kept)
    outbox.notice(status(2, "Fallback", "2027-01-15T08:01:00.250Z"), now=1_800_000_061.0)
    owed = kept.read_bytes()
    store.away = False
    for _ in range(2):
        kept.write_bytes(owed)
        outbox = Outbox(store, REF, kept)
        outbox.start()
        wait(lambda: b'"waiting": []' in kept.read_bytes())
        outbox.close()
    assert said(store) == [("DEERExceeded", 1_800_000_060.25), ("Swapped", 1_800_000_060.251)]


def test_a_torn_events_file_is_as_if_nothing_had_been_said(tmp_path: Path) -> None:
    (tmp_path / "events.json").write_text('{"schemaVersion": 1, "sai')
    store = MemoryStore()
    outbox = Outbox(store, REF, tmp_path / "events.json")
    outbox.start()
    outbox.notice(status(4), now=5.0)
    wait(lambda: said(store) == [("Serving", 5.0)])
    outbox.close()


def test_a_lease_is_tried_again_soon_after_a_failure_and_rests_while_the_loop_hangs() -> None:
    turning, failing, beats, tries = threading.Event(), threading.Event(), [], []

    def beat() -> None:
        tries.append(1)
        if failing.is_set():
            raise StoreError(Reason.STORE_UNWRITABLE, "no answer")
        beats.append(1)

    failing.set()
    turning.set()
    keeper = LeaseKeeper(beat, turning.is_set, every_s=60.0)
    keeper.start()
    wait(lambda: len(tries) >= 1)
    failing.clear()
    wait(lambda: len(beats) == 1)
    keeper.close()
    turning.clear()
    hung = LeaseKeeper(beat, turning.is_set, every_s=0.01)
    before = len(tries)
    hung.start()
    hung.close()
    assert len(tries) == before
