"""Where downloads and built environments are kept between runs."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """Return the per-user cache folder, made if absent.

    `BLURFLEET_CACHE_DIR`, else `$XDG_CACHE_HOME/blurfleet`, else `~/.cache/blurfleet`.
    """
    named = os.environ.get("BLURFLEET_CACHE_DIR")
    base = os.environ.get("XDG_CACHE_HOME")
    path = Path(named) if named else (Path(base) if base else Path.home() / ".cache") / "blurfleet"
    path.mkdir(parents=True, exist_ok=True)
    return path
