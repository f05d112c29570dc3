"""The Triton server's own Python environment: built once per machine, pinned by hashes, kept in the cache.

The wheel that carries the server pins numpy<2, so it never enters the environment blurfleet runs in.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from blurfleet.errors import NodeError
from blurfleet.identity import digest12, digest_bytes
from blurfleet.reasons import Reason

SCHEMA_VERSION = 1
MARKER = "environment.json"
REQUIREMENTS = "triton-requirements.txt"
MIN_GLIBC = (2, 35)  # the wheel's platform tag is manylinux_2_35
INSTALL_TIMEOUT_S = 900.0
_PROBE = """
import json, sys, sysconfig
get = sysconfig.get_config_var
libdir = get("LIBDIR") or ""
print(json.dumps({
    "version": "%d.%d.%d" % sys.version_info[:3],
    "executable": getattr(sys, "_base_executable", sys.executable),
    "library": get("INSTSONAME"),
    "folders": [libdir, sys.base_prefix + "/lib", libdir + "/" + (get("MULTIARCH") or "")],
}))
"""


@dataclass(frozen=True, kw_only=True)
class TritonEnvironment:
    """Where the parts of one built environment lie.

    `python` is the interpreter the stubs use, `lib_path` the folder of its libpython (for LD_LIBRARY_PATH),
    `backend_dir` and `caches_dir` are what the server's flags of those names want.
    """

    root: Path
    python: Path
    server_bin: Path
    backend_dir: Path
    caches_dir: Path
    lib_path: Path

    def packages(self) -> tuple[str, ...]:
        """Return name-version of every package in it. Raises NodeError where its marker cannot be read."""
        try:
            found = json.loads((self.root / MARKER).read_text())["packages"]
        except (OSError, ValueError, KeyError) as error:
            raise NodeError(Reason.UNREADABLE_FILE, f"{MARKER}: {error}", where=str(self.root)) from error
        return tuple(f"{name}-{version}" for name, version in sorted(found.items()))


@dataclass(frozen=True, kw_only=True)
class _Interpreter:
    executable: Path
    version: str
    lib_path: Path

    @property
    def minor(self) -> str:
        return ".".join(self.version.split(".")[:2])


def ensure_environment(
    cache: Path, python: Path | None = None, progress: Callable[[str], None] | None = None
) -> TritonEnvironment:
    """Return the environment under `cache`, building it first where it is absent or of another version.

    `python` is the interpreter to build it from (default: the running one; 3.11 or 3.12 with a shared libpython).
    `progress` is told each slow step in one line. Safe to call from several processes at once: one builds, the
    others wait. Raises NodeError when the machine cannot run the server or the packages cannot be installed.
    """
    tell = progress or (lambda _line: None)
    _check_glibc(platform.libc_ver())
    interpreter = _interpreter(python or Path(sys.executable))
    wanted = {
        "schemaVersion": SCHEMA_VERSION,
        "python": interpreter.version,
        "requirements": digest_bytes(requirements_text().encode()),
    }
    root = cache / f"triton-{digest12(digest_bytes(json.dumps(wanted, sort_keys=True).encode()))}"
    if not _is_complete(root, wanted):
        cache.mkdir(parents=True, exist_ok=True)
        with _lock(cache / f"{root.name}.lock"):
            if not _is_complete(root, wanted):
                _build(root, interpreter, wanted, tell)
    return _layout(root, interpreter)


def requirements_text() -> str:
    """Return the pinned requirements (versions and hashes), also from an installed wheel."""
    return resources.files("blurfleet_agent").joinpath(REQUIREMENTS).read_text()


def _check_glibc(found: tuple[str, str]) -> None:
    name, version = found
    parts = tuple(int(p) for p in version.split(".")[:2] if p.isdigit())
    if name != "glibc" or parts < MIN_GLIBC:
        raise NodeError(
            Reason.ENVIRONMENT_UNUSABLE,
            f"the Triton server needs glibc {MIN_GLIBC[0]}.{MIN_GLIBC[1]} or later, this machine has {name} {version}",
            fix="use a newer distribution, for example Debian 12 or Ubuntu 22.04",
        )


def _interpreter(python: Path) -> _Interpreter:
    found: dict[str, Any] = json.loads(_run([str(python), "-c", _PROBE], timeout_s=60.0))
    library = str(found["library"])
    for folder in found["folders"]:
        if library.endswith((".so.1.0", ".so")) and (Path(folder) / library).exists():
            return _Interpreter(
                executable=Path(found["executable"]), version=found["version"], lib_path=Path(folder).resolve()
            )
    raise NodeError(
        Reason.ENVIRONMENT_UNUSABLE,
        f"{python} has no shared libpython ({library}); the server's python backend links it",
        where=str(python),
        fix="use a Python built with --enable-shared (distribution packages are), 3.11 or 3.12",
    )


def _layout(root: Path, interpreter: _Interpreter) -> TritonEnvironment:
    server = root / "lib" / f"python{interpreter.minor}" / "site-packages" / "pytriton" / "tritonserver"
    return TritonEnvironment(
        root=root,
        python=root / "bin" / "python3",
        server_bin=server / "bin" / "tritonserver",
        backend_dir=root / "backends",
        caches_dir=server / "caches",
        lib_path=interpreter.lib_path,
    )


def _is_complete(root: Path, wanted: dict[str, Any]) -> bool:
    try:
        marker = json.loads((root / MARKER).read_text())
    except (OSError, ValueError):
        return False
    return all(marker.get(key) == value for key, value in wanted.items())


def _build(root: Path, interpreter: _Interpreter, wanted: dict[str, Any], tell: Callable[[str], None]) -> None:
    stage = Path(tempfile.mkdtemp(prefix=f"{root.name}.part-", dir=root.parent))
    try:
        tell(f"creating the Triton environment (Python {interpreter.version})")
        _run([str(interpreter.executable), "-m", "venv", str(stage)], timeout_s=120.0)
        tell("installing the Triton server (about 80 MB to download)")
        _install(stage)
        _link_backend(stage, interpreter)
        packages = json.loads(_run([*_pip(stage), "list", "--format=json"], timeout_s=60.0))
        marker = wanted | {"packages": {p["name"]: p["version"] for p in packages}}
        (stage / MARKER).write_text(json.dumps(marker, indent=2))
        if root.exists():
            shutil.rmtree(root)
        stage.rename(root)  # nothing inside names its own path except scripts in bin/, and none of those is used
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _pip(stage: Path) -> list[str]:
    return [str(stage / "bin" / "python3"), "-m", "pip", "--disable-pip-version-check", "--no-input"]


def _install(stage: Path) -> None:
    with resources.as_file(resources.files("blurfleet_agent").joinpath(REQUIREMENTS)) as requirements:
        flags = ["--quiet", "--no-deps", "--require-hashes", "--only-binary=:all:", "--requirement", str(requirements)]
        _run([*_pip(stage), "install", *flags], timeout_s=INSTALL_TIMEOUT_S)


def _link_backend(stage: Path, interpreter: _Interpreter) -> None:
    """Give the python backend a folder of its own in which the stub of this Python lies where the server looks."""
    server = _layout(stage, interpreter).server_bin.parent.parent
    stub = server / "python_backend_stubs" / interpreter.minor / "triton_python_backend_stub"
    if not stub.exists():
        raise NodeError(
            Reason.ENVIRONMENT_UNUSABLE,
            f"the server's wheel has no python backend for Python {interpreter.minor}",
            fix="use Python 3.11 or 3.12",
        )
    folder = stage / "backends" / "python"
    folder.mkdir(parents=True)
    parts = [
        server / "backends/python/libtriton_python.so",
        server / "backends/python/triton_python_backend_utils.py",
        stub,
    ]
    for part in parts:
        (folder / part.name).symlink_to(os.path.relpath(part, folder))  # relative: it survives the rename


def _run(argv: list[str], *, timeout_s: float) -> str:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout_s, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NodeError(Reason.ENVIRONMENT_UNUSABLE, f"{argv[0]}: {error}", where=argv[0]) from error
    if done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
        raise NodeError(
            Reason.ENVIRONMENT_UNUSABLE,
            f"{' '.join(argv[:4])} ended with {done.returncode}: {last}",
            where=argv[0],
            fix="check the network and the free disk space (about 500 MB), then run it again",
        )
    return done.stdout


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
