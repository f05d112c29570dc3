"""Arrival order: every request gets its stream's next frame id the moment it arrives."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

from blurfleet.errors import InvalidInput
from blurfleet.reasons import Reason

MAX_STREAMS = 256
MAX_NAME = 128


@dataclass(frozen=True, kw_only=True)
class Ticket:
    """One request's place: `stream` is unique over gateways and restarts, `frame_id` grows from 1 within it."""

    stream: str
    frame_id: int


class OpenStream:
    """A stream that lasts as long as its connection. Used from one thread."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._last = 0

    def arrive(self) -> Ticket:
        """Return the next place."""
        self._last += 1
        return Ticket(stream=self.name, frame_id=self._last)


class Streams:
    """Numbers the clients' streams. Pictures without a stream name share one; the least recent stream is forgotten.

    A forgotten stream that comes back is a new stream, so that a frame id never means two frames.
    """

    def __init__(self, gateway: str) -> None:
        self._gateway = gateway
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[str, str], tuple[int, int]] = OrderedDict()
        self._made = 0

    def arrive(self, name: str = "", client: str = "") -> Ticket:
        """Return the next place in the stream `name` of `client`; two clients' streams of one name are two.

        Raises InvalidInput for a name beyond 128 characters.
        """
        if len(name) > MAX_NAME:
            raise InvalidInput(
                Reason.INVALID_REQUEST, f"a stream name has at most {MAX_NAME} characters", where="x-blurfleet-stream"
            )
        with self._lock:
            key = (client if name else "", name)
            number, last = self._known.pop(key, (0, 0))
            if number == 0:
                self._made += 1
                number = self._made
            self._known[key] = (number, last + 1)
            if len(self._known) > MAX_STREAMS:
                self._known.popitem(last=False)
        return Ticket(stream=f"{self._gateway}/{number}", frame_id=last + 1)

    def open(self) -> OpenStream:
        """Return a stream for one connection; it is never forgotten while that lasts."""
        with self._lock:
            self._made += 1
            return OpenStream(f"{self._gateway}/{self._made}")
