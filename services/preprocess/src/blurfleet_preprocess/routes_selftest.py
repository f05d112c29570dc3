"""`/v1/selftest`: a client fetches a known picture, sends the tensor it makes of it, and learns what it does wrong."""

from __future__ import annotations

from typing import cast

from fastapi import APIRouter, Request, Response

from blurfleet.check import dumps
from blurfleet.diagnosis.selftest import Form, examine, picture_bytes
from blurfleet.errors import InvalidInput
from blurfleet.reasons import Reason
from blurfleet_preprocess.dataplane import Caller
from blurfleet_preprocess.exchange import JSON, Exchange
from blurfleet_preprocess.tensors import numbers_in

_MEDIA = {"png": "image/png", "jpg": "image/jpeg"}


def routes(exchange: Exchange) -> APIRouter:
    """Return `GET /v1/selftest/picture.png` and `.jpg` (with an orientation tag), and `POST /v1/selftest`."""
    router, gateway = APIRouter(), exchange.gateway

    @router.get("/v1/selftest/picture.{form}")
    async def picture(form: str) -> Response:
        data = await exchange.workers.run(lambda: picture_bytes(_form(form)))
        return Response(data, media_type=_MEDIA[form])

    @router.post("/v1/selftest")
    async def selftest(request: Request) -> Response:
        form = _form(request.query_params.get("picture", "png"))

        def work(_: Caller, body: bytes) -> Response:
            snapshot = gateway.snapshot()
            report = examine(numbers_in(body), snapshot.route.contract, form)
            headers = {"x-blurfleet-contract": snapshot.contract_hash}
            return Response(dumps(report.as_dict()), media_type=JSON, headers=headers)

        return await exchange.answered(request, work)

    return router


def _form(text: str) -> Form:
    if text not in _MEDIA:
        raise InvalidInput(
            Reason.NOT_FOUND, f"no self-test picture {text[:20]!r}; there are png and jpg", where="picture"
        )
    return cast("Form", text)
