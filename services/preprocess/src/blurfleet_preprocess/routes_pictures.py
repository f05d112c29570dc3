"""`/v1`: pictures and ready tensors in, mattes and pictures out."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from blurfleet.check import dumps
from blurfleet.quality.sentinel import Matte
from blurfleet_preprocess import picture
from blurfleet_preprocess.dataplane import Answer, Caller
from blurfleet_preprocess.exchange import JSON, NPY, Exchange, answer_headers, npy
from blurfleet_preprocess.look_options import MatteForm, look_of, matte_form_of
from blurfleet_preprocess.room import DEPTH_BYTES_PER_PIXEL


def routes(exchange: Exchange) -> APIRouter:
    """Return `/v1/matte`, `/v1/blur`, `/v1/tensor` and `/v1/contract`."""
    router, gateway = APIRouter(), exchange.gateway

    @router.post("/v1/matte")
    async def matte(request: Request) -> Response:
        default: MatteForm = "npy" if NPY in request.headers.get("accept", "") else "png"
        form = matte_form_of(request.query_params.multi_items(), default)

        def work(caller: Caller, body: bytes) -> Response:
            answer = gateway.picture(
                caller, body, lambda header: None if form == "npy" else picture.check_sides(header, "png")
            )
            if form == "npy":
                return _array(answer, answer.matte)
            rgb = answer.whole()
            with answer.stages.timed("composite"):
                fine = picture.fine_matte(rgb, answer.matte, answer.route.contract, caller.life.check)
            return _picture(answer, picture.as_levels(fine), "png")

        return await exchange.answered(request, work)

    @router.post("/v1/blur")
    async def blur(request: Request) -> Response:
        look, form = look_of(request.query_params.multi_items())

        def work(caller: Caller, body: bytes) -> Response:
            if look.mode == "depth":
                caller.room.need_more(DEPTH_BYTES_PER_PIXEL)
            answer = gateway.picture(caller, body, lambda header: picture.check_sides(header, form))
            rgb = answer.whole()
            with answer.stages.timed("composite"):
                drawn = picture.composed(rgb, answer.matte, answer.route.contract, look, caller.life.check)
            return _picture(answer, drawn, form)

        return await exchange.answered(request, work)

    @router.post("/v1/tensor")
    async def tensor(request: Request) -> Response:
        declared = request.headers.get("x-blurfleet-contract", "").strip()
        gateway.check_declared(declared)  # before the body is read

        def work(caller: Caller, body: bytes) -> Response:
            answer = gateway.tensor(caller, body, declared)
            return _array(answer, answer.matte[None, None])

        return await exchange.answered(request, work)

    @router.get("/v1/contract")
    async def contract() -> Response:
        snapshot = gateway.snapshot()
        body = {
            "alias": gateway.alias,
            "contract_hash": snapshot.contract_hash,
            "contract": snapshot.route.contract.wire(),
        }
        return Response(dumps(body), media_type=JSON, headers={"x-blurfleet-contract": snapshot.contract_hash})

    return router


def _array(answer: Answer, matte: Matte) -> Response:
    with answer.stages.timed("encode"):
        data = npy(matte)
    return Response(data, media_type=NPY, headers=answer_headers(answer))


def _picture(answer: Answer, drawn: Any, form: picture.ImageFormat) -> Response:
    with answer.stages.timed("encode"):
        data = picture.encode(drawn, form)
    return Response(data, media_type=picture.MEDIA_TYPES[form], headers=answer_headers(answer))
