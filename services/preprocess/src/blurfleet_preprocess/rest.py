"""The gateway over HTTP, a thin skin: every error is a problem document, every answer says who made it."""

from __future__ import annotations

import io
import re
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, cast

import numpy as np
import structlog
from fastapi import FastAPI, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from blurfleet.check import dumps
from blurfleet.errors import BlurfleetError, InvalidInput
from blurfleet.quality.sentinel import Matte
from blurfleet.reasons import Reason
from blurfleet.serving.trace import parse_traceparent
from blurfleet_preprocess import picture, problems
from blurfleet_preprocess.dataplane import Answer, Caller, Gateway
from blurfleet_preprocess.metrics import GatewayMetrics
from blurfleet_preprocess.readiness import Readiness
from blurfleet_preprocess.streams import Streams
from blurfleet_preprocess.work import Workers

NPY = "application/x-npy"
JSON = "application/json"
_RADIUS = re.compile(r"\d{1,4}(\.\d{1,3})?")


def answer_headers(answer: Answer) -> dict[str, str]:
    """Return who answered: all from the one snapshot that the request was answered under."""
    headers = {
        "x-blurfleet-engine": answer.engine.engine,
        "x-blurfleet-digest": answer.engine.digest,
        "x-blurfleet-precision": answer.engine.precision,
        "x-blurfleet-role": answer.role,
        "x-blurfleet-epoch": str(answer.route.epoch),
        "x-blurfleet-contract": answer.contract_hash,
        "x-blurfleet-frame": f"{answer.ticket.stream}#{answer.ticket.frame_id}",
        "x-blurfleet-trace": answer.trace_id,
        "server-timing": ", ".join(f"{name};dur={1000 * s:.2f}" for name, s in answer.stages.items()),
    }
    if answer.withheld is not None:
        headers["x-blurfleet-withheld"] = answer.withheld.value
    if answer.simulated:
        headers["x-blurfleet-simulated"] = "true"
    return headers


def build_app(
    gateway: Gateway,
    *,
    streams: Streams,
    metrics: GatewayMetrics,
    workers: Workers,
    ready: Readiness,
    max_body_bytes: int,
) -> FastAPI:
    """Return the ASGI application. Documentation pages are off: they would load scripts from elsewhere."""
    app = FastAPI(title="blurfleet gateway", docs_url=None, redoc_url=None, openapi_url=None)
    _install_problems(app, metrics)

    async def answered(request: Request, work: Callable[[Caller, bytes], Response]) -> Response:
        started = time.perf_counter()
        caller = Caller(
            ticket=streams.arrive(request.headers.get("x-blurfleet-stream", "")),
            trace=parse_traceparent(request.headers.get("traceparent")),
            evidence_allowed=request.headers.get("x-blurfleet-evidence", "").strip().lower() != "no",
        )
        body = await _body(request, max_body_bytes)
        response = await workers.run(lambda: work(caller, body))
        metrics.seconds.labels("total").observe(time.perf_counter() - started)
        metrics.requests.labels(str(response.status_code)).inc()
        return response

    @app.post("/v1/matte")
    async def matte(request: Request) -> Response:
        form = _choice(request, ("png", "npy"), "npy" if NPY in request.headers.get("accept", "") else "png")

        def work(caller: Caller, body: bytes) -> Response:
            answer = gateway.picture(caller, body)
            if form == "npy":
                return Response(_npy(answer.matte), media_type=NPY, headers=answer_headers(answer))
            assert answer.decoded is not None
            whole = picture.matte_on_picture(answer.matte, answer.route.contract, answer.decoded.decoded_size)
            return _picture(answer, picture.as_levels(whole), "png", metrics)

        return await answered(request, work)

    @app.post("/v1/blur")
    async def blur(request: Request) -> Response:
        form = cast("picture.ImageFormat", _choice(request, ("jpeg", "png", "webp"), "jpeg"))
        radius = _radius(request)

        def work(caller: Caller, body: bytes) -> Response:
            answer = gateway.picture(caller, body)
            assert answer.decoded is not None
            size = answer.decoded.decoded_size
            whole = picture.matte_on_picture(answer.matte, answer.route.contract, size)
            drawn = picture.blur_background(answer.decoded.rgb, whole, radius or picture.auto_radius(size))
            return _picture(answer, drawn, form, metrics)

        return await answered(request, work)

    @app.post("/v1/tensor")
    async def tensor(request: Request) -> Response:
        declared = request.headers.get("x-blurfleet-contract", "").strip()

        def work(caller: Caller, body: bytes) -> Response:
            answer = gateway.tensor(caller, body, declared)
            return Response(_npy(answer.matte[None, None]), media_type=NPY, headers=answer_headers(answer))

        return await answered(request, work)

    @app.get("/v1/contract")
    async def contract() -> Response:
        snapshot = gateway.snapshot()
        body = {
            "alias": gateway.alias,
            "contract_hash": snapshot.contract_hash,
            "contract": snapshot.route.contract.wire(),
        }
        return Response(dumps(body), media_type=JSON, headers={"x-blurfleet-contract": snapshot.contract_hash})

    @app.get("/healthz")
    async def healthz() -> Response:
        return Response(dumps({"ok": True}), media_type=JSON)

    @app.get("/readyz")
    async def readyz() -> Response:
        facts = await workers.run(ready.check)
        return Response(dumps(facts), media_type=JSON)

    @app.get("/metrics")
    async def exposition() -> Response:
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    return app


def _install_problems(app: FastAPI, metrics: GatewayMetrics) -> None:
    log = structlog.get_logger("blurfleet.gateway")

    def answer(status: int, body: bytes, headers: dict[str, str] | None = None) -> Response:
        metrics.requests.labels(str(status)).inc()
        return Response(body, status, headers, media_type=problems.MEDIA_TYPE)

    async def on_purpose(request: Request, error: Exception) -> Response:
        assert isinstance(error, BlurfleetError)
        status, headers, body = problems.problem(error)
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            log.warning(
                "request.failed", path=request.url.path, status=status, reason=error.reason.value, error=str(error)
            )
        return answer(status, body, headers)

    async def routing(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        status = HTTPStatus(error.status_code)
        body = problems.document(status, Reason.INVALID_REQUEST, str(error.detail))
        return answer(status.value, body, dict(error.headers or {}))

    async def gone(_: Request, __: Exception) -> Response:
        return answer(499, b"")

    async def unexpected(request: Request, error: Exception) -> Response:
        log.error("request.unexpected", path=request.url.path, error=repr(error), exc_info=error)
        status = HTTPStatus.INTERNAL_SERVER_ERROR
        return answer(
            status.value, problems.document(status, Reason.UNEXPECTED, "the gateway failed; its log says where")
        )

    app.add_exception_handler(BlurfleetError, on_purpose)
    app.add_exception_handler(HTTPException, routing)
    app.add_exception_handler(ClientDisconnect, gone)
    app.add_exception_handler(Exception, unexpected)


async def _body(request: Request, limit: int) -> bytes:
    """Return the body. Raises InvalidInput RequestTooLarge as soon as that is known."""
    declared = request.headers.get("content-length", "")
    too_large = InvalidInput(Reason.REQUEST_TOO_LARGE, f"a body has at most {limit} bytes", where="body")
    if declared.isdecimal() and int(declared[:20]) > limit:
        raise too_large
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise too_large
    return bytes(body)


def _choice(request: Request, allowed: tuple[str, ...], default: str) -> str:
    chosen = request.query_params.get("format", default)
    if chosen not in allowed:
        raise InvalidInput(
            Reason.INVALID_REQUEST, f"format {chosen[:40]!r} is not one of {', '.join(allowed)}", where="format"
        )
    return chosen


def _radius(request: Request) -> float | None:
    """Return the blur radius asked for, None for auto. Raises InvalidInput."""
    text = request.query_params.get("radius", "auto")
    if text == "auto":
        return None
    if not _RADIUS.fullmatch(text) or not picture.MIN_RADIUS <= float(text) <= picture.MAX_RADIUS:
        limits = f"{picture.MIN_RADIUS:g} to {picture.MAX_RADIUS:g} pixels"
        raise InvalidInput(Reason.INVALID_REQUEST, f"radius {text[:40]!r} is neither auto nor {limits}", where="radius")
    return float(text)


def _npy(matte: Matte) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, matte, allow_pickle=False)
    return buffer.getvalue()


def _picture(answer: Answer, drawn: Any, form: picture.ImageFormat, metrics: GatewayMetrics) -> Response:
    started = time.perf_counter()
    data = picture.encode(drawn, form)
    answer.stages["encode"] = time.perf_counter() - started
    metrics.seconds.labels("encode").observe(answer.stages["encode"])
    return Response(data, media_type=picture.MEDIA_TYPES[form], headers=answer_headers(answer))
