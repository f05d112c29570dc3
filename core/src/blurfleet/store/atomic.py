"""Writing files that survive a power cut: write beside, fsync, rename, fsync the folder."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path


def write_atomic(path: Path, data: bytes, *, sync: bool = True, mode: int = 0o644) -> None:
    """Replace `path` by `data`: readers see the old or the new bytes, never a part. Raises OSError.

    With `sync` the bytes and the folder entry are on disk when it returns.
    """
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fchmod(stream.fileno(), mode)
            if sync:
                os.fsync(stream.fileno())
        Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            Path(name).unlink()
        raise
    if sync:
        sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Put a folder's entries on disk. Raises OSError."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
