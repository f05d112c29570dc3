"""The HTTP session that kopf watches through: an answer 410 begins a watch anew and ends no process.

kopf takes 410 inside a stream as a reason to list again, but as a status it ends the operator, and a pod that ends
often is started again ever later. A server answers so where the history, or the rest of a long listing, was compacted.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import kopf
from aiohttp.base_protocol import BaseProtocol

from blurfleet.store.kubeclient import Identity

_GONE = 410
_LIMIT = 1 << 16  # bytes, as aiohttp has it


def _stream(said: object) -> aiohttp.StreamReader:
    loop = asyncio.get_running_loop()
    stream = aiohttp.StreamReader(BaseProtocol(loop), limit=_LIMIT, loop=loop)
    stream.feed_data(json.dumps(said).encode() + b"\n")
    stream.feed_eof()
    return stream


async def list_again(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Send a request; let 410 mean to kopf what it means in a stream.

    A watch gets the stream's own error event, and a listing breaks off (ClientPayloadError): kopf then lists from the
    start after both.
    """
    answer = await handler(request)
    if answer.status != _GONE or request.method != "GET":
        return answer
    said: Any = {"kind": "Status", "code": _GONE, "reason": "Expired"}
    if "watch" not in request.url.query:
        answer.release()
        raise aiohttp.ClientPayloadError("410: what was listed so far is gone")
    await answer.read()
    told: Any = answer
    told.status, told.content = 200, _stream({"type": "ERROR", "object": said})
    return answer


def session(who: Identity) -> kopf.AiohttpSession:
    """Return the session of `who`; kopf closes it. Call it on kopf's loop."""
    info = kopf.ConnectionInfo(
        server=who.host,
        ca_path=who.authority,
        insecure=who.insecure,
        scheme="Bearer" if who.token else None,
        token=who.token,
        certificate_path=who.certificate,
        private_key_path=who.key,
    )
    made = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=info.as_ssl_context()),
        headers=info.as_http_headers(),
        middlewares=(list_again,),
    )
    return kopf.AiohttpSession(server=who.host, aiohttp_session=made)
