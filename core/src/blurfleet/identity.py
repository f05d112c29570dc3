"""How bytes and networks are named.

An engine is named by the sha256 digest of its bytes; a network by its `model_id`, the first 12 hex digits of its source
graph's digest; a loaded engine by `<alias>__<digest12>`.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

DIGEST_PATTERN = r"^sha256:[a-f0-9]{64}$"
_DIGEST = re.compile(DIGEST_PATTERN)
_CHUNK_BYTES = 1 << 20


def digest_bytes(data: bytes) -> str:
    """Return `sha256:<64 hex>` of `data`."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def digest_file(path: Path) -> str:
    """Return `sha256:<64 hex>` of the file's bytes, read in 1 MiB chunks. Raises OSError."""
    state = hashlib.sha256()
    with path.open("rb") as handle:
        while chunk := handle.read(_CHUNK_BYTES):
            state.update(chunk)
    return "sha256:" + state.hexdigest()


def is_digest(text: str) -> bool:
    """Tell whether `text` has the form `sha256:<64 lower-case hex>`."""
    return _DIGEST.match(text) is not None


def digest12(digest: str) -> str:
    """Return the first 12 hex digits of a `sha256:` digest: what fits into names and logs."""
    return digest.removeprefix("sha256:")[:12]


def engine_name(alias: str, digest: str) -> str:
    """Return the Triton model name of an engine, `<alias>__<digest12>`: distinct from its alias and all others."""
    return f"{alias}__{digest12(digest)}"


def model_id(source_digest: str) -> str:
    """Return the 12 hex digits that name a network in every log record, from its source graph's digest."""
    return digest12(source_digest)
