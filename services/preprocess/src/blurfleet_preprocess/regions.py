"""Shared memory that local clients register: opened by key, checked, read and written within its bounds.

A client could make the gateway read or write what the client itself may not. So a key is a plain file of /dev/shm that
belongs to the client's user or is open to everybody, and never one of Triton's or the gateway's own.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from blurfleet.errors import InvalidInput, UnknownName
from blurfleet.reasons import Reason

FOLDER = Path("/dev/shm")
MAX_REGIONS = 64
MAX_OF_ONE = 16
"""Regions of one client, so that no client takes all."""
MAX_BYTES = 1 << 28
_KEY = re.compile(r"/?[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)
_NAME = re.compile(r"[!-~]{1,128}", re.ASCII)
_NOT_CLIENTS = ("triton_", "blurfleet", "sem.")


@dataclass(frozen=True, kw_only=True)
class Neighbour:
    """A client on this machine: the name it was let in by, and the user whose process asks, None where unknown."""

    client: str
    user: int | None


@dataclass(frozen=True, kw_only=True)
class RegionRef:
    """A piece of a registered region, in bytes from the region's own offset."""

    name: str
    offset: int
    byte_size: int


@dataclass(frozen=True, kw_only=True)
class Region:
    """One registered region. `descriptor` is held open: whoever replaces the key's file changes nothing here."""

    name: str
    key: str
    offset: int
    byte_size: int
    descriptor: int
    writable: bool


@dataclass
class Regions:
    """The regions of all clients, each client's under names of its own. Safe for many threads."""

    folder: Path = FOLDER
    _known: dict[tuple[Neighbour, str], Region] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def register(self, who: Neighbour, *, name: str, key: str, offset: int, byte_size: int) -> None:
        """Open `key` for the client `who` as `name`.

        Raises InvalidInput: InvalidRequest for a bad name, key, bound or a name in use, Forbidden for what is not the
        client's to share, NotFound where there is no such key.
        """
        if not _NAME.fullmatch(name):
            raise _refused(f"{name[:40]!r} is no name of a region")
        descriptor, writable = _opened(self.folder, key, who.user)
        try:
            size = os.fstat(descriptor).st_size
            if not (0 <= offset and 0 < byte_size <= MAX_BYTES and offset + byte_size <= size):
                raise _refused(f"{byte_size} bytes from {offset} do not lie in {key!r} of {size} (at most {MAX_BYTES})")
            with self._lock:
                if (who, name) in self._known:
                    raise _refused(f"{name!r} is registered already", fix="unregister it first")
                if len(self._known) >= MAX_REGIONS:
                    raise _refused(f"{MAX_REGIONS} regions are registered", fix="unregister those no longer used")
                if [owner for owner, _ in self._known].count(who) >= MAX_OF_ONE:
                    raise _refused(f"{MAX_OF_ONE} regions are this client's", fix="unregister those no longer used")
                self._known[who, name] = Region(
                    name=name, key=key, offset=offset, byte_size=byte_size, descriptor=descriptor, writable=writable
                )
        except BaseException:
            os.close(descriptor)
            raise

    def unregister(self, who: Neighbour, name: str = "") -> None:
        """Close the client's region `name`, all of the client's without a name; an unknown one is no error."""
        with self._lock:
            keys = [k for k in self._known if k[0] == who and name in ("", k[1])]
            for key in keys:
                os.close(self._known.pop(key).descriptor)

    def status(self, who: Neighbour, name: str = "") -> list[Region]:
        """Return the client's region `name`, all of the client's without one. Raises UnknownName."""
        with self._lock:
            found = [r for (owner, n), r in self._known.items() if owner == who and name in ("", n)]
        if name and not found:
            raise _unknown(name)
        return found

    def read(self, who: Neighbour, ref: RegionRef) -> memoryview:
        """Return a copy of the bytes: what is checked and what the engine gets stay the same bytes.

        Raises UnknownName, InvalidInput (outside the region, or the region has shrunk).
        """
        with self._lent(who, ref) as (region, descriptor):
            data = os.pread(descriptor, ref.byte_size, region.offset + ref.offset)
        if len(data) != ref.byte_size:
            raise _refused(f"region {ref.name!r} holds {len(data)} of {ref.byte_size} bytes")
        return memoryview(data)

    def check(self, who: Neighbour, ref: RegionRef) -> None:
        """Raise UnknownName or InvalidInput where `ref` cannot be written."""
        with self._lock:
            if not self._piece(who, ref).writable:
                raise InvalidInput(Reason.FORBIDDEN, f"region {ref.name!r} is not writable", where="outputs")

    def write(self, who: Neighbour, ref: RegionRef, matte: npt.NDArray[np.float32]) -> None:
        """Write the matte to the start of `ref`. Raises UnknownName, InvalidInput (too small, no longer there)."""
        data = np.ascontiguousarray(matte).data
        if data.nbytes > ref.byte_size:
            raise _refused(f"{data.nbytes} bytes do not fit into {ref.byte_size} of region {ref.name!r}")
        with self._lent(who, ref) as (region, descriptor):
            if os.fstat(descriptor).st_size < region.offset + ref.offset + data.nbytes:
                raise _refused(f"region {ref.name!r} has shrunk")  # writing would grow the file anew
            os.pwrite(descriptor, data, region.offset + ref.offset)

    def close(self) -> None:
        """Close every region."""
        with self._lock:
            for region in self._known.values():
                os.close(region.descriptor)
            self._known.clear()

    @contextlib.contextmanager
    def _lent(self, who: Neighbour, ref: RegionRef) -> Iterator[tuple[Region, int]]:
        """Yield the region and a descriptor of its own, which stays open when the client unregisters meanwhile."""
        with self._lock:
            region = self._piece(who, ref)
            descriptor = os.dup(region.descriptor)
        try:
            yield region, descriptor
        finally:
            os.close(descriptor)

    def _piece(self, who: Neighbour, ref: RegionRef) -> Region:
        region = self._known.get((who, ref.name))
        if region is None:
            raise _unknown(ref.name)
        if not (0 <= ref.offset and 0 < ref.byte_size and ref.offset + ref.byte_size <= region.byte_size):
            raise _refused(
                f"{ref.byte_size} bytes from {ref.offset} do not lie in region {ref.name!r} of {region.byte_size}"
            )
        return region


def _opened(folder: Path, key: str, user: int | None) -> tuple[int, bool]:
    """Return a descriptor of the key's file, and whether it may be written. Raises InvalidInput."""
    if not _KEY.fullmatch(key):
        raise _refused(f"{key[:40]!r} is no key: a slash and letters, digits, dots, dashes")
    name = key.removeprefix("/")
    if name.startswith(_NOT_CLIENTS):
        raise InvalidInput(Reason.FORBIDDEN, f"{key!r} is not a client's region", where="key")
    for flags in (os.O_RDWR, os.O_RDONLY):
        with contextlib.suppress(PermissionError):
            try:
                # Not blocking: a named pipe that lies there would hold the thread for ever.
                descriptor = os.open(folder / name, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
            except FileNotFoundError as error:
                raise UnknownName(Reason.NOT_FOUND, f"no region has the key {key!r}", where="key") from error
            except OSError as error:
                if isinstance(error, PermissionError):
                    raise
                raise _refused(f"{key!r} cannot be opened: {error.strerror}") from error
            writable = flags == os.O_RDWR
            try:
                return descriptor, _allowed(os.fstat(descriptor), key, user, writable=writable)
            except BaseException:
                os.close(descriptor)
                raise
    raise InvalidInput(Reason.FORBIDDEN, f"{key!r} is not readable by the gateway", where="key")


def _allowed(found: os.stat_result, key: str, user: int | None, *, writable: bool) -> bool:
    """Return whether the file may be written for `user`. Raises InvalidInput where it may not even be read."""
    if not stat.S_ISREG(found.st_mode):
        raise InvalidInput(Reason.FORBIDDEN, f"{key!r} is no shared memory", where="key")
    own = found.st_uid == user
    if not own and not found.st_mode & stat.S_IROTH:
        raise InvalidInput(
            Reason.FORBIDDEN,
            f"{key!r} belongs to another user who does not share it",
            where="key",
            fix="ask as the user whose region it is, or make it readable and writable for others",
        )
    return writable and (own or bool(found.st_mode & stat.S_IWOTH))


def _refused(message: str, fix: str = "") -> InvalidInput:
    return InvalidInput(Reason.INVALID_REQUEST, message, where="shared memory", fix=fix)


def _unknown(name: str) -> UnknownName:
    return UnknownName(
        Reason.NOT_FOUND, f"no region {name[:40]!r} is registered", where="shared memory", fix="register it first"
    )
