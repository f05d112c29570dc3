"""The gateway's end of the frame socket: a thread that sends, and a queue that never makes a request wait."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import structlog

from blurfleet.errors import BlurfleetError
from blurfleet.serving import framecodec
from blurfleet.serving.framecodec import FrameSample
from blurfleet.serving.framequeue import FrameQueue

SEND_TIMEOUT_S = 2.0  # an agent that does not read for this long is treated as gone
FIRST_BACKOFF_S, LAST_BACKOFF_S = 0.05, 2.0


@contextlib.contextmanager
def reachable(path: Path) -> Iterator[str]:
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
        self._queue = FrameQueue(capacity)
        self._sent = 0
        self._lost = 0
        self._socket: socket.socket | None = None
        self._log = structlog.get_logger("blurfleet.frames")
        self._thread = threading.Thread(target=self._run, name="frame-sender", daemon=True)
        self._thread.start()

    def offer(self, sample: FrameSample) -> None:
        """Queue a frame; the oldest sound one that waits is dropped where the queue is full, by frames or by bytes."""
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
            with reachable(self._path) as name:
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
