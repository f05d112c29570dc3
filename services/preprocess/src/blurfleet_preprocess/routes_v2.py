"""`/v2`: KServe's protocol over HTTP for the alias, and nothing of Triton behind it."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from blurfleet.check import dumps
from blurfleet.errors import InvalidInput, UnknownName
from blurfleet.reasons import Reason
from blurfleet.serving.life import RequestLife
from blurfleet_preprocess.access import ANYONE
from blurfleet_preprocess.dataplane import Caller
from blurfleet_preprocess.exchange import JSON, Exchange, answer_headers, parameters_among
from blurfleet_preprocess.neighbours import neighbour
from blurfleet_preprocess.readiness import Readiness
from blurfleet_preprocess.regions import Neighbour
from blurfleet_preprocess.v2 import Door, model_config, model_metadata
from blurfleet_preprocess.v2_http import RegisterBody, parsed, read_request, response_of

_HIDDEN = ("repository", "trace", "logging", "cudasharedmemory")
_MODEL, _VERSION = "/v2/models/{model}", "/v2/models/{model}/versions/{version}"
_SHARED = "/v2/systemsharedmemory"


def routes(exchange: Exchange, ready: Readiness) -> APIRouter:
    """Return every v2 path. What there is none of is told apart from what is not for clients: 404 and 403."""
    router, door = APIRouter(), Door(gateway=exchange.gateway, regions=exchange.regions)
    _about_server(router, exchange, ready, door)
    _about_model(router, exchange, ready, door)
    _infer(router, exchange, door)
    _shared_memory(router, exchange, door)

    @router.api_route("/v2/{rest:path}", methods=["GET", "POST", "PUT", "DELETE"])
    async def nothing_else(rest: str) -> Response:
        if rest.split("/")[0] in _HIDDEN:
            raise InvalidInput(Reason.FORBIDDEN, f"/v2/{rest[:80]} is not for clients", where="path")
        raise UnknownName(Reason.NOT_FOUND, f"there is no /v2/{rest[:80]}", where="path")

    return router


def _about_server(router: APIRouter, exchange: Exchange, ready: Readiness, door: Door) -> None:
    @router.get("/v2")
    async def server() -> Response:
        return _json(door.server())

    @router.get("/v2/health/live")
    async def live() -> Response:
        return Response()

    @router.get("/v2/health/ready")
    async def is_ready() -> Response:
        await exchange.probes.run(ready.check)
        return Response()


def _about_model(router: APIRouter, exchange: Exchange, ready: Readiness, door: Door) -> None:
    @router.get(f"{_MODEL}/ready")
    @router.get(f"{_VERSION}/ready")
    async def is_ready(model: str, version: str = "") -> Response:
        door.snapshot(model, version)
        await exchange.probes.run(ready.check)
        return Response()

    @router.get(f"{_MODEL}/config")
    @router.get(f"{_VERSION}/config")
    async def config(model: str, version: str = "") -> Response:
        return _json(model_config(model, door.snapshot(model, version)))

    @router.get(_MODEL)
    @router.get(_VERSION)
    async def metadata(model: str, version: str = "") -> Response:
        return _json(model_metadata(model, door.snapshot(model, version)))


def _infer(router: APIRouter, exchange: Exchange, door: Door) -> None:
    @router.post(f"{_MODEL}/infer")
    @router.post(f"{_VERSION}/infer")
    async def infer(request: Request, model: str, version: str = "") -> Response:
        headers = request.headers
        declared = headers.get("x-blurfleet-contract", "").strip()
        door.known(model)
        exchange.gateway.check_declared(declared)  # before the body is read

        def work(caller: Caller, body: bytes) -> Response:
            with caller.stages.timed("decode"):
                asked = read_request(body, headers, exchange.max_body_bytes)
            who = _local(request) if asked.shares else Neighbour(client=client_of(request), user=None)
            answer = door.infer(caller, declared, model, version, asked, who)
            with answer.stages.timed("encode"):
                facts = parameters_among(answer_headers(answer))
                content, more = response_of(answer, asked, model, facts, headers.get("accept-encoding", ""))
            return Response(content, headers=answer_headers(answer) | more)

        return await exchange.answered(request, work)


def _shared_memory(router: APIRouter, exchange: Exchange, door: Door) -> None:
    @router.get(f"{_SHARED}/status")
    @router.get(f"{_SHARED}/region/{{name}}/status")
    async def status(request: Request, name: str = "") -> Response:
        found = door.regions.status(_local(request), name)
        return _json([{"name": r.name, "key": r.key, "offset": r.offset, "byte_size": r.byte_size} for r in found])

    @router.post(f"{_SHARED}/region/{{name}}/register")
    async def register(request: Request, name: str) -> Response:
        who = _local(request)
        async with exchange.bodies.of(request, RequestLife(exchange.longest_s), exchange.max_body_bytes) as body:
            asked = parsed(RegisterBody, body)
        door.regions.register(who, name=name, key=asked.key, offset=asked.offset, byte_size=asked.byte_size)
        return Response()

    @router.post(f"{_SHARED}/unregister")
    @router.post(f"{_SHARED}/region/{{name}}/unregister")
    async def unregister(request: Request, name: str = "") -> Response:
        door.regions.unregister(_local(request), name)
        return Response()


def client_of(request: Request) -> str:
    """Return the name under which the client was let in."""
    return str(request.scope.get("blurfleet.client", ANYONE))


def _local(request: Request) -> Neighbour:
    host, port = request.client or ("", 0)
    return neighbour(client_of(request), host, port, (request.scope.get("server") or ("", 0))[1] or 0)


def _json(value: Any) -> Response:
    return Response(dumps(value, indent=None), media_type=JSON)
