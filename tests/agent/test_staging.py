"""Bytes are on the node whole and right, or not at all."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from blurfleet.api.engineset import Blob
from blurfleet.artifacts import Opened, unavailable
from blurfleet.errors import ArtifactRefused, NodeError
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


def never(uri: str, offset: int) -> Opened:
    raise AssertionError(f"asked the network for {uri} from {offset}")


def test_what_is_staged_is_found_without_the_network_and_what_is_not_is_said(tmp_path: Path) -> None:
    wanted = blob(tmp_path)
    offline = Staging(tmp_path / "artifacts", fetch={"file": never})
    assert offline.staged(wanted) is None
    path = Staging(tmp_path / "artifacts").ensure(wanted)
    assert offline.staged(wanted) == path
    path.write_bytes(flipped())
    assert offline.staged(wanted) is None


def test_two_threads_that_want_one_blob_fetch_it_once(tmp_path: Path) -> None:
    wanted, asked, release = blob(tmp_path), threading.Semaphore(0), threading.Event()

    def slow(uri: str, offset: int) -> Opened:
        asked.release()

        def chunks() -> Iterator[bytes]:
            yield DATA[:1000]
            assert release.wait(60.0)
            yield DATA[1000:]

        return Opened(chunks=chunks(), offset=0)

    staging = Staging(tmp_path / "artifacts", fetch={"file": slow})
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(staging.ensure, wanted) for _ in range(2)]
        assert asked.acquire(timeout=60.0)
        second = asked.acquire(timeout=0.2)
        release.set()
        assert [f.result(60.0).read_bytes() for f in both] == [DATA, DATA]
    assert not second


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
        pytest.param("ftp://host/key", id="a scheme that nobody reads"),
        pytest.param("https://host/key?X-Amz-Signature=1", id="an address with a query"),
        pytest.param("https://127.0.0.1:1/key", id="nobody listens"),
    ],
)
def test_an_address_that_gives_nothing_is_named(tmp_path: Path, uri: str) -> None:
    with pytest.raises(ArtifactRefused) as caught:
        Staging(tmp_path).ensure(Blob(uri=uri, digest=digest_bytes(DATA), bytes=len(DATA)))
    assert caught.value.reason == "ArtifactUnavailable"
    assert caught.value.where == uri.partition("?")[0]


def test_a_staged_file_that_rotted_is_fetched_again(tmp_path: Path) -> None:
    staging, wanted = Staging(tmp_path / "artifacts"), blob(tmp_path)
    path = staging.ensure(wanted)
    path.write_bytes(flipped())
    assert staging.ensure(wanted).read_bytes() == DATA


def test_what_does_not_fit_is_refused_before_anything_is_fetched(tmp_path: Path) -> None:
    opened: list[str] = []

    def fetch(uri: str, offset: int) -> Opened:
        opened.append(uri)
        return Opened(offset=offset, chunks=iter([DATA]))

    staging = Staging(tmp_path / "a", reserve_bytes=100, fetch={"file": fetch}, free=lambda _: len(DATA) + 99)
    with pytest.raises(NodeError) as caught:
        staging.ensure(blob(tmp_path))
    assert caught.value.reason == "InsufficientStorage"
    assert opened == []


class Line:
    """Gives at most `piece` bytes a call, then breaks: stands in for a network. `asked` are the offsets wanted."""

    def __init__(self, data: bytes, piece: int, *, ranges: bool = True) -> None:
        self.data, self.piece, self.ranges = data, piece, ranges
        self.asked: list[int] = []

    def __call__(self, uri: str, offset: int) -> Opened:
        self.asked.append(offset)
        start = offset if self.ranges else 0

        def chunks() -> Iterator[bytes]:
            yield self.data[start : start + self.piece]
            if start + self.piece < len(self.data):
                raise unavailable(uri, OSError("line broke"))

        return Opened(offset=start, chunks=chunks())


def test_a_line_that_breaks_is_taken_up_where_it_broke(tmp_path: Path) -> None:
    line = Line(DATA, 2000)
    path = Staging(tmp_path / "a", fetch={"file": line}).ensure(blob(tmp_path))
    assert path.read_bytes() == DATA
    assert line.asked == [0, 2000, 4000]
    assert [p.name for p in (tmp_path / "a").iterdir()] == [path.name]


def test_what_arrived_before_a_long_break_is_kept_over_a_restart_and_never_seen_as_the_blob(tmp_path: Path) -> None:
    wanted, first = blob(tmp_path), Line(DATA, 3000)

    def one_piece(uri: str, offset: int) -> Opened:
        if offset:
            raise unavailable(uri, OSError("no route"))
        return first(uri, offset)

    with pytest.raises(ArtifactRefused):
        Staging(tmp_path / "a", fetch={"file": one_piece}).ensure(wanted)
    (left,) = (tmp_path / "a").iterdir()
    assert left.name == f"{wanted.digest[7:]}.partial"
    assert left.read_bytes() == DATA[:3000]
    later = Line(DATA, len(DATA))
    assert Staging(tmp_path / "a", fetch={"file": later}).ensure(wanted).read_bytes() == DATA
    assert later.asked == [3000]


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


def partial(folder: Path, wanted: Blob, data: bytes) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"{wanted.digest[7:]}.partial"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("left", "asked"),
    [
        pytest.param(DATA[:7], [7], id="a good start is gone on with"),
        pytest.param(DATA, [], id="all of it was there: the rename was missing"),
        pytest.param(DATA + b"x", [0], id="more than was promised is something else"),
        pytest.param(flipped(), [0], id="as much as was promised, but other bytes"),
        pytest.param(b"", [0], id="nothing had come yet"),
    ],
)
def test_what_an_earlier_try_left(tmp_path: Path, left: bytes, asked: list[int]) -> None:
    wanted, line = blob(tmp_path), Line(DATA, len(DATA))
    partial(tmp_path / "a", wanted, left)
    assert Staging(tmp_path / "a", fetch={"file": line}).ensure(wanted).read_bytes() == DATA
    assert line.asked == asked


def test_a_start_that_rotted_is_thrown_away_and_the_next_try_is_whole(tmp_path: Path) -> None:
    wanted = blob(tmp_path)
    partial(tmp_path / "a", wanted, b"rot")
    staging = Staging(tmp_path / "a")
    with pytest.raises(ArtifactRefused) as caught:
        staging.ensure(wanted)
    assert caught.value.reason == "DigestMismatch"
    assert list((tmp_path / "a").iterdir()) == []
    assert staging.ensure(wanted).read_bytes() == DATA


def test_a_source_without_ranges_is_read_from_the_start(tmp_path: Path) -> None:
    wanted, line = blob(tmp_path), Line(DATA, len(DATA), ranges=False)
    partial(tmp_path / "a", wanted, DATA[:100])
    assert Staging(tmp_path / "a", fetch={"file": line}).ensure(wanted).read_bytes() == DATA
    assert line.asked == [100]


def test_a_line_that_gives_nothing_more_is_given_up_at_once(tmp_path: Path) -> None:
    line = Line(DATA, 0)
    with pytest.raises(ArtifactRefused) as caught:
        Staging(tmp_path / "a", fetch={"file": line}).ensure(blob(tmp_path))
    assert caught.value.reason == "ArtifactUnavailable"
    assert line.asked == [0]


def test_a_line_that_breaks_all_the_time_is_given_up_after_nine_tries(tmp_path: Path) -> None:
    line = Line(DATA, 1)
    with pytest.raises(ArtifactRefused):
        Staging(tmp_path / "a", fetch={"file": line}).ensure(blob(tmp_path))
    assert line.asked == list(range(9))


def test_room_is_needed_only_for_what_is_missing(tmp_path: Path) -> None:
    wanted = blob(tmp_path)
    partial(tmp_path / "a", wanted, DATA[:-10])
    assert Staging(tmp_path / "a", free=lambda _: 10).ensure(wanted).read_bytes() == DATA


def test_a_part_that_nobody_wants_any_more_goes_and_a_wanted_one_stays(tmp_path: Path) -> None:
    staging, wanted = Staging(tmp_path / "a"), blob(tmp_path)
    kept = partial(tmp_path / "a", wanted, DATA[:9])
    partial(tmp_path / "a", Blob(uri="file:///x", digest=digest_bytes(b"x")), b"y")
    assert staging.collect([wanted.digest], 0) == ()
    assert list((tmp_path / "a").iterdir()) == [kept]


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
