"""A file that holds disk space for the moment when a swap meets a full disk."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

BALLAST_BYTES = 256 << 10  # routing file, alias config and a compacted journal fit many times over
_FULL = (errno.ENOSPC, errno.EDQUOT)


class Ballast:
    """Holds `BALLAST_BYTES` below a folder; released once, held again when there is room."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def hold(self) -> bool:
        """Occupy the space if it is not; tell whether it is held."""
        try:
            if not self._path.exists() or self._path.stat().st_size < BALLAST_BYTES:
                self._path.write_bytes(bytes(BALLAST_BYTES))
        except OSError:
            return False
        return True

    def retry_when_full(self, write: Callable[[], None]) -> None:
        """Run `write`; on a full disk give the space free and run it once more. Raises OSError."""
        try:
            write()
        except OSError as error:
            if error.errno not in _FULL or not self._path.exists():
                raise
            self._path.unlink(missing_ok=True)
            write()
