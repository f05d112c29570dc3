"""Logs that a process still writes."""

from __future__ import annotations

from pathlib import Path


def whole_lines(path: Path) -> list[str]:
    """Return the lines of `path` that are ended: a last one without its end is still being written.

    None where there is no file yet.
    """
    if not path.exists():
        return []
    whole, _, _ = path.read_bytes().rpartition(b"\n")
    return whole.decode("utf-8").split("\n") if whole else []
