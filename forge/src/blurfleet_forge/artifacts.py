"""Artifacts by digest in a folder, and an index that remembers which inputs made which artifact."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from blurfleet.api.engineset import Blob
from blurfleet.errors import StoreError
from blurfleet.identity import digest_bytes, digest_file, is_digest
from blurfleet.reasons import Reason

INDEX_SCHEMA = 1


def write_atomic(path: Path, data: bytes) -> None:
    """Write `data` beside `path`, fsync, and rename over it. Raises StoreError (StoreUnwritable)."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".fresh-", delete=False) as handle:
            handle.write(data)
            handle.flush()
            os.fsync(handle.fileno())
        fresh = Path(handle.name)
        fresh.chmod(0o644)
        fresh.replace(path)
    except OSError as error:
        raise StoreError(Reason.STORE_UNWRITABLE, str(error), where=str(path)) from error


class Artifacts:
    """`<out>/blobs/sha256/<hex>` holds bytes by digest; `<out>/index/<key>.json` what was built from which inputs."""

    def __init__(self, out: Path) -> None:
        self.out = out.resolve()

    def path(self, digest: str) -> Path:
        """Return where the bytes of `digest` lie or would lie."""
        return self.out / "blobs" / "sha256" / digest.removeprefix("sha256:")

    def put(self, data: bytes) -> Blob:
        """Store `data` under its digest and return its address; bytes already there are not written again."""
        digest = digest_bytes(data)
        path = self.path(digest)
        if not (path.is_file() and digest_file(path) == digest):
            write_atomic(path, data)
        return Blob(uri=path.as_uri(), digest=digest, bytes=len(data))

    def get(self, digest: str) -> Path | None:
        """Return the path of `digest` if its bytes are there and still match, else None."""
        path = self.path(digest)
        return path if path.is_file() and digest_file(path) == digest else None

    def recall(self, key: str) -> dict[str, Any] | None:
        """Return what `remember` stored for `key`, None unless every artifact it names is there and intact."""
        path = self._entry(key)
        try:
            entry = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        if not isinstance(entry, dict) or entry.get("schemaVersion") != INDEX_SCHEMA:
            return None
        named = entry.get("artifacts", [])
        return entry["value"] if all(is_digest(d) and self.get(d) for d in named) else None

    def remember(self, key: str, value: dict[str, Any], artifacts: tuple[str, ...]) -> None:
        """Store `value` for `key` together with the digests it depends on."""
        entry = {"schemaVersion": INDEX_SCHEMA, "value": value, "artifacts": list(artifacts)}
        write_atomic(self._entry(key), json.dumps(entry, indent=1, sort_keys=True).encode())

    def _entry(self, key: str) -> Path:
        return self.out / "index" / f"{key.removeprefix('sha256:')}.json"
