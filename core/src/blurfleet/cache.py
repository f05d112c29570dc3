"""Where downloads and environments that can be made again are kept."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """Return the cache folder, created if absent.

    `BLURFLEET_CACHE_DIR` if set, else `$XDG_CACHE_HOME/blurfleet`, else `~/.cache/blurfleet`. Raises OSError.
    """
    chosen = os.environ.get("BLURFLEET_CACHE_DIR")
    base = Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "blurfleet"
    base.mkdir(parents=True, exist_ok=True)
    return base.resolve()
