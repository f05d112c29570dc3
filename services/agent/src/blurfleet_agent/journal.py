"""The journal: append-only, framed, synced. What it holds after a power cut is a prefix of what was appended.

Frame: payload length and CRC-32 of the payload, both little-endian uint32, then the payload, one JSON record.
"""

from __future__ import annotations

import os
import struct
import threading
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from blurfleet.errors import NodeError
from blurfleet.reasons import Reason
from blurfleet.store.atomic import sync_folder, write_atomic
from blurfleet_agent.journal_records import RECORDS, JournalState, Opened, Record, Snapshot, fold

_HEAD = struct.Struct("<II")
MAX_RECORD_BYTES = 1 << 20
KEPT_TAILS = 8
COMPACT_BYTES = 256 << 10


def frame(record: Record) -> bytes:
    """Return the bytes of one record as they lie in the file."""
    payload = record.model_dump_json(by_alias=True).encode()
    return _HEAD.pack(len(payload), zlib.crc32(payload)) + payload


@dataclass(frozen=True, kw_only=True)
class Read:
    """What a journal's bytes hold: the records up to the first bad one, where that is, and whether anything follows.

    `unknown` tells that what follows is whole, but no record of this version: a newer agent wrote it.
    """

    records: tuple[Record, ...]
    good_bytes: int
    torn: bool
    unknown: bool = False

    @property
    def state(self) -> JournalState:
        """Return the records folded into one state."""
        state = JournalState()
        for record in self.records:
            state = fold(state, record)
        return state


def parse(data: bytes) -> Read:
    """Return the longest good prefix of `data`; never raises."""
    records: list[Record] = []
    at, unknown = 0, False
    while at < len(data):
        body = at + _HEAD.size
        if body > len(data):
            break
        length, checksum = _HEAD.unpack_from(data, at)
        payload = data[body : body + length]
        if not 0 < length <= MAX_RECORD_BYTES or len(payload) < length or zlib.crc32(payload) != checksum:
            break
        try:
            records.append(RECORDS.validate_json(payload))
        except ValidationError:
            unknown = True
            break
        at = body + length
    return Read(records=tuple(records), good_bytes=at, torn=at < len(data), unknown=unknown)


class Journal:
    """An open journal. Appends are synced before they return; a full disk is answered, not raised.

    `state` is right even while `unsynced` is true: then memory is ahead of the disk, and `settle` tries to catch up.
    `sync` is what puts a file on disk (replaced in tests of full disks). Safe for many threads.
    `cut` says what was cut off at the start and where it is kept, empty where nothing was: nothing is thrown away.
    """

    def __init__(self, path: Path, *, sync: Callable[[int], None] = os.fsync) -> None:
        self.path = path
        self._sync = sync
        self._lock = threading.Lock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            data = path.read_bytes() if path.exists() else b""
        except OSError as error:
            raise NodeError(
                Reason.UNREADABLE_FILE, f"journal cannot be read: {error}", where=str(path), fix="check the node folder"
            ) from error
        read = parse(data)
        self.state = read.state
        self.torn = read.torn
        self.cut = _words(path, data[read.good_bytes :], read) if read.torn else ""
        self._tail = data[read.good_bytes :]
        self.unsynced = False
        self._size = read.good_bytes
        self._handle: int | None = None
        self._begin(new=not data, empty=not read.records)

    def append(self, record: Record) -> bool:
        """Fold `record` into the state and put it on disk; tell whether it is there."""
        with self._lock:
            self.state = fold(self.state, record)
            if self.unsynced:
                return self._compact()
            if not self._write(frame(record)):
                return False
            return self._compact() if self._size > COMPACT_BYTES else True

    def settle(self) -> bool:
        """Put on disk what a full disk kept in memory; tell whether disk and memory agree."""
        with self._lock:
            return self._compact() if self.unsynced else True

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._handle is not None:
                os.close(self._handle)
                self._handle = None

    def _begin(self, *, new: bool, empty: bool) -> None:
        try:
            self._keep_tail()
            self._handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
            if new:
                sync_folder(self.path.parent)  # a synced record in a file that the folder forgets is no record
            os.ftruncate(self._handle, self._size)
            os.lseek(self._handle, self._size, os.SEEK_SET)
        except OSError:
            self.unsynced = True
            return
        if empty:
            self._write(frame(Opened()))

    def _write(self, data: bytes) -> bool:
        try:
            if self._handle is None:
                raise OSError("journal is not open")
            view = memoryview(data)
            while view:
                view = view[os.write(self._handle, view) :]
            self._sync(self._handle)
        except OSError:
            self.unsynced = True
            self._cut_back()
            return False
        self._size += len(data)
        return True

    def _cut_back(self) -> None:
        """Drop a half-written record; if even that fails, its checksum tells the next reader."""
        if self._handle is None:
            return
        try:
            os.ftruncate(self._handle, self._size)
            os.lseek(self._handle, self._size, os.SEEK_SET)
        except OSError:
            return

    def _keep_tail(self) -> None:
        """Put what cannot be read beside the journal before it is cut off. Raises OSError."""
        if not self._tail:
            return
        write_atomic(_aside(self.path, self._tail), self._tail, mode=0o600)
        self._tail = b""
        kept = sorted(self.path.parent.glob(f"{self.path.name}.tail-*"), key=lambda p: p.stat().st_mtime_ns)
        for old in kept[:-KEPT_TAILS]:
            old.unlink(missing_ok=True)

    def _compact(self) -> bool:
        data = frame(Opened()) + frame(Snapshot(state=self.state))
        try:
            self._keep_tail()
            write_atomic(self.path, data, mode=0o600)
            handle = os.open(self.path, os.O_RDWR)
            os.lseek(handle, len(data), os.SEEK_SET)
            self._sync(handle)
        except OSError:
            self.unsynced = True
            return False
        if self._handle is not None:
            os.close(self._handle)
        self._handle, self._size, self.unsynced = handle, len(data), False
        return True


def _aside(path: Path, tail: bytes) -> Path:
    return path.with_name(f"{path.name}.tail-{zlib.crc32(tail):08x}")


def _words(path: Path, tail: bytes, read: Read) -> str:
    what = "records that this version does not know" if read.unknown else "a torn tail"
    return f"{what}, {len(tail)} bytes after {len(read.records)} records, cut off at the start; kept in " + str(
        _aside(path, tail)
    )
