"""The agent's end of the frame socket: trusts nobody; what is not a frame closes that connection and no other."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import structlog

from blurfleet.errors import BlurfleetError, InvalidInput, NodeError
from blurfleet.reasons import Reason
from blurfleet.serving import framecodec
from blurfleet.serving.framecodec import FrameSample
from blurfleet.serving.framequeue import FrameQueue
from blurfleet.serving.framesender import reachable

STALL_TIMEOUT_S = 5.0  # a message that has begun must be whole by then
MAX_CONNECTIONS = 8
ACCEPT_PAUSE_S = 0.2


class FrameReceiver:
    """Listens at `path` (mode 0600) and hands out frames; the oldest sound one is dropped beyond `capacity` (or too
    many bytes).

    Raises NodeError where the socket cannot be made, or another process listens there already. `on_error` hears of
    each connection that was closed for sending something else than frames.
    """

    def __init__(
        self, path: Path, *, capacity: int = 64, on_error: Callable[[BlurfleetError], None] | None = None
    ) -> None:
        self._path = path
        self._queue = FrameQueue(capacity)
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
        """Return the next frame, one withheld or suspected before all others.

        None when `timeout_s` has passed, or the receiver is closed and nothing is left.
        """
        return self._queue.get(timeout_s)

    def __iter__(self) -> Iterator[FrameSample]:
        """Yield frames until the receiver is closed."""
        while (sample := self._queue.get()) is not None:
            yield sample

    @property
    def dropped(self) -> int:
        """Return how many frames were pushed out because nobody took them in time."""
        return self._queue.dropped

    @property
    def alive(self) -> bool:
        """Tell whether new connections are still accepted."""
        return self._acceptor.is_alive()

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
            except OSError as error:
                # Too many open files passes: a node must not lose its frames for good over it.
                if not self._queue.closed:
                    self._log.warning("frames.not_accepted", error=str(error))
                self._queue.wait_closed(ACCEPT_PAUSE_S)
                continue
            try:
                self._take(connection)
            except Exception as error:
                self._leave(connection)
                self._refuse(framecodec.broken(f"a connection cannot be read: {error}"))

    def _take(self, connection: socket.socket) -> None:
        with self._lock:
            full = len(self._connections) >= MAX_CONNECTIONS
            if not full:
                self._connections.add(connection)
        if full:
            raise framecodec.broken(f"more than {MAX_CONNECTIONS} connections")
        thread = threading.Thread(target=self._serve, args=(connection,), name="frame-reader", daemon=True)
        thread.start()
        self._threads = [*(t for t in self._threads if t.is_alive()), thread]

    def _leave(self, connection: socket.socket) -> None:
        with self._lock:
            self._connections.discard(connection)
        connection.close()

    def _serve(self, connection: socket.socket) -> None:
        try:
            while (sample := _read(connection)) is not None:
                self._queue.put(sample)
        except InvalidInput as error:
            self._refuse(error)
        except OSError as error:
            self._refuse(framecodec.broken(f"a connection broke inside a message: {error}"))
        finally:
            self._leave(connection)

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
        with reachable(fresh) as name:
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
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe, reachable(path) as name:
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
