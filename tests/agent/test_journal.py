"""The journal holds a prefix of what was appended, whatever happened to its bytes, and a full disk does not stop it."""

from __future__ import annotations

import errno
import os
import struct
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blurfleet.api.nodeengine import TripStatus
from blurfleet.errors import NodeError
from blurfleet.serving.routing import RoutedEngine
from blurfleet_agent import journal as journal_module
from blurfleet_agent.journal import Journal, frame, parse
from blurfleet_agent.journal_records import (
    JournalState,
    Latch,
    Latched,
    Opened,
    Record,
    Snapshot,
    SwapDone,
    SwapIntent,
    Tripped,
    Unlatched,
    fold,
)

A = RoutedEngine(engine="bokeh__a", digest="sha256:" + "a" * 64, precision="Mixed")
B = RoutedEngine(engine="bokeh__b", digest="sha256:" + "b" * 64, precision="FP32")


def intent(
    epoch: int, to: RoutedEngine = B, *, why: str = "Trip", at: float = 100.0, latch: bool = False, attempt: str = ""
) -> SwapIntent:
    held = Latch(digest=A.digest, attempt="a1", reason="NonFiniteOutput", sentinel=True, at=at) if latch else None
    return SwapIntent.model_validate(
        {
            "alias": "bokeh",
            "epoch": epoch,
            "to": to,
            "role": "Fallback",
            "primary": A,
            "why": why,
            "reason": "x",
            "attempt": attempt,
            "latch": held,
            "at": at,
        }
    )


RECORDS: list[Record] = [
    Opened(),
    intent(1, A, why="Serve"),
    SwapDone(alias="bokeh", epoch=1, swap_ms=4.2),
    intent(2, latch=True),
    SwapDone(alias="bokeh", epoch=2),
    Tripped(alias="bokeh", trip=TripStatus(digest=A.digest, reason="NonFiniteOutput")),
    Unlatched(alias="bokeh", digest=A.digest, attempt="a1"),
]
BYTES = b"".join(frame(r) for r in RECORDS)


def test_what_was_appended_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "journal.bin"
    written = Journal(path)
    assert all(written.append(r) for r in RECORDS[1:])
    written.close()
    again = Journal(path)
    assert again.state == written.state
    assert not again.torn
    known = again.state.of("bokeh")
    assert (known.epoch, known.done, known.trips, known.swaps, known.latches) == (2, True, 1, (100.0,), ())
    again.close()


@given(cut=st.integers(min_value=0, max_value=len(BYTES)))
def test_any_truncation_reads_a_prefix(cut: int) -> None:
    read = parse(BYTES[:cut])
    assert list(read.records) == RECORDS[: len(read.records)]
    assert read.torn == (read.good_bytes < cut)
    assert len(read.records) == len(RECORDS) or cut < len(BYTES)


@given(at=st.integers(min_value=0, max_value=len(BYTES) - 1), flip=st.integers(min_value=1, max_value=255))
def test_any_flipped_byte_reads_a_prefix_that_ends_before_it(at: int, flip: int) -> None:
    spoilt = bytearray(BYTES)
    spoilt[at] ^= flip
    read = parse(bytes(spoilt))
    assert list(read.records) == RECORDS[: len(read.records)]
    assert read.torn
    assert read.good_bytes <= at


@given(junk=st.binary(max_size=200))
def test_any_tail_is_cut_off_and_appending_goes_on_behind_the_good_part(
    junk: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("journal") / "journal.bin"
    path.write_bytes(BYTES + junk)
    opened = Journal(path)
    assert opened.torn == bool(junk)
    assert opened.append(intent(3))
    opened.close()
    assert list(parse(path.read_bytes()).records) == [*RECORDS, intent(3)]
    assert [p.read_bytes() for p in path.parent.glob("journal.bin.tail-*")] == ([junk] if junk else [])


def framed(payload: bytes) -> bytes:
    return struct.pack("<II", len(payload), zlib.crc32(payload)) + payload


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(b'{"kind": "promoted", "alias": "bokeh"}', id="a kind of record that is not known here"),
        pytest.param(b'{"kind": "opened", "schemaVersion": 2}', id="a newer schema"),
    ],
)
def test_what_a_newer_agent_wrote_is_kept_aside_and_said(tmp_path: Path, payload: bytes) -> None:
    path, alien = tmp_path / "journal.bin", framed(payload) + frame(intent(9))
    path.write_bytes(BYTES + alien)
    opened = Journal(path)
    (kept,) = tmp_path.glob("journal.bin.tail-*")
    assert kept.read_bytes() == alien
    assert "does not know" in opened.cut
    assert str(kept) in opened.cut
    opened.close()
    again = Journal(path)
    assert again.cut == ""
    again.close()


def test_a_bad_tail_that_cannot_be_kept_is_not_cut_off_until_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, alien = tmp_path / "journal.bin", framed(b'{"kind": "promoted"}')
    path.write_bytes(BYTES + alien)
    full = [True]
    real = journal_module.write_atomic

    def write(where: Path, data: bytes, *, mode: int = 0o600) -> None:
        if full[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(where, data, mode=mode)

    monkeypatch.setattr(journal_module, "write_atomic", write)
    opened = Journal(path)
    assert not opened.append(intent(3))
    assert path.read_bytes() == BYTES + alien
    full[0] = False
    assert opened.settle()
    opened.close()
    assert [p.read_bytes() for p in tmp_path.glob("journal.bin.tail-*")] == [alien]
    assert parse(path.read_bytes()).state.of("bokeh").epoch == 3


def test_a_new_journal_is_in_its_folder_for_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[tuple[Path, bool]] = []
    path = tmp_path / "node" / "journal.bin"
    monkeypatch.setattr(journal_module, "sync_folder", lambda folder: synced.append((folder, path.exists())))
    Journal(path).close()
    assert synced == [(tmp_path / "node", True)]
    Journal(path).close()
    assert len(synced) == 1


@given(epochs=st.lists(st.integers(min_value=1, max_value=50), max_size=20))
def test_an_epoch_never_goes_down(epochs: list[int]) -> None:
    state, highest = JournalState(), 0
    for epoch in epochs:
        state = fold(state, intent(epoch))
        highest = max(highest, epoch)
        assert state.of("bokeh").epoch == highest


def test_a_done_of_another_epoch_settles_nothing() -> None:
    state = fold(fold(JournalState(), intent(2)), SwapDone(alias="bokeh", epoch=1))
    assert not state.of("bokeh").done


def test_only_automatic_swaps_of_the_last_hour_count_as_flaps() -> None:
    state = JournalState()
    for epoch, (why, at) in enumerate([("Trip", 0.0), ("Serve", 10.0), ("Trip", 3000.0), ("Rearm", 3700.0)], start=1):
        state = fold(state, intent(epoch, why=why, at=at))
    assert state.of("bokeh").swaps == (3000.0, 3700.0)


def test_a_latch_belongs_to_digest_and_attempt(tmp_path: Path) -> None:
    latch = Latch(digest=A.digest, attempt="a1", reason="DEERExceeded", sentinel=False, at=1.0)
    known = fold(JournalState(), Latched(alias="bokeh", latch=latch)).of("bokeh")
    assert known.latch(A.digest, "a1") == latch
    assert known.latch(A.digest, "a2") is None
    assert known.latch(B.digest, "a1") is None


@pytest.mark.parametrize(
    ("held", "rearmed", "left"),
    [
        pytest.param([("a1", False)], "a1", [], id="the drift latch it was made for goes with the intent itself"),
        pytest.param([("a1", True)], "a1", [("a1", True)], id="a sentinel latch that came meanwhile stays"),
        pytest.param([("a2", False)], "a1", [("a2", False)], id="a latch of another attempt stays"),
    ],
)
def test_a_rearm_lifts_its_own_drift_latch_and_no_other(
    held: list[tuple[str, bool]], rearmed: str, left: list[tuple[str, bool]]
) -> None:
    state = JournalState()
    for attempt, sentinel in held:
        latch = Latch(digest=A.digest, attempt=attempt, reason="DEERExceeded", sentinel=sentinel, at=1.0)
        state = fold(state, Latched(alias="bokeh", latch=latch))
    state = fold(state, intent(2, A, why="Rearm", attempt=rearmed))
    assert [(x.attempt, x.sentinel) for x in state.of("bokeh").latches] == left


def test_a_trip_right_after_a_rearm_is_latched_whatever_the_loop_still_has_to_say() -> None:
    drift = Latch(digest=A.digest, attempt="a1", reason="DEERExceeded", sentinel=False, at=1.0)
    state = fold(JournalState(), Latched(alias="bokeh", latch=drift))
    state = fold(state, intent(2, A, why="Rearm", attempt="a1"))
    sentinel = Latch(digest=A.digest, attempt="a1", reason="NonFiniteOutput", sentinel=True, at=2.0)
    tripped = intent(3, B).model_copy(update={"latch": sentinel})
    assert fold(state, tripped).of("bokeh").latches == (sentinel,)
    assert fold(fold(state, tripped), SwapDone(alias="bokeh", epoch=2)).of("bokeh").latches == (sentinel,)


def test_compaction_keeps_the_state_and_bounds_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "COMPACT_BYTES", 2000)
    path = tmp_path / "journal.bin"
    long = Journal(path)
    for epoch in range(1, 60):
        assert long.append(intent(epoch))
        assert path.stat().st_size < 4000
    long.close()
    read = parse(path.read_bytes())
    assert any(isinstance(r, Snapshot) for r in read.records)
    assert read.state == long.state


class FullDisk:
    """Refuses to sync while `full`: stands in for a disk without room."""

    full = False

    def __call__(self, handle: int) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(handle)


def test_a_full_disk_keeps_the_state_in_memory_says_so_and_catches_up(tmp_path: Path) -> None:
    disk, path = FullDisk(), tmp_path / "journal.bin"
    kept = Journal(path, sync=disk)
    assert kept.append(intent(1, A, why="Serve"))
    disk.full = True
    assert not kept.append(intent(2, latch=True))
    assert kept.unsynced
    assert kept.state.of("bokeh").epoch == 2
    assert parse(path.read_bytes()).state.of("bokeh").epoch == 1
    disk.full = False
    assert kept.settle()
    assert not kept.unsynced
    assert parse(path.read_bytes()).state == kept.state
    assert kept.append(SwapDone(alias="bokeh", epoch=2))
    kept.close()
    assert parse(path.read_bytes()).state.of("bokeh").done


def test_a_journal_that_cannot_be_read_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "journal.bin").mkdir()
    with pytest.raises(NodeError, match="journal cannot be read"):
        Journal(tmp_path / "journal.bin")
