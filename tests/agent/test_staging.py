"""Bytes are on the node whole and right, or not at all."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import pytest

from blurfleet.api.engineset import Blob
from blurfleet.errors import ArtifactRefused, BlurfleetError, NodeError
from blurfleet.identity import digest_bytes
from blurfleet_agent.staging import Staging

DATA = bytes(range(256)) * 20


def blob(folder: Path, data: bytes = DATA, *, promised: bytes = DATA, size: int | None = len(DATA)) -> Blob:
    path = folder / "source.bin"
    path.write_bytes(data)
    return Blob(uri=path.as_uri(), digest=digest_bytes(promised), bytes=size)


def test_a_blob_is_fetched_once_and_found_under_its_digest(tmp_path: Path) -> None:
    staging, wanted = Staging(tmp_path / "artifacts"), blob(tmp_path)
    path = staging.ensure(wanted)
    assert path.read_bytes() == DATA
    (tmp_path / "source.bin").unlink()
    assert staging.ensure(wanted) == path


def flipped() -> bytes:
    return DATA[:1000] + bytes([DATA[1000] ^ 1]) + DATA[1001:]


@pytest.mark.parametrize(
    ("data", "size", "reason"),
    [
        pytest.param(flipped(), len(DATA), "DigestMismatch", id="one flipped byte"),
        pytest.param(DATA[:-1], len(DATA), "SizeMismatch", id="truncated by a byte"),
        pytest.param(DATA + b"x", len(DATA), "SizeMismatch", id="a byte too many"),
        pytest.param(b"", len(DATA), "SizeMismatch", id="empty"),
        pytest.param(DATA[:-1], None, "DigestMismatch", id="truncated, size not promised"),
    ],
)
def test_wrong_bytes_are_refused_and_leave_nothing(tmp_path: Path, data: bytes, size: int | None, reason: str) -> None:
    staging = Staging(tmp_path / "artifacts")
    with pytest.raises(ArtifactRefused) as caught:
        staging.ensure(blob(tmp_path, data, size=size))
    assert caught.value.reason == reason
    assert list((tmp_path / "artifacts").iterdir()) == []


@pytest.mark.parametrize(
    "uri",
    [
        pytest.param("file:///nowhere/at/all", id="no such file"),
        pytest.param("s3://bucket/key", id="a scheme without a fetcher"),
    ],
)
def test_an_address_that_gives_nothing_is_named(tmp_path: Path, uri: str) -> None:
    with pytest.raises(ArtifactRefused) as caught:
        Staging(tmp_path).ensure(Blob(uri=uri, digest=digest_bytes(DATA), bytes=len(DATA)))
    assert caught.value.reason == "ArtifactUnavailable"
    assert caught.value.where == uri


def test_a_staged_file_that_rotted_is_fetched_again(tmp_path: Path) -> None:
    staging, wanted = Staging(tmp_path / "artifacts"), blob(tmp_path)
    path = staging.ensure(wanted)
    path.write_bytes(flipped())
    assert staging.ensure(wanted).read_bytes() == DATA


def test_what_does_not_fit_is_refused_before_anything_is_fetched(tmp_path: Path) -> None:
    opened: list[str] = []

    def fetch(uri: str) -> BinaryIO:
        opened.append(uri)
        return io.BytesIO(DATA)

    staging = Staging(tmp_path / "a", reserve_bytes=100, fetchers={"file": fetch}, free=lambda _: len(DATA) + 99)
    with pytest.raises(NodeError) as caught:
        staging.ensure(blob(tmp_path))
    assert caught.value.reason == "InsufficientStorage"
    assert opened == []


class Interrupted(io.BytesIO):
    """Gives half of its bytes, then fails with `code`: stands in for a disk or a line that gives out."""

    code = errno.EIO

    def read(self, size: int | None = -1, /) -> bytes:
        if self.tell() > 0:
            raise OSError(self.code, os.strerror(self.code))
        return super().read(len(DATA) // 2)


@pytest.mark.parametrize(
    ("make", "kind", "reason"),
    [
        pytest.param(lambda _: Interrupted(DATA), ArtifactRefused, "ArtifactUnavailable", id="the source gives out"),
    ],
)
def test_a_fetch_that_stops_half_way_leaves_nothing_and_the_next_one_is_whole(
    tmp_path: Path, make: Callable[[str], BinaryIO], kind: type[BlurfleetError], reason: str
) -> None:
    wanted = blob(tmp_path)
    broken = Staging(tmp_path / "artifacts", fetchers={"file": make})
    with pytest.raises(kind) as caught:
        broken.ensure(wanted)
    assert caught.value.reason == reason
    assert list((tmp_path / "artifacts").iterdir()) == []
    assert Staging(tmp_path / "artifacts").ensure(wanted).read_bytes() == DATA


def test_a_disk_that_fills_up_while_staging_is_said_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staging, wanted = Staging(tmp_path / "artifacts"), blob(tmp_path)

    def full(_handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("blurfleet_agent.staging.os.fsync", full)
    with pytest.raises(NodeError) as caught:
        staging.ensure(wanted)
    assert caught.value.reason == "InsufficientStorage"
    assert list((tmp_path / "artifacts").iterdir()) == []


def test_a_leftover_of_an_interrupted_fetch_is_cleared_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "abc.part").write_bytes(b"half")
    Staging(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_collection_removes_the_least_recently_used_and_never_what_is_referenced(tmp_path: Path) -> None:
    staging = Staging(tmp_path / "artifacts")
    digests = []
    for i in range(4):
        data = bytes([i]) * 1000
        wanted = blob(tmp_path, data, promised=data, size=1000)
        path = staging.ensure(wanted)
        os.utime(path, (i, i))
        digests.append(wanted.digest)
    assert staging.collect([digests[0]], 2500) == (digests[1], digests[2])
    assert staging.path(digests[0]).exists()
    assert staging.path(digests[3]).exists()
