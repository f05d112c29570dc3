"""Bodies on their way in: bounded in bytes each and together, and in the time a slow sender may take."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

from fastapi import Request

from blurfleet.errors import InvalidInput
from blurfleet.reasons import Reason
from blurfleet.serving.life import RequestLife
from blurfleet_preprocess.problems import Overloaded


@dataclass(frozen=True, kw_only=True)
class BodyLimits:
    """All bodies that are held have at most `held_bytes` together.

    A sender has `grace_s` seconds and one more for every `min_rate` bytes that have arrived: it is slow senders that
    hold a server's places, not large pictures.
    """

    held_bytes: int = 256 << 20
    grace_s: float = 10.0
    min_rate: float = 16384.0


class Bodies:
    """Reads bodies. Used from one event loop only."""

    def __init__(self, limits: BodyLimits | None = None) -> None:
        self.limits = limits or BodyLimits()
        self.held = 0

    @contextlib.asynccontextmanager
    async def of(self, request: Request, life: RequestLife, max_bytes: int) -> AsyncIterator[bytes]:
        """Yield the body of at most `max_bytes`; it counts as held until the block ends.

        Raises InvalidInput (RequestTooLarge as soon as that is known, RequestTimeout), Overloaded, RequestEnded,
        ClientDisconnect.
        """
        share = _Share(self)
        try:
            yield await self._read(request, life, share, max_bytes)
        finally:
            share.give_back()

    async def _read(self, request: Request, life: RequestLife, share: _Share, max_bytes: int) -> bytes:
        declared = request.headers.get("content-length", "")
        if declared.isdecimal() and int(declared[:20]) > max_bytes:
            raise _too_large(max_bytes)
        chunks: list[bytes] = []
        try:
            async with asyncio.timeout(None) as time:
                begun = asyncio.get_running_loop().time()
                left = life.left_s()
                ends = None if left is None else begun + left
                allowed = begun + self.limits.grace_s
                time.reschedule(allowed if ends is None else min(allowed, ends))
                async for chunk in request.stream():
                    if not chunk:
                        continue
                    share.take(len(chunk))
                    chunks.append(chunk)
                    if share.bytes > max_bytes:
                        raise _too_large(max_bytes)
                    allowed = begun + self.limits.grace_s + share.bytes / self.limits.min_rate
                    time.reschedule(allowed if ends is None else min(allowed, ends))
        except TimeoutError:
            life.check()
            raise InvalidInput(
                Reason.REQUEST_TIMEOUT,
                f"{share.bytes} bytes of the body arrived, and then none for too long",
                where="body",
                fix=f"send at least {self.limits.min_rate:g} bytes a second",
            ) from None
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)


class _Share:
    """What one body takes of the memory for all."""

    def __init__(self, bodies: Bodies) -> None:
        self._bodies = bodies
        self.bytes = 0

    def take(self, count: int) -> None:
        if self._bodies.held + count > self._bodies.limits.held_bytes:
            raise Overloaded(
                Reason.OVERLOADED,
                f"{self._bodies.held} bytes of bodies are held for requests under way",
                fix="try again in a moment",
            )
        self._bodies.held += count
        self.bytes += count

    def give_back(self) -> None:
        self._bodies.held -= self.bytes
        self.bytes = 0


def _too_large(max_bytes: int) -> InvalidInput:
    message = f"a body has at most {max_bytes} bytes"
    return InvalidInput(Reason.REQUEST_TOO_LARGE, message, where="body", fix="send a smaller picture")
