"""The gateway over HTTP, a thin skin: every error is a problem document, every answer says who made it."""

from __future__ import annotations

from http import HTTPStatus

import structlog
from fastapi import FastAPI, Request, Response
from fastapi.telemetry import TelemetryConfig
from opentelemetry.trace import get_current_span
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from blurfleet.errors import BlurfleetError
from blurfleet.reasons import Reason
from blurfleet_preprocess import (
    problems,
    routes_node,
    routes_page,
    routes_pictures,
    routes_selftest,
    routes_stream,
    routes_v2,
)
from blurfleet_preprocess.doorkeeper import Doorkeeper
from blurfleet_preprocess.exchange import Exchange
from blurfleet_preprocess.metrics import GatewayMetrics
from blurfleet_preprocess.readiness import Readiness
from blurfleet_preprocess.stream_session import StreamLimits
from blurfleet_preprocess.tracing import TRACE_HEADER, TracedRequests

_LOGGED = 200  # characters of a client's path
_NONE: TelemetryConfig = {"tracing": False, "metrics": False, "logs": False}  # our own spans and figures say more
_ELSEWHERE = {
    HTTPStatus.NOT_FOUND: "post a picture to /v1/matte or /v1/blur, a tensor to /v1/tensor",
    HTTPStatus.METHOD_NOT_ALLOWED: "use a method that the header Allow names",
}


def build_app(exchange: Exchange, ready: Readiness, streams: StreamLimits | None = None) -> FastAPI:
    """Return the ASGI application. Documentation pages are off: they would load scripts from elsewhere."""
    app = FastAPI(title="blurfleet gateway", docs_url=None, redoc_url=None, openapi_url=None, telemetry=_NONE)
    app.router.redirect_slashes = False  # it would send clients wherever their Host header says
    _install_problems(app, exchange.metrics)
    app.include_router(routes_pictures.routes(exchange))
    app.include_router(routes_selftest.routes(exchange))
    app.include_router(routes_node.routes(exchange, ready))
    app.include_router(routes_v2.routes(exchange, ready))
    app.include_router(routes_stream.routes(exchange, streams))
    app.include_router(routes_page.routes())
    app.add_middleware(TracedRequests, tracing=exchange.tracing)  # within the door: who is refused there costs no span
    app.add_middleware(Doorkeeper, exchange=exchange)
    return app


def _install_problems(app: FastAPI, metrics: GatewayMetrics) -> None:
    log = structlog.get_logger("blurfleet.gateway")

    def answer(request: Request, status: int, body: bytes, headers: dict[str, str] | None = None) -> Response:
        metrics.requests.labels(str(status)).inc()
        body = problems.for_path(request.url.path, body) if body else body
        return Response(body, status, headers, media_type=problems.MEDIA_TYPE)

    async def on_purpose(request: Request, error: Exception) -> Response:
        assert isinstance(error, BlurfleetError)
        status, headers, body = problems.problem(error)
        get_current_span().set_attribute("error.type", error.reason.value)
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            log.warning(
                "request.failed",
                path=request.url.path[:_LOGGED],
                status=status,
                reason=error.reason.value,
                error=str(error),
            )
        return answer(request, status, body, headers)

    async def routing(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        status = HTTPStatus(error.status_code)
        reason = Reason.NOT_FOUND if status is HTTPStatus.NOT_FOUND else Reason.INVALID_REQUEST
        fix = _ELSEWHERE.get(status, "")
        body = problems.document(status, reason, str(error.detail), {"fix": fix})
        return answer(request, status.value, body, dict(error.headers or {}))

    async def gone(request: Request, _: Exception) -> Response:
        return answer(request, 499, b"")

    async def unexpected(request: Request, error: Exception) -> Response:
        log.error("request.unexpected", path=request.url.path[:_LOGGED], error=repr(error), exc_info=error)
        status = HTTPStatus.INTERNAL_SERVER_ERROR
        body = problems.document(status, Reason.UNEXPECTED, "the gateway failed; its log says where")
        # Said outside the request's span, which has ended; its id is still bound to this task's log lines.
        trace_id = structlog.contextvars.get_contextvars().get("trace_id")
        return answer(request, status.value, body, {TRACE_HEADER: trace_id} if trace_id else None)

    app.add_exception_handler(BlurfleetError, on_purpose)
    app.add_exception_handler(HTTPException, routing)
    app.add_exception_handler(ClientDisconnect, gone)
    app.add_exception_handler(Exception, unexpected)
