"""The client for programs that do other things while they wait."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from types import TracebackType
from typing import Any, TypeVar

import httpx

from blurfleet.api.contract import ContractSpec
from blurfleet.client import calls
from blurfleet.client.answers import ContractAnswer, MatteAnswer, PictureAnswer, TensorAnswer
from blurfleet.client.calls import Call, Photo
from blurfleet.client.contracts import Known
from blurfleet.client.failures import RequestRefused, failure_of
from blurfleet.client.frames import VideoOptions
from blurfleet.client.single import unavailable
from blurfleet.client.terms import Terms, pause_before_retry
from blurfleet.client.video import AsyncVideo, opened_async
from blurfleet.pixels import Tensor
from blurfleet.reasons import Reason

T = TypeVar("T")


class AsyncClient:
    """Asks one gateway, as `Client` does. For one event loop; close it, or use it as an async context manager.

    `verify` is what httpx takes: an SSL context, or False. Proxies of the environment are not followed: the gateway is
    the node's own door. Every method raises RequestRefused, MatteWithheld or GatewayUnavailable, each with the
    gateway's reason, sentence and fix; a 503 that says when to come back is asked again within `terms.deadline_s`.
    """

    def __init__(
        self,
        url: str,
        terms: Terms | None = None,
        *,
        verify: ssl.SSLContext | bool = True,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
        _shared: tuple[httpx.AsyncClient, Known] | None = None,
    ) -> None:
        self.url = calls.base_url(url)
        self.terms = terms or Terms()
        self._verify = verify
        self._pause = pause
        self._http, self._known = _shared or (
            httpx.AsyncClient(base_url=self.url, verify=verify, trust_env=False),
            Known(),
        )

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections, those of clients made by `asking` too."""
        await self._http.aclose()

    def asking(self, **terms: Any) -> AsyncClient:
        """Return a client on the same connections with other terms: `asking(evidence=False, traceparent=...)`."""
        shared = (self._http, self._known)
        return AsyncClient(
            self.url, replace(self.terms, **terms), verify=self._verify, pause=self._pause, _shared=shared
        )

    async def matte(self, photo: Photo, *, fine: bool = False) -> MatteAnswer:
        """Return the matte of an encoded picture or uint8 RGB [H,W,3].

        It is the network's own, at its size; `fine` is laid over the picture along its edges, at the picture's size.
        """
        return await self._do(calls.matte(photo, fine=fine))

    async def blur(self, photo: Photo, **options: str | float) -> PictureAnswer:
        """Return the finished picture; `options` are those of `/v1/blur`: radius, style, mode, background, format."""
        return await self._do(calls.blur(photo, options))

    async def tensor(self, values: Tensor, made_with: str | ContractSpec | None = None) -> TensorAnswer:
        """Return the matte of a ready tensor, float32 [1,3,H,W], that `made_with` (a contract or its hash) describes.

        Without it the tensor is declared as made with the contract served. A tensor made with another is refused here.
        """
        try:
            return await self._do(calls.tensor(values, calls.agreed(await self.contract(), made_with)))
        except RequestRefused as error:
            if error.reason is Reason.CONTRACT_MISMATCH:
                self._known.forget()
            raise

    async def prepare(self, photo: Photo) -> Tensor:
        """Return the tensor of a picture by the contract served. Raises ContractRefused."""
        return calls.prepared(photo, await self.contract())

    async def contract(self, *, fresh: bool = False) -> ContractAnswer:
        """Return the contract served; asked once, and again after a mismatch or when `fresh`."""
        found = None if fresh else self._known.contract
        return found or self._known.learn(await self._do(calls.contract()))

    @asynccontextmanager
    async def stream(self, options: VideoOptions | None = None) -> AsyncIterator[AsyncVideo]:
        """Open a stream of video frames; it is closed, and its summary known, when the block ends."""
        async with opened_async(self.url, self.terms, options or VideoOptions(), self._verify) as video:
            yield video

    async def _do(self, call: Call[T]) -> T:
        until = time.monotonic() + self.terms.deadline_s
        while True:
            left_s = until - time.monotonic()
            response = await self._sent(call, max(left_s, 0.001))
            left_s = until - time.monotonic()
            if response.is_success:
                return call.answer(response.headers, response.content)
            wait_s = pause_before_retry(response.status_code, response.headers.get("retry-after", ""), left_s)
            if wait_s is None:
                raise failure_of(response.status_code, response.content)
            await self._pause(wait_s)

    async def _sent(self, call: Call[Any], left_s: float) -> httpx.Response:
        try:
            return await self._http.request(
                call.method,
                call.path,
                params=dict(call.query),
                headers={**call.headers, **self.terms.headers(left_s)},
                content=call.body,
                timeout=left_s,
            )
        except httpx.TransportError as error:
            raise unavailable(error, self.url, self.terms) from error
