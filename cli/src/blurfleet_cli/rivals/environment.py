"""The rivals' own Python environment: built once per machine from pinned versions, kept in the cache."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib import resources
from pathlib import Path

from blurfleet.errors import NodeError
from blurfleet.identity import digest12, digest_bytes
from blurfleet.reasons import Reason

REQUIREMENTS = "requirements.txt"
INSTALL_TIMEOUT_S = 1800.0
COMPILE_TIMEOUT_S = 1800.0
_INSTALLED, _COMPILED = "ready", "compiled"


def ensure_rivals(cache: Path, progress: Callable[[str], None]) -> Path:
    """Return the Python of the rivals' environment under `cache`, building it where it is absent or of other versions.

    Safe to call from several processes at once. Raises NodeError EnvironmentUnusable.
    """
    text = resources.files("blurfleet_cli.rivals").joinpath(REQUIREMENTS).read_text()
    version = ".".join(map(str, sys.version_info[:3]))
    root = cache / f"rivals-{digest12(digest_bytes(f'{version}{text}'.encode()))}"
    python = root / "bin" / "python3"
    if (root / _COMPILED).exists():
        return python
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{root.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (root / _INSTALLED).exists():
            progress("installing rembg and albumentations into an environment of their own (about 400 MB)")
            shutil.rmtree(root, ignore_errors=True)
            (cache / f"{root.name}.txt").write_text(text)
            _run([sys.executable, "-m", "venv", str(root)], 120.0)
            pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--quiet"]
            _run([*pip, "--no-deps", "--requirement", str(cache / f"{root.name}.txt")], INSTALL_TIMEOUT_S)
            (root / _INSTALLED).touch()
        if not (root / _COMPILED).exists():
            progress("rembg compiles what it needs, once: a minute, several on a busy machine")
            _run([str(python), "-c", "import rembg.bg"], COMPILE_TIMEOUT_S, numba_cache(python))
            (root / _COMPILED).touch()
    return python


def numba_cache(python: Path) -> dict[str, str]:
    """Return the environment variable by which the rivals' Python keeps what it compiled."""
    return {"NUMBA_CACHE_DIR": str(python.parents[1] / "numba")}


def _run(argv: list[str], timeout_s: float, also: Mapping[str, str] | None = None) -> None:
    variables = {**os.environ, **(also or {})}
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout_s, check=False, env=variables)
        problem = (done.stderr.strip() or "no output").splitlines()[-1] if done.returncode else ""
    except (OSError, subprocess.TimeoutExpired) as error:
        problem = str(error)
    if problem:
        raise NodeError(
            Reason.ENVIRONMENT_UNUSABLE, problem, where=argv[0], fix="check the network and the free disk space"
        )
