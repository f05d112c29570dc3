"""Finds the real Prometheus and promtool: on the PATH, in the cache, else from Debian's package, unpacked there."""

from __future__ import annotations

import fcntl
import platform
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from blurfleet.cache import cache_dir

NAMES = ("prometheus", "promtool")
_FETCH_S = 300.0


@dataclass(frozen=True, kw_only=True)
class Programs:
    """Where the two programs are."""

    prometheus: Path
    promtool: Path


def ensure_programs() -> Programs:
    """Return the programs; the first call on a Debian or Ubuntu machine downloads 20 MB. Raises RuntimeError."""
    found = {name: shutil.which(name) for name in NAMES}
    if all(found.values()):
        return Programs(**{name: Path(path) for name, path in found.items() if path})
    folder = cache_dir() / f"prometheus-{platform.machine().lower()}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not all((folder / name).is_file() for name in NAMES):
            _unpack(folder)
    return Programs(**{name: folder / name for name in NAMES})


def _unpack(folder: Path) -> None:
    # apt checks the package against its signed lists; nothing is installed.
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        for command in (
            ["apt-get", "download", "prometheus"],
            ["apt-get", "update"],
            ["apt-get", "download", "prometheus"],
        ):
            subprocess.run(command, cwd=scratch, capture_output=True, timeout=_FETCH_S, check=False)
            packages = list(Path(scratch).glob("prometheus_*.deb"))
            if packages:
                break
        else:
            raise RuntimeError("no Prometheus: put `prometheus` and `promtool` (2.42 or newer) on the PATH")
        subprocess.run(["dpkg-deb", "-x", str(packages[0]), scratch], check=True, timeout=_FETCH_S)
        for name in NAMES:
            (Path(scratch) / "usr/bin" / name).replace(folder / name)
