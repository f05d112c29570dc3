"""Bytes by URI, `file://`, `https://` and `s3://`: read from any offset on, kept under their digest. Nothing is listed.

Who may read and write is said by the environment: `s3://` takes the usual `AWS_` variables (keys, web identity,
`AWS_ENDPOINT_URL`, `AWS_REGION`), `https://` the bearer token of its `Location`, which goes nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from blurfleet.errors import ArtifactRefused
from blurfleet.reasons import Reason

if TYPE_CHECKING:
    from obstore.store import ClientConfig, HTTPStore, RetryConfig, S3Store

CHUNK_BYTES = 1 << 20
# Small enough that little is fetched twice when a line breaks.
_STREAM_BYTES = 1 << 16
_CONNECT_S, _SILENT_S, _WHOLE_S = 10, 30, 3600
_TRIES = 2
_SENTENCE = 300


@dataclass(frozen=True, kw_only=True)
class Opened:
    """Bytes of an artifact from `offset` on, which is 0 where the server cannot start later."""

    offset: int
    chunks: Iterator[bytes]

    def close(self) -> None:
        """Let go of what the bytes come from."""
        end = getattr(self.chunks, "close", None)
        if end is not None:
            end()


Fetch = Callable[[str, int], Opened]


@dataclass(frozen=True, kw_only=True)
class Location:
    """A place that artifacts are kept at, for example `s3://bucket/blurfleet`; empty: none. `token` is for it alone."""

    uri: str = ""
    token: str = ""

    def uri_of(self, digest: str) -> str:
        """Return where the bytes of `digest` lie, or would lie, at this place."""
        return f"{self.uri.rstrip('/')}/blobs/sha256/{digest.removeprefix('sha256:')}"

    def token_for(self, uri: str) -> str:
        """Return the token where `uri` lies below this place, else nothing: a token is not shown to strangers."""
        return self.token if self.uri and uri.startswith(self.uri.rstrip("/") + "/") else ""


def fetchers(at: Location | None = None) -> Mapping[str, Fetch]:
    """Return what opens each scheme; plain http only carries what a digest proves anyway."""
    home = at or Location()

    def remote(uri: str, offset: int) -> Opened:
        return open_remote(uri, offset, token=home.token_for(uri))

    return {"file": open_file, "http": remote, "https": remote, "s3": remote}


def open_file(uri: str, offset: int) -> Opened:
    """Return the bytes of a `file://` address. Raises ArtifactRefused(ArtifactUnavailable), also while reading."""
    path = file_path(uri)
    try:
        stream = path.open("rb")
        stream.seek(offset)
    except OSError as error:
        raise unavailable(uri, error) from error

    def chunks() -> Iterator[bytes]:
        with stream:
            try:
                while chunk := stream.read(CHUNK_BYTES):
                    yield chunk
            except OSError as error:
                raise unavailable(uri, error) from error

    return Opened(offset=offset, chunks=chunks())


def open_remote(uri: str, offset: int, *, token: str = "") -> Opened:
    """Return the bytes of an http, https or s3 address.

    Raises ArtifactRefused(ArtifactUnavailable), also while reading. Silence of 30 s counts as a broken line.
    A server that knows no ranges is read from the start.
    """
    import obstore
    from obstore.exceptions import NotSupportedError

    store, key = remote_store(uri, token)
    try:
        found = obstore.get(store, key, options={"range": {"offset": offset}} if offset else None)
    except NotSupportedError as error:
        if offset:
            return open_remote(uri, 0, token=token)
        raise unavailable(uri, error) from error
    except Exception as error:
        raise unavailable(uri, error) from error

    def chunks() -> Iterator[bytes]:
        try:
            yield from found.stream(min_chunk_size=_STREAM_BYTES)
        except Exception as error:
            raise unavailable(uri, error) from error

    return Opened(offset=offset, chunks=chunks())


def remote_store(uri: str, token: str = "") -> tuple[HTTPStore | S3Store, str]:
    """Return the client for the host or bucket of `uri`, and the key in it. Raises ArtifactRefused; sends nothing."""
    parts = urlsplit(uri)
    if parts.query or parts.username:
        raise ArtifactRefused(
            Reason.ARTIFACT_UNAVAILABLE,
            "an address may hold no query and no password: engine sets are read by many and never change",
            where=f"{parts.scheme}://{parts.hostname}{parts.path}",
            fix="give credentials in the environment",
        )
    try:
        from obstore.store import HTTPStore, S3Store
    except ImportError as error:
        raise unavailable(uri, error) from error
    client: ClientConfig = {
        "allow_http": True,
        "connect_timeout": timedelta(seconds=_CONNECT_S),
        "read_timeout": timedelta(seconds=_SILENT_S),
        "timeout": timedelta(seconds=_WHOLE_S),
    }
    retry: RetryConfig = {"max_retries": _TRIES, "retry_timeout": timedelta(seconds=_SILENT_S)}
    key = unquote(parts.path).lstrip("/")
    try:
        if parts.scheme == "s3":
            return S3Store(parts.netloc, client_options=client, retry_config=retry), key
        if token:
            client["default_headers"] = {"authorization": f"Bearer {token}"}
        return HTTPStore(f"{parts.scheme}://{parts.netloc}", client_options=client, retry_config=retry), key
    except Exception as error:
        raise unavailable(uri, error) from error


def file_path(uri: str) -> Path:
    """Return the path of a `file://` address."""
    return Path(unquote(urlsplit(uri).path))


def unavailable(uri: str, error: Exception) -> ArtifactRefused:
    """Return what is raised where `uri` gives nothing; the first line says it, the rest is a library's debug print."""
    said = (str(error).splitlines() or [type(error).__name__])[0][:_SENTENCE]
    return ArtifactRefused(Reason.ARTIFACT_UNAVAILABLE, f"cannot be read: {said}", where=uri)
