"""What a cluster asks of the process: alive, ready, figures."""

from __future__ import annotations

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from blurfleet.check import dumps
from blurfleet_preprocess.exchange import JSON, Exchange
from blurfleet_preprocess.readiness import Readiness


def routes(exchange: Exchange, ready: Readiness) -> APIRouter:
    """Return `/healthz`, `/readyz` and `/metrics`."""
    router = APIRouter()

    @router.get("/healthz")
    async def healthz() -> Response:
        return Response(dumps({"ok": True}), media_type=JSON)

    @router.get("/readyz")
    async def readyz() -> Response:
        facts = await exchange.probes.run(ready.check)
        return Response(dumps(facts), media_type=JSON)

    @router.get("/metrics")
    async def exposition() -> Response:
        return Response(generate_latest(exchange.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    return router
