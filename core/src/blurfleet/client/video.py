"""A stream of video frames, from the client's side: frames out as fast as they come, answers in as they come.

A frame's id is its number in the stream, from 1. The gateway works on the newest; what it left out is named with the
next answer.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from typing import Any

from websockets.asyncio.client import ClientConnection as AsyncConnection
from websockets.asyncio.client import connect as connect_async
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from blurfleet.client.calls import Photo
from blurfleet.client.failures import GatewayFailure, GatewayUnavailable, failure_of
from blurfleet.client.frames import Conversation, Heard, VideoOptions, frame_bytes, silent
from blurfleet.client.terms import Terms
from blurfleet.reasons import Reason
from blurfleet.serving.streaming import SUBPROTOCOL, End, Summary, text_of

MAX_ANSWER_BYTES = 128 << 20
# A connection that is cut becomes a GatewayUnavailable; websockets would print its traceback beside it.
_LOG = logging.getLogger("blurfleet.client.stream")
_LOG.addHandler(logging.NullHandler())


class _Open:
    """What is known of a stream by its conversation, however its messages travel."""

    def __init__(self, conversation: Conversation) -> None:
        self._talk = conversation

    @property
    def name(self) -> str:
        """Return the stream's name in frames, logs and evidence."""
        return self._talk.ready.stream if self._talk.ready is not None else ""

    @property
    def summary(self) -> Summary | None:
        """Return the gateway's summary, None until the stream has ended."""
        return self._talk.summary


class Video(_Open):
    """An open stream. One thread may send while another receives."""

    def __init__(self, socket: ClientConnection, conversation: Conversation) -> None:
        super().__init__(conversation)
        self._socket = socket

    def greet(self, timeout_s: float) -> None:
        """Say hello and wait until the stream is open. Raises GatewayFailure where it is not."""
        self._put(self._talk.hello)
        while self._talk.ready is None:
            self._hear(timeout_s)

    def send(self, photo: Photo) -> int:
        """Send a frame, encoded or uint8 RGB [H,W,3] (packed as JPEG); return its id.

        Raises GatewayUnavailable, and RequestRefused for one that is too large: the stream goes on without it.
        """
        self._put(self._talk.fitting(frame_bytes(photo)))
        self._talk.sent += 1
        return self._talk.sent

    def receive(self, timeout_s: float = 30.0) -> Heard | None:
        """Return the next frame's result or failure, None once the stream has ended. Raises GatewayFailure."""
        while self._talk.summary is None:
            heard = self._hear(timeout_s)
            if heard is not None:
                return heard
        return None

    def __iter__(self) -> Iterator[Heard]:
        """Yield results until the stream has ended."""
        while (heard := self.receive()) is not None:
            yield heard

    def end(self, timeout_s: float = 30.0) -> Summary:
        """Say that no more frames come, skip the answers that are left, and return the summary."""
        if self._talk.summary is None:
            self._put(text_of(End()))
        while self.receive(timeout_s) is not None:
            pass
        assert self._talk.summary is not None
        return self._talk.summary

    def _hear(self, timeout_s: float) -> Heard | None:
        try:
            return self._talk.take(self._socket.recv(timeout=timeout_s))
        except ConnectionClosed as error:
            raise self._talk.broken(error) from error
        except TimeoutError as error:
            raise silent(timeout_s) from error

    def _put(self, message: str | bytes) -> None:
        try:
            self._socket.send(message)
        except ConnectionClosed as error:
            self.receive()  # the gateway's last words say why
            raise self._talk.broken(error) from error


class AsyncVideo(_Open):
    """An open stream. One task may send while another receives."""

    def __init__(self, socket: AsyncConnection, conversation: Conversation) -> None:
        super().__init__(conversation)
        self._socket = socket

    async def greet(self, timeout_s: float) -> None:
        """Say hello and wait until the stream is open. Raises GatewayFailure where it is not."""
        await self._put(self._talk.hello)
        while self._talk.ready is None:
            await self._hear(timeout_s)

    async def send(self, photo: Photo) -> int:
        """Send a frame, encoded or uint8 RGB [H,W,3] (packed as JPEG); return its id.

        Raises GatewayUnavailable, and RequestRefused for one that is too large: the stream goes on without it.
        """
        await self._put(self._talk.fitting(frame_bytes(photo)))
        self._talk.sent += 1
        return self._talk.sent

    async def receive(self, timeout_s: float = 30.0) -> Heard | None:
        """Return the next frame's result or failure, None once the stream has ended. Raises GatewayFailure."""
        while self._talk.summary is None:
            heard = await self._hear(timeout_s)
            if heard is not None:
                return heard
        return None

    async def __aiter__(self) -> AsyncIterator[Heard]:
        """Yield results until the stream has ended."""
        while (heard := await self.receive()) is not None:
            yield heard

    async def end(self, timeout_s: float = 30.0) -> Summary:
        """Say that no more frames come, skip the answers that are left, and return the summary."""
        if self._talk.summary is None:
            await self._put(text_of(End()))
        while await self.receive(timeout_s) is not None:
            pass
        assert self._talk.summary is not None
        return self._talk.summary

    async def _hear(self, timeout_s: float) -> Heard | None:
        try:
            async with asyncio.timeout(timeout_s):
                return self._talk.take(await self._socket.recv())
        except ConnectionClosed as error:
            raise self._talk.broken(error) from error
        except TimeoutError as error:
            raise silent(timeout_s) from error

    async def _put(self, message: str | bytes) -> None:
        try:
            await self._socket.send(message)
        except ConnectionClosed as error:
            await self.receive()  # the gateway's last words say why
            raise self._talk.broken(error) from error


@contextmanager
def opened(url: str, terms: Terms, options: VideoOptions, verify: ssl.SSLContext | bool) -> Iterator[Video]:
    """Yield an open stream of the gateway at `url`; it is ended after the block. Raises GatewayFailure."""
    conversation = Conversation(options, terms)
    with ExitStack() as stack:
        try:
            socket = stack.enter_context(connect(_address(url), **_how(url, terms, verify)))
        except (OSError, InvalidHandshake) as error:
            raise _unopened(error, url) from error
        video = Video(socket, conversation)
        video.greet(terms.deadline_s)
        yield video
        if conversation.summary is None:
            video.end()


@asynccontextmanager
async def opened_async(
    url: str, terms: Terms, options: VideoOptions, verify: ssl.SSLContext | bool
) -> AsyncIterator[AsyncVideo]:
    """Yield an open stream of the gateway at `url`; it is ended after the block. Raises GatewayFailure."""
    conversation = Conversation(options, terms)
    async with AsyncExitStack() as stack:
        try:
            socket = await stack.enter_async_context(connect_async(_address(url), **_how(url, terms, verify)))
        except (OSError, InvalidHandshake) as error:
            raise _unopened(error, url) from error
        video = AsyncVideo(socket, conversation)
        await video.greet(terms.deadline_s)
        yield video
        if conversation.summary is None:
            await video.end()


def _address(url: str) -> str:
    return f"ws{url.removeprefix('http')}/v1/stream"


def _how(url: str, terms: Terms, verify: ssl.SSLContext | bool) -> dict[str, Any]:
    """Return how to connect: no compression of what is packed already, no proxy on the way to the node's own door."""
    how: dict[str, Any] = {
        "subprotocols": [SUBPROTOCOL],
        "additional_headers": terms.authorization(),
        "compression": None,
        "proxy": None,
        "max_size": MAX_ANSWER_BYTES,
        "open_timeout": terms.deadline_s,
        "logger": _LOG,
    }
    if url.startswith("https"):
        how["ssl"] = verify if isinstance(verify, ssl.SSLContext) else _context(verify)
    return how


def _context(verify: bool) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _unopened(error: Exception, url: str) -> GatewayFailure:
    if isinstance(error, InvalidStatus):
        return failure_of(error.response.status_code, bytes(error.response.body or b""))
    if isinstance(error, TimeoutError):
        return GatewayUnavailable(Reason.DEADLINE_EXCEEDED, "the stream was not opened in time", where=url)
    message = f"no connection: {error}" if str(error) else f"no connection: {type(error).__name__}"
    return GatewayUnavailable(Reason.GATEWAY_UNREACHABLE, message, where=url, fix="is a gateway running there?")
