"""The Unix socket from gateway to agent: frames go one way, nothing comes back, and the gateway never waits.

The sender may lose frames (a queue that drops the oldest, a connection that breaks); it may not slow a request. The
receiver trusts nobody: a message that is not a frame closes that connection and no other.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import structlog

from blurfleet.errors import BlurfleetError, InvalidInput, NodeError
from blurfleet.reasons import Reason
from blurfleet.serving import framecodec
from blurfleet.serving.framecodec import FrameKind, FrameSample

__all__ = ["FrameKind", "FrameReceiver", "FrameSample", "FrameSender", "SenderCounts"]

SEND_TIMEOUT_S = 2.0  # an agent that does not read for this long is treated as gone
STALL_TIMEOUT_S = 5.0  # a message that has begun must be whole by then
FIRST_BACKOFF_S, LAST_BACKOFF_S = 0.05, 2.0
MAX_CONNECTIONS = 8

T = TypeVar("T")


class DropOldest(Generic[T]):
    """A bounded queue between threads: `put` never waits and pushes the oldest item out; `get` waits for one."""

    def __init__(self, capacity: int) -> None:
        self._items: deque[T] = deque(maxlen=capacity)
        self._changed = threading.Condition()
        self._closed = False
        self.dropped = 0

    def put(self, item: T) -> None:
        """Append `item`; after `close` it is dropped."""
        with self._changed:
            if self._closed:
                self.dropped += 1
                return
            self.dropped += len(self._items) == self._items.maxlen
            self._items.append(item)
            self._changed.notify()

    def get(self, timeout_s: float | None = None) -> T | None:
        """Return the oldest item, None when `timeout_s` has passed or the queue is closed and empty."""
        with self._changed:
            self._changed.wait_for(lambda: self._items or self._closed, timeout_s)
            return self._items.popleft() if self._items else None

    def wait_closed(self, timeout_s: float) -> bool:
        """Return True once the queue is closed, False when `timeout_s` has passed first."""
        with self._changed:
            return self._changed.wait_for(lambda: self._closed, timeout_s)

    def close(self) -> None:
        """Wake everyone who waits; what is queued can still be taken."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    @property
    def closed(self) -> bool:
        """Tell whether `close` was called."""
        return self._closed


@contextlib.contextmanager
def _reachable(path: Path) -> Iterator[str]:
    """Yield a name of `path` that fits into a socket address (107 bytes) however deep its folder lies."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


@dataclass(frozen=True, kw_only=True)
class SenderCounts:
    """How many frames left, how many were dropped (queue full, connection broken, too large), and whether one is up."""

    sent: int
    dropped: int
    connected: bool


class FrameSender:
    """Sends frames to the agent's socket from a thread of its own. `offer` neither waits nor raises."""

    def __init__(self, path: Path, capacity: int = 32) -> None:
        self._path = path
        self._queue: DropOldest[FrameSample] = DropOldest(capacity)
        self._sent = 0
        self._lost = 0
        self._socket: socket.socket | None = None
        self._log = structlog.get_logger("blurfleet.frames")
        self._thread = threading.Thread(target=self._run, name="frame-sender", daemon=True)
        self._thread.start()

    def offer(self, sample: FrameSample) -> None:
        """Queue a frame; the oldest waiting one is dropped where the queue is full."""
        self._queue.put(sample)

    @property
    def counts(self) -> SenderCounts:
        """Return the counters as they are now."""
        return SenderCounts(
            sent=self._sent, dropped=self._lost + self._queue.dropped, connected=self._socket is not None
        )

    def close(self, timeout_s: float = SEND_TIMEOUT_S + 1) -> None:
        """Stop the thread; frames that are still queued are sent if the agent is there, dropped otherwise."""
        self._queue.close()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        backoff = FIRST_BACKOFF_S
        while (sample := self._queue.get()) is not None:
            while self._socket is None:
                self._socket = self._connect()
                if self._socket is not None:
                    backoff = FIRST_BACKOFF_S
                elif self._queue.wait_closed(backoff):
                    return
                else:
                    backoff = min(2 * backoff, LAST_BACKOFF_S)
            self._send(self._socket, sample)
        self._disconnect()

    def _connect(self) -> socket.socket | None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(SEND_TIMEOUT_S)
        try:
            with _reachable(self._path) as name:
                connection.connect(name)
        except OSError:
            connection.close()
            return None
        return connection

    def _send(self, connection: socket.socket, sample: FrameSample) -> None:
        try:
            for buffer in framecodec.encode(sample):
                connection.sendall(buffer)
            self._sent += 1
        except OSError as error:
            self._lost += 1
            self._disconnect()
            self._log.warning("frames.connection_lost", error=str(error))
        except (BlurfleetError, ValueError, TypeError) as error:
            self._lost += 1
            self._log.warning("frames.unsendable", error=str(error))

    def _disconnect(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


class FrameReceiver:
    """Listens at `path` (mode 0600) and hands out frames; the oldest waiting one is dropped beyond `capacity`.

    Raises NodeError where the socket cannot be made, or another process listens there already. `on_error` hears of
    each connection that was closed for sending something else than frames.
    """

    def __init__(
        self, path: Path, *, capacity: int = 64, on_error: Callable[[BlurfleetError], None] | None = None
    ) -> None:
        self._path = path
        self._queue: DropOldest[FrameSample] = DropOldest(capacity)
        self._on_error = on_error
        self._log = structlog.get_logger("blurfleet.frames")
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self.refused = 0
        self._listener = _listen(path)
        self._acceptor = threading.Thread(target=self._accept, name="frame-acceptor", daemon=True)
        self._acceptor.start()

    def receive(self, timeout_s: float | None = None) -> FrameSample | None:
        """Return the next frame, None when `timeout_s` has passed or the receiver is closed."""
        return self._queue.get(timeout_s)

    def __iter__(self) -> Iterator[FrameSample]:
        """Yield frames until the receiver is closed."""
        while (sample := self._queue.get()) is not None:
            yield sample

    @property
    def dropped(self) -> int:
        """Return how many frames were pushed out because nobody took them in time."""
        return self._queue.dropped

    def close(self) -> None:
        """Stop listening, end all connections, remove the socket file."""
        self._queue.close()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # close() alone does not wake accept()
        self._acceptor.join()
        self._listener.close()
        with self._lock:
            for connection in self._connections:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._path.unlink(missing_ok=True)

    def __enter__(self) -> FrameReceiver:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        while not self._queue.closed:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                full = len(self._connections) >= MAX_CONNECTIONS
                if not full:
                    self._connections.add(connection)
            if full:
                connection.close()
                self._refuse(framecodec.broken(f"more than {MAX_CONNECTIONS} connections"))
                continue
            self._threads = [t for t in self._threads if t.is_alive()]
            thread = threading.Thread(target=self._serve, args=(connection,), name="frame-reader", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            while (sample := _read(connection)) is not None:
                self._queue.put(sample)
        except InvalidInput as error:
            self._refuse(error)
        except OSError as error:
            self._refuse(framecodec.broken(f"a connection broke inside a message: {error}"))
        finally:
            with self._lock:
                self._connections.discard(connection)
            connection.close()

    def _refuse(self, error: BlurfleetError) -> None:
        if self._queue.closed:
            return
        self.refused += 1
        self._log.warning("frames.connection_closed", reason=error.reason.value, error=error.message)
        if self._on_error is not None:
            self._on_error(error)


def _listen(path: Path) -> socket.socket:
    """Return a listening socket at `path`: made beside it with mode 0600, then renamed over a stale one."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        _refuse_to_replace(path)
        fresh.unlink(missing_ok=True)
        with _reachable(fresh) as name:
            listener.bind(name)
        fresh.chmod(0o600)
        listener.listen(MAX_CONNECTIONS)
        fresh.replace(path)
    except OSError as error:
        listener.close()
        raise NodeError(
            Reason.UNREADABLE_FILE, f"the frame socket cannot be made: {error.strerror}", where=str(path)
        ) from error
    except NodeError:
        listener.close()
        raise
    return listener


def _refuse_to_replace(path: Path) -> None:
    """Raise NodeError where `path` is no socket, or one that somebody still listens at."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return
    taken = not stat.S_ISSOCK(mode)
    if not taken:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe, _reachable(path) as name:
            taken = probe.connect_ex(name) == 0
    if taken:
        raise NodeError(
            Reason.PORT_IN_USE, "something else is there or listens there", where=str(path), fix="stop the other agent"
        )


def _read(connection: socket.socket) -> FrameSample | None:
    """Return the next frame, None at an orderly end between messages. Raises InvalidInput, OSError."""
    connection.settimeout(None)
    first = connection.recv(1)
    if not first:
        return None
    connection.settimeout(STALL_TIMEOUT_S)
    prefix = first + _exactly(connection, framecodec.PREFIX.size - 1)
    header_bytes, array_bytes = framecodec.lengths(prefix)
    header = bytes(_exactly(connection, header_bytes))
    return framecodec.decode(header, _exactly(connection, array_bytes))


def _exactly(connection: socket.socket, count: int) -> bytearray:
    buffer = bytearray(count)
    view = memoryview(buffer)
    while view:
        got = connection.recv_into(view)
        if got == 0:
            raise framecodec.broken(f"a connection ended {len(view)} bytes before its message")
        view = view[got:]
    return buffer
