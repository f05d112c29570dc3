"""Frames from gateway to agent: whole or not at all, never slowing the one who sends."""

import contextlib
import errno
import socket
import stat
import statistics
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from blurfleet.errors import BlurfleetError, InvalidInput, NodeError
from blurfleet.serving import framecodec
from blurfleet.serving.framequeue import FrameQueue
from blurfleet.serving.frames import FrameKind, FrameReceiver, FrameSample, FrameSender

DEADLINE_S = 60.0


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, "the condition did not come true in time"
        threading.Event().wait(0.005)


def sample(frame_id: int = 1, size: int = 8, kind: FrameKind = FrameKind.SAMPLE) -> FrameSample:
    rng = np.random.default_rng(frame_id)
    return FrameSample(
        model="bokeh",
        stream="g1/7",
        frame_id=frame_id,
        epoch=12,
        engine="bokeh__0123456789ab",
        digest="sha256:" + "0" * 64,
        at=1234.5,
        tensor=rng.random((1, 3, size, size), np.float32),
        matte=rng.random((1, 1, size, size), np.float32),
        kind=kind,
    )


def same(left: FrameSample, right: FrameSample) -> bool:
    for field in fields(FrameSample):
        a, b = getattr(left, field.name), getattr(right, field.name)
        equal = np.array_equal(a, b, equal_nan=True) if isinstance(a, np.ndarray) and b is not None else a == b
        if not equal:
            return False
    return True


def packed(frame: FrameSample) -> bytes:
    return b"".join(bytes(part) for part in framecodec.encode(frame))


def unpacked(data: bytes) -> FrameSample:
    header, arrays = framecodec.lengths(data[: framecodec.PREFIX.size])
    body = data[framecodec.PREFIX.size :]
    if len(body) != header + arrays:
        raise framecodec.broken("length")
    return framecodec.decode(body[:header], body[header:])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    deep = tmp_path / ("d" * 100)  # deeper than a socket address can hold
    deep.mkdir()
    return deep / "frames.sock"


@pytest.fixture
def receiver(path: Path) -> Iterator[FrameReceiver]:
    with FrameReceiver(path) as listening:
        yield listening


@contextlib.contextmanager
def short_name(path: Path) -> Iterator[str]:
    with contextlib.chdir(path.parent):  # the whole path does not fit into a socket address
        yield path.name


def closed_by_peer(connection: socket.socket) -> bool:
    connection.settimeout(DEADLINE_S)
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


_floats = st.floats(width=32)


@settings(deadline=None)
@given(
    tensor=hnp.arrays(
        np.float32, st.tuples(st.just(1), st.just(3), st.integers(0, 4), st.integers(0, 4)), elements=_floats
    ),
    matte=hnp.arrays(
        np.float32, st.tuples(st.just(1), st.just(1), st.integers(0, 4), st.integers(0, 4)), elements=_floats
    ),
    both=st.booleans(),
    text=st.text(max_size=30),
    number=st.integers(0, 2**62),
    kind=st.sampled_from(FrameKind),
    allowed=st.booleans(),
)
def test_what_is_encoded_is_what_is_decoded(
    tensor: framecodec.Array,
    matte: framecodec.Array,
    both: bool,
    text: str,
    number: int,
    kind: FrameKind,
    allowed: bool,
) -> None:
    frame = replace(
        sample(), tensor=tensor, matte=matte, fallback_matte=-matte if both else None, reason=text, stream=text,
        frame_id=number, kind=kind, evidence_allowed=allowed,
    )  # fmt: skip
    assert same(unpacked(packed(frame)), frame)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), min_size=1, max_size=8), st.integers(12, 3000))
def test_damaged_messages_decode_or_raise_the_typed_error(edits: list[tuple[int, int]], keep: int) -> None:
    data = bytearray(packed(sample()))
    for at, value in edits:
        if at < len(data):
            data[at] = value
    for candidate in (bytes(data), bytes(data[:keep])):
        try:
            frame = unpacked(candidate)
        except InvalidInput:
            continue
        assert frame.tensor.dtype == np.float32


@pytest.mark.parametrize("header", [b"[]", b"{}", b"null", b'{"schemaVersion": 2}', b"\xff", b"[" * 9000], ids=str)
def test_a_header_that_is_not_a_frames_is_refused(header: bytes) -> None:
    with pytest.raises(InvalidInput):
        framecodec.decode(header, b"")


def test_frames_arrive_in_order_with_their_values(receiver: FrameReceiver, path: Path) -> None:
    sender = FrameSender(path)
    frames = [sample(n) for n in range(3)]
    for frame in frames:
        sender.offer(frame)
    got = [receiver.receive(DEADLINE_S) for _ in frames]
    assert all(g is not None and same(g, f) for g, f in zip(got, frames, strict=True))
    assert sender.counts.sent == 3
    assert sender.counts.dropped == 0
    sender.close()


def test_frames_of_every_kind_arrive_and_those_in_doubt_overtake(receiver: FrameReceiver, path: Path) -> None:
    frames = [sample(1), sample(2), sample(3, kind=FrameKind.SUSPECT), sample(4, kind=FrameKind.WITHHELD)]
    sender = FrameSender(path)
    for frame in frames:
        sender.offer(frame)
    until(lambda: sender.counts.sent == 4 and len(receiver._queue._frames) == 4)
    got = [receiver.receive(DEADLINE_S) for _ in frames]
    assert [f.frame_id for f in got if f is not None] == [3, 4, 1, 2]
    assert got[0] is not None
    assert same(got[0], frames[2])
    sender.close()


@pytest.mark.parametrize(
    ("kinds", "kept"),
    [
        pytest.param("sssss", [2, 3, 4], id="the oldest go"),
        pytest.param("wwsss", [0, 1, 4], id="sound ones go before those in doubt"),
        pytest.param("wwwss", [0, 1, 2], id="a sound one does not push out one in doubt"),
        pytest.param("wwwww", [2, 3, 4], id="the oldest in doubt where there are no others"),
    ],
)
@pytest.mark.parametrize("by_bytes", [False, True], ids=["too many frames", "too many bytes"])
def test_a_full_queue_drops_the_oldest_sound_frame_first(kinds: str, kept: list[int], by_bytes: bool) -> None:
    size = sample().nbytes
    queue = FrameQueue(100, limit_bytes=3 * size + 1) if by_bytes else FrameQueue(3)
    for n, kind in enumerate(kinds):
        queue.put(sample(n, kind=FrameKind.WITHHELD if kind == "w" else FrameKind.SAMPLE))
    assert queue.dropped == 2
    got = [queue.get(0.0) for _ in range(3)]
    assert sorted(f.frame_id for f in got if f is not None) == kept
    assert queue.get(0.0) is None


def test_one_frame_is_kept_however_large() -> None:
    queue = FrameQueue(4, limit_bytes=10)
    for n in range(3):
        queue.put(sample(n))
    found = queue.get(0.0)
    assert (found.frame_id if found else None, queue.dropped) == (2, 2)


def test_two_frames_of_the_same_name_are_two_frames() -> None:
    first, second = sample(1), sample(1)
    queue = FrameQueue(4)
    queue.put(first)
    queue.put(second)
    assert queue.get(0.0) is first
    assert queue.get(0.0) is second
    assert first != second


def test_too_many_open_files_does_not_end_the_acceptor(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, refused = socket.socket.accept, []

    def accept(self: socket.socket) -> object:
        if not refused:
            refused.append(True)
            raise OSError(errno.EMFILE, "Too many open files")
        return real(self)

    monkeypatch.setattr(socket.socket, "accept", accept)
    with FrameReceiver(path) as receiver:
        sender = FrameSender(path)
        sender.offer(sample(7))
        found = receiver.receive(DEADLINE_S)
        assert (found.frame_id if found else None, refused, receiver.alive) == (7, [True], True)
        sender.close()
    assert not receiver.alive


def test_a_thread_that_cannot_be_started_costs_that_connection_only(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: list[BlurfleetError] = []
    with FrameReceiver(path, on_error=errors.append) as receiver:
        with monkeypatch.context() as patched, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as unlucky:
            patched.setattr(threading.Thread, "start", lambda _self: (_ for _ in ()).throw(RuntimeError("no thread")))
            with short_name(path) as name:
                unlucky.connect(name)
            until(lambda: len(errors) == 1)
            assert closed_by_peer(unlucky)
        sender = FrameSender(path)
        sender.offer(sample(8))
        assert receiver.receive(DEADLINE_S) is not None
        assert receiver.alive
        sender.close()


def test_the_socket_is_for_its_owner_only(receiver: FrameReceiver, path: Path) -> None:
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_without_an_agent_the_oldest_are_dropped_and_the_newest_arrive_later(path: Path) -> None:
    sender = FrameSender(path, capacity=4)
    started = time.perf_counter()
    for n in range(200):
        sender.offer(sample(n))
    assert time.perf_counter() - started < DEADLINE_S
    until(lambda: sender.counts.dropped >= 195)
    with FrameReceiver(path) as receiver:
        ids = []
        while not ids or ids[-1] != 199:
            frame = receiver.receive(DEADLINE_S)
            assert frame is not None
            ids.append(frame.frame_id)
        assert ids[-4:] == [196, 197, 198, 199]
        assert len(ids) <= 5
        sender.close()


def test_a_restarted_agent_gets_frames_again(path: Path) -> None:
    sender = FrameSender(path)
    with FrameReceiver(path) as first:
        sender.offer(sample(1))
        assert first.receive(DEADLINE_S) is not None
    with FrameReceiver(path) as second:
        got: list[int] = []

        def offered() -> bool:
            sender.offer(sample(2))
            frame = second.receive(0.05)
            got.extend([frame.frame_id] if frame else [])
            return bool(got)

        until(offered)
        assert got == [2]
        sender.close()


def test_an_agent_that_does_not_read_never_blocks_the_request(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as deaf:
        with short_name(path) as name:
            deaf.bind(name)
        deaf.listen(1)
        sender = FrameSender(path, capacity=2)
        took = []
        for n in range(50):
            started = time.perf_counter()
            sender.offer(sample(n, size=160))
            took.append(time.perf_counter() - started)
        assert statistics.median(took) < 0.1  # a single one may have been set aside by the machine
        until(lambda: sender.counts.dropped >= 40)
    sender.close()


@pytest.mark.parametrize(
    "junk",
    [
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="another protocol"),
        pytest.param(framecodec.PREFIX.pack(framecodec.MAGIC, 1 << 30, 0), id="a giant header"),
        pytest.param(framecodec.PREFIX.pack(framecodec.MAGIC, 2, 1 << 31), id="giant arrays"),
        pytest.param(framecodec.PREFIX.pack(framecodec.MAGIC, 2, 0) + b"{}", id="an empty header"),
        pytest.param(packed(sample())[:-1], id="a message without its last byte"),
        pytest.param(struct.pack(">4sI", framecodec.MAGIC, 7), id="half a prefix"),
    ],
)
def test_garbage_closes_that_connection_and_no_other(path: Path, junk: bytes) -> None:
    errors: list[BlurfleetError] = []
    with FrameReceiver(path, on_error=errors.append) as receiver:
        sender = FrameSender(path)
        sender.offer(sample(1))
        assert receiver.receive(DEADLINE_S) is not None
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as rude:
            with short_name(path) as name:
                rude.connect(name)
            rude.sendall(junk)
            rude.shutdown(socket.SHUT_WR)
            until(lambda: len(errors) == 1)
            assert closed_by_peer(rude)
        assert isinstance(errors[0], InvalidInput)
        sender.offer(sample(2))
        later = receiver.receive(DEADLINE_S)
        assert later is not None
        assert later.frame_id == 2
        sender.close()


def test_a_stale_socket_is_replaced(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead, short_name(path) as name:
        dead.bind(name)
    assert path.exists()
    with FrameReceiver(path) as receiver:
        sender = FrameSender(path)
        sender.offer(sample(3))
        assert receiver.receive(DEADLINE_S) is not None
        sender.close()
    assert not path.exists()


def test_a_second_agent_on_the_same_socket_is_refused(receiver: FrameReceiver, path: Path) -> None:
    with pytest.raises(NodeError, match="listens there"):
        FrameReceiver(path)


def test_a_file_that_is_no_socket_is_left_alone(path: Path) -> None:
    path.write_text("mine")
    with pytest.raises(NodeError):
        FrameReceiver(path)
    assert path.read_text() == "mine"


def test_a_frame_carries_its_requests_span_and_one_of_a_gateway_of_before_carries_none() -> None:
    message = packed(replace(sample(), trace_id="4bf92f3577b34da6a3ce929d0e0e4736", span_id="00f067aa0ba902b7"))
    header_bytes, _ = framecodec.lengths(message[: framecodec.PREFIX.size])
    header = message[framecodec.PREFIX.size :][:header_bytes]
    arrays = message[framecodec.PREFIX.size + header_bytes :]
    assert framecodec.decode(header, arrays).span_id == "00f067aa0ba902b7"
    before = header.replace(b'"span_id":"00f067aa0ba902b7",', b"")
    assert before != header
    assert framecodec.decode(before, arrays).span_id == ""
