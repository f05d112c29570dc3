"""Bring what was built to where nodes fetch it: blobs by digest, those that are there already left alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from blurfleet.api.engineset import Blob, Variant
from blurfleet.api.record import BuildRecord
from blurfleet.artifacts import Location, file_path, remote_store
from blurfleet.check import dumps
from blurfleet.errors import StoreError
from blurfleet.identity import digest_file
from blurfleet.reasons import Reason
from blurfleet_forge.artifacts import Artifacts, write_atomic

_SENTENCE = 300


class Pusher:
    """Copies blobs of `artifacts` to `at` (file, https by PUT, or s3) and says where they lie there.

    Without a place nothing is copied and addresses stay as they are. `sent` and `found` count the blobs.
    """

    def __init__(self, artifacts: Artifacts, at: Location, tell: Callable[[str], None] = lambda _: None) -> None:
        self._artifacts = artifacts
        self._at = at
        self._tell = tell
        self._done: dict[str, str] = {}
        self.sent = 0
        self.found = 0

    def blob(self, blob: Blob) -> Blob:
        """Return the blob's address at the place, its bytes there. Raises StoreError."""
        return blob.model_copy(update={"uri": self._bring(blob.digest)}) if self._at.uri else blob

    def variant(self, variant: Variant) -> Variant:
        """Return the variant with the addresses of engine and record at the place. Raises StoreError.

        A record names files beside the engine by address, so the record at the place is another one.
        """
        if not self._at.uri:
            return variant
        return variant.model_copy(
            update={"artifact": self.blob(variant.artifact), "build_record": self._record(variant.build_record)}
        )

    def document(self, path: Path, name: str) -> str:
        """Put a text file at `<place>/<name>`, over an older one, and return its address. Raises StoreError."""
        uri = f"{self._at.uri.rstrip('/')}/{name}"
        _send(path, uri, self._at.token)
        return uri

    def _record(self, blob: Blob) -> Blob:
        record = BuildRecord.model_validate_json(self._artifacts.path(blob.digest).read_bytes())
        if not record.serving.support_files:
            return self.blob(blob)
        moved = tuple(f.model_copy(update={"uri": self._bring(f.digest)}) for f in record.serving.support_files)
        serving = record.serving.model_copy(update={"support_files": moved})
        body = dumps(record.model_copy(update={"serving": serving}).wire())
        return self.blob(self._artifacts.put(body.encode()))

    def _bring(self, digest: str) -> str:
        if digest not in self._done:
            uri, path = self._at.uri_of(digest), self._artifacts.path(digest)
            if _is_there(uri, self._at.token, digest, path.stat().st_size):
                self.found += 1
            else:
                self._tell(uri)
                _send(path, uri, self._at.token)
                self.sent += 1
            self._done[digest] = uri
        return self._done[digest]


def _is_there(uri: str, token: str, digest: str, size: int) -> bool:
    """Tell whether the place holds the bytes: by size at a remote one, where names are digests and writes are whole."""
    if uri.startswith("file:"):
        path = file_path(uri)
        return path.is_file() and digest_file(path) == digest
    import obstore
    from obstore.exceptions import PermissionDeniedError, UnauthenticatedError

    store, key = remote_store(uri, token)
    try:
        return obstore.head(store, key)["size"] == size
    except (FileNotFoundError, PermissionDeniedError, UnauthenticatedError):
        # S3 says "forbidden" for what is not there to who may not list; the write that follows tells the truth.
        return False
    except Exception as error:
        raise _refused(uri, error) from error


def _send(path: Path, uri: str, token: str) -> None:
    if uri.startswith("file:"):
        write_atomic(file_path(uri), path.read_bytes())
        return
    import obstore

    store, key = remote_store(uri, token)
    try:
        # Plain https knows no parts; S3 takes large files in parts, each of which is tried again by itself.
        obstore.put(store, key, path, use_multipart=None if uri.startswith("s3:") else False)
    except Exception as error:
        raise _refused(uri, error) from error


def _refused(uri: str, error: Exception) -> StoreError:
    said = (str(error).splitlines() or [type(error).__name__])[0][:_SENTENCE]
    return StoreError(
        Reason.STORE_UNWRITABLE,
        f"cannot be written: {said}",
        where=uri,
        fix="s3 takes AWS_ variables from the environment, https the token in BLURFLEET_ARTIFACTS_TOKEN",
    )
