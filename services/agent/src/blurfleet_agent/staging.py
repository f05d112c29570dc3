"""Bytes on the node, by digest: fetched beside, synced, checked, renamed; never seen under their digest before.

A fetch that is cut short goes on where it stopped, also after a restart: what is there lies in `<hex>.partial`.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit

from blurfleet.api.engineset import Blob
from blurfleet.artifacts import CHUNK_BYTES, Fetch, Opened, fetchers
from blurfleet.errors import ArtifactRefused, NodeError
from blurfleet.identity import digest_file
from blurfleet.reasons import Reason
from blurfleet.store.atomic import sync_folder

MAX_BLOB_BYTES = 32 << 30  # no engine is larger; a broken address must not fill the disk for ever
_PARTIAL = ".partial"
_RESUMES = 8  # cuts of one line that are mended at once; afterwards the caller waits before it tries again


def free_bytes(folder: Path) -> int:
    """Return the bytes that an ordinary user may still write below `folder`."""
    return shutil.disk_usage(folder).free


class Staging:
    """The node's artifacts folder. `fetch` maps a URI scheme to what opens it, by default all known ones."""

    def __init__(
        self,
        folder: Path,
        *,
        reserve_bytes: int = 0,
        fetch: Mapping[str, Fetch] | None = None,
        free: Callable[[Path], int] = free_bytes,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._reserve = reserve_bytes
        self._fetchers = fetch or fetchers()
        self._free = free
        self._verified: dict[str, tuple[int, int, int]] = {}
        self._locks: dict[str, threading.Lock] = {}
        self._locks_lock = threading.Lock()

    def path(self, digest: str) -> Path:
        """Return where the bytes of `digest` lie or would lie."""
        return self.folder / digest.removeprefix("sha256:")

    def ensure(self, blob: Blob) -> Path:
        """Return the path of `blob`'s bytes, fetched if they are absent or no longer match.

        Raises ArtifactRefused (DigestMismatch, SizeMismatch, ArtifactUnavailable) and
        NodeError(InsufficientStorage), before anything is fetched when it cannot fit.
        """
        with self._lock_of(blob.digest):  # two threads must not append to one file
            return self.staged(blob) or self._bring(blob)

    def staged(self, blob: Blob) -> Path | None:
        """Return the path of `blob`'s bytes if they are here and match, None otherwise. Asks nothing of the network."""
        path = self.path(blob.digest)
        if not self._intact(path, blob.digest):
            return None
        with contextlib.suppress(OSError):  # collected this moment: the caller finds out as it reads
            os.utime(path)  # what is used last is collected last
            self._verified[blob.digest] = _stamp(path)
        return path

    def _lock_of(self, digest: str) -> threading.Lock:
        with self._locks_lock:
            return self._locks.setdefault(digest, threading.Lock())

    def _bring(self, blob: Blob) -> Path:
        path = self.path(blob.digest)
        path.unlink(missing_ok=True)
        self._refuse_unfit(blob)
        part = path.with_name(f"{path.name}{_PARTIAL}")
        try:
            self._fetch(blob, part)
            part.replace(path)
            sync_folder(self.folder)
        except ArtifactRefused as error:
            if error.reason is not Reason.ARTIFACT_UNAVAILABLE or not _size(part):
                part.unlink(missing_ok=True)  # wrong bytes; a fetch that was cut short goes on later
            raise
        except OSError as error:
            part.unlink(missing_ok=True)
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise self._no_room(blob, str(error.strerror)) from error
            raise NodeError(Reason.STORE_UNWRITABLE, f"cannot stage: {error}", where=str(part)) from error
        self._verified[blob.digest] = _stamp(path)
        return path

    def collect(self, referenced: Iterable[str], budget_bytes: int) -> tuple[str, ...]:
        """Remove unreferenced files, least recently used first, until the folder fits; return what went.

        What was fetched in part goes as soon as nobody wants it.
        """
        kept = {digest.removeprefix("sha256:") for digest in referenced}
        for part in self.folder.glob(f"*{_PARTIAL}"):
            if part.stem not in kept:
                part.unlink(missing_ok=True)
        files = sorted((p for p in self.folder.iterdir() if p.is_file()), key=lambda p: p.stat().st_mtime_ns)
        total = sum(p.stat().st_size for p in files)
        gone = []
        for path in files:
            if total <= budget_bytes:
                break
            if path.name not in kept and path.suffix != _PARTIAL:
                total -= path.stat().st_size
                path.unlink(missing_ok=True)
                gone.append(f"sha256:{path.name}")
        return tuple(gone)

    def _intact(self, path: Path, digest: str) -> bool:
        try:
            if not path.is_file():
                return False
            return self._verified.get(digest) == _stamp(path) or digest_file(path) == digest
        except OSError:
            return False

    def _refuse_unfit(self, blob: Blob) -> None:
        here = _size(self.path(blob.digest).with_name(f"{self.path(blob.digest).name}{_PARTIAL}"))
        if blob.bytes is not None and blob.bytes - here + self._reserve > self._free(self.folder):
            raise self._no_room(blob, f"{self._free(self.folder)} bytes are free, {self._reserve} stay in reserve")

    def _no_room(self, blob: Blob, detail: str) -> NodeError:
        size = "unknown" if blob.bytes is None else str(blob.bytes)
        return NodeError(
            Reason.INSUFFICIENT_STORAGE,
            f"{blob.uri} of {size} bytes does not fit: {detail}",
            where=str(self.folder),
            fix="free disk space or lower the artifact budget",
        )

    def _fetch(self, blob: Blob, part: Path) -> None:
        """Bring `part` to the whole blob, going on where an earlier try stopped, for as long as bytes arrive."""
        for _ in range(_RESUMES):
            before = _size(part)
            try:
                self._append(blob, part)
                return
            except ArtifactRefused as error:
                if error.reason is not Reason.ARTIFACT_UNAVAILABLE or _size(part) <= before:
                    raise
        self._append(blob, part)

    def _append(self, blob: Blob, part: Path) -> None:
        limit = MAX_BLOB_BYTES if blob.bytes is None else blob.bytes
        with part.open("a+b") as out:
            state, size = _hashed(out)
            if size and "sha256:" + state.hexdigest() == blob.digest:
                return
            if size >= limit:
                state, size = _emptied(out)  # it can only be something else
            with contextlib.closing(self._open(blob.uri, size)) as opened:
                if opened.offset != size:
                    state, size = _emptied(out)
                for chunk in opened.chunks:
                    out.write(chunk)
                    state.update(chunk)
                    size += len(chunk)
                    if size > limit:
                        break
            out.flush()
            os.fsync(out.fileno())
        self._refuse_wrong(blob, size, "sha256:" + state.hexdigest(), limit)

    def _refuse_wrong(self, blob: Blob, size: int, digest: str, limit: int) -> None:
        if size > limit or (blob.bytes is not None and size != blob.bytes):
            found = f"more than {limit}" if size > limit else str(size)
            raise ArtifactRefused(
                Reason.SIZE_MISMATCH, f"holds {found} bytes, {limit} were promised", where=blob.uri, fix="upload again"
            )
        if digest != blob.digest:
            raise ArtifactRefused(
                Reason.DIGEST_MISMATCH, f"is {digest}, not {blob.digest}", where=blob.uri, fix="upload again"
            )

    def _open(self, uri: str, offset: int) -> Opened:
        fetch = self._fetchers.get(urlsplit(uri).scheme)
        if fetch is None:
            known = ", ".join(sorted(self._fetchers))
            raise ArtifactRefused(Reason.ARTIFACT_UNAVAILABLE, f"scheme is not one of {known}", where=uri)
        return fetch(uri, offset)


def _hashed(out: BinaryIO) -> tuple[hashlib._Hash, int]:
    out.seek(0)
    state, size = hashlib.sha256(), 0
    while chunk := out.read(CHUNK_BYTES):
        state.update(chunk)
        size += len(chunk)
    return state, size


def _emptied(out: BinaryIO) -> tuple[hashlib._Hash, int]:
    out.truncate(0)
    return hashlib.sha256(), 0


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _stamp(path: Path) -> tuple[int, int, int]:
    stat = path.stat()
    return (stat.st_ino, stat.st_mtime_ns, stat.st_size)
