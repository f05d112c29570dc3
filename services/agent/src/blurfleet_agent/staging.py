"""Bytes on the node, by digest: fetched beside, synced, checked, renamed; never seen under their digest before."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote, urlsplit

from blurfleet.api.engineset import Blob
from blurfleet.errors import ArtifactRefused, NodeError
from blurfleet.identity import digest_file
from blurfleet.reasons import Reason
from blurfleet.store.atomic import sync_folder

Fetch = Callable[[str], BinaryIO]

MAX_BLOB_BYTES = 32 << 30  # no engine is larger; a broken address must not fill the disk for ever
_CHUNK_BYTES = 1 << 20


def open_file_uri(uri: str) -> BinaryIO:
    """Return the bytes of a `file://` address. Raises OSError."""
    return Path(unquote(urlsplit(uri).path)).open("rb")


def free_bytes(folder: Path) -> int:
    """Return the bytes that an ordinary user may still write below `folder`."""
    return shutil.disk_usage(folder).free


class Staging:
    """The node's artifacts folder. `fetchers` maps a URI scheme to what opens it; more can be added."""

    def __init__(
        self,
        folder: Path,
        *,
        reserve_bytes: int = 0,
        fetchers: Mapping[str, Fetch] | None = None,
        free: Callable[[Path], int] = free_bytes,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._reserve = reserve_bytes
        self._fetchers = fetchers or {"file": open_file_uri}
        self._free = free
        self._verified: dict[str, tuple[int, int, int]] = {}
        for leftover in folder.glob("*.part"):
            leftover.unlink(missing_ok=True)

    def path(self, digest: str) -> Path:
        """Return where the bytes of `digest` lie or would lie."""
        return self.folder / digest.removeprefix("sha256:")

    def ensure(self, blob: Blob) -> Path:
        """Return the path of `blob`'s bytes, fetched if they are absent or no longer match.

        Raises ArtifactRefused (DigestMismatch, SizeMismatch, ArtifactUnavailable) and
        NodeError(InsufficientStorage), before anything is fetched when it cannot fit.
        """
        path = self.path(blob.digest)
        if self._intact(path, blob.digest):
            os.utime(path)  # what is used last is collected last
            self._verified[blob.digest] = _stamp(path)
            return path
        path.unlink(missing_ok=True)
        self._refuse_unfit(blob)
        part = path.with_name(f"{path.name}.part")
        try:
            self._fetch(blob, part)
            part.replace(path)
            sync_folder(self.folder)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise self._no_room(blob, str(error.strerror)) from error
            raise NodeError(Reason.STORE_UNWRITABLE, f"cannot stage: {error}", where=str(part)) from error
        finally:
            part.unlink(missing_ok=True)
        self._verified[blob.digest] = _stamp(path)
        return path

    def collect(self, referenced: Iterable[str], budget_bytes: int) -> tuple[str, ...]:
        """Remove unreferenced files, least recently used first, until the folder fits; return what went."""
        kept = {digest.removeprefix("sha256:") for digest in referenced}
        files = sorted((p for p in self.folder.iterdir() if p.is_file()), key=lambda p: p.stat().st_mtime_ns)
        total = sum(p.stat().st_size for p in files)
        gone = []
        for path in files:
            if total <= budget_bytes:
                break
            if path.name not in kept and path.suffix != ".part":
                total -= path.stat().st_size
                path.unlink(missing_ok=True)
                gone.append(f"sha256:{path.name}")
        return tuple(gone)

    def _intact(self, path: Path, digest: str) -> bool:
        if not path.is_file():
            return False
        if self._verified.get(digest) == _stamp(path):
            return True
        return digest_file(path) == digest

    def _refuse_unfit(self, blob: Blob) -> None:
        if blob.bytes is not None and blob.bytes + self._reserve > self._free(self.folder):
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
        limit = MAX_BLOB_BYTES if blob.bytes is None else blob.bytes
        state, size = hashlib.sha256(), 0
        with self._open(blob.uri) as source, part.open("wb") as out:
            while size <= limit and (chunk := _read(source, blob.uri)):
                out.write(chunk)
                state.update(chunk)
                size += len(chunk)
            out.flush()
            os.fsync(out.fileno())
        if size > limit or (blob.bytes is not None and size != blob.bytes):
            found = f"more than {limit}" if size > limit else str(size)
            raise ArtifactRefused(
                Reason.SIZE_MISMATCH, f"holds {found} bytes, {limit} were promised", where=blob.uri, fix="upload again"
            )
        digest = "sha256:" + state.hexdigest()
        if digest != blob.digest:
            raise ArtifactRefused(
                Reason.DIGEST_MISMATCH, f"is {digest}, not {blob.digest}", where=blob.uri, fix="upload again"
            )

    def _open(self, uri: str) -> BinaryIO:
        fetch = self._fetchers.get(urlsplit(uri).scheme)
        if fetch is None:
            known = ", ".join(sorted(self._fetchers))
            raise ArtifactRefused(Reason.ARTIFACT_UNAVAILABLE, f"scheme is not one of {known}", where=uri)
        try:
            return fetch(uri)
        except OSError as error:
            raise ArtifactRefused(Reason.ARTIFACT_UNAVAILABLE, f"cannot be opened: {error}", where=uri) from error


def _read(source: BinaryIO, uri: str) -> bytes:
    try:
        return source.read(_CHUNK_BYTES)
    except OSError as error:
        raise ArtifactRefused(Reason.ARTIFACT_UNAVAILABLE, f"reading stopped: {error}", where=uri) from error


def _stamp(path: Path) -> tuple[int, int, int]:
    stat = path.stat()
    return (stat.st_ino, stat.st_mtime_ns, stat.st_size)
