"""The HTTP session that kopf watches through: no answer of a server, or of what stands before it, ends a watcher.

kopf takes a broken connection, and 410 inside a stream, as a reason to list again. All else that it does not expect
ends the watcher and with it the operator: 403 while roles are replaced, 404 while a kind is, 410 as a status, an error
in the stream, a page of a proxy, half a line. Here each becomes one of the two that it expects, and is logged.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import kopf
import structlog
from aiohttp.base_protocol import BaseProtocol

from blurfleet.store.kubeclient import Identity

_OK, _UNAUTHORIZED, _GONE, _TOO_MANY = 200, 401, 410, 429
_KOPFS_OWN = (_UNAUTHORIZED, _TOO_MANY)  # it asks who it is, or waits as it is told
_LIMIT = 1 << 16  # bytes, as aiohttp has it
_PAUSE_S = 1.0
_log = structlog.get_logger("blurfleet.operator")


class Lines:
    """A watch's content of whole lines that are events. Raises ClientPayloadError at the first that is not."""

    def __init__(self, content: aiohttp.StreamReader, where: str) -> None:
        self._content = content
        self._where = where

    def __getattr__(self, name: str) -> Any:
        return getattr(self._content, name)

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        """Yield whole lines of up to about `size` bytes; what is left of a line that was cut off says nothing."""
        rest = b""
        async for data in self._content.iter_chunked(size):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                if line.strip():
                    yield _event(line, self._where) + b"\n"


def _event(line: bytes, where: str) -> bytes:
    """Return an event as it is, an error of any kind as 410. Raises ClientPayloadError."""
    try:
        said = json.loads(line)
        kind, what = said["type"], said["object"]
        if kind != "ERROR":
            _ = what["metadata"]["resourceVersion"]
            return line
        code = what.get("code")
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise _broken(where, f"no event: {line[:80]!r}") from error
    if code != _GONE:
        _log.warning("watch failed", where=where, code=code, message=str(what.get("message", ""))[:200])
    return _gone()


def _gone() -> bytes:
    return json.dumps({"type": "ERROR", "object": {"kind": "Status", "code": _GONE, "reason": "Expired"}}).encode()


def _broken(where: str, message: str) -> aiohttp.ClientPayloadError:
    _log.warning("watch failed", where=where, message=message)
    return aiohttp.ClientPayloadError(f"{where}: {message}")


async def list_again(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Send a request; let every answer to a listing or a watch mean something that kopf goes on after.

    A watch that is gone gets the stream's own error event, and everything else breaks off (ClientPayloadError), after a
    pause: kopf tries again at once.
    """
    answer = await handler(request)
    query, where = request.url.query, request.url.path
    if request.method != "GET" or not ({"watch", "limit"} & query.keys()) or answer.status in _KOPFS_OWN:
        return answer
    if "watch" in query and answer.status in (_OK, _GONE):
        told: Any = answer
        if answer.status == _GONE:
            await answer.read()
            told.status, told.content = _OK, _stream(_gone())
        told.content = Lines(told.content, where)
        return answer
    problem = await _problem(answer)
    if problem:
        await asyncio.sleep(random.uniform(0.5, 1.5) * _PAUSE_S)
        raise _broken(where, problem)
    return answer


async def _problem(answer: aiohttp.ClientResponse) -> str:
    """Return what is wrong with an answer that is no stream, empty where it is a list of objects."""
    try:
        said = json.loads(await answer.read())
    except ValueError:
        return f"{answer.status}: no JSON"
    if answer.status != _OK:
        return f"{answer.status}: {str(said.get('message', ''))[:200] if isinstance(said, dict) else ''}"
    fine = isinstance(said, dict) and isinstance(said.get("items"), list) and isinstance(said.get("metadata"), dict)
    return "" if fine else f"{answer.status}: no list of objects"


def _stream(line: bytes) -> aiohttp.StreamReader:
    loop = asyncio.get_running_loop()
    stream = aiohttp.StreamReader(BaseProtocol(loop), limit=_LIMIT, loop=loop)
    stream.feed_data(line + b"\n")
    stream.feed_eof()
    return stream


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
