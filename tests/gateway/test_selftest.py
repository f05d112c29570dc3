"""The self-test over HTTP: the picture, the answer, and what is sent instead of a tensor."""

import io
from typing import Any

import httpx
import numpy as np

from blurfleet.api.contract import contract_at
from blurfleet.contract import contract_hash
from blurfleet.pixels import Tensor, decode, to_tensor

Rig = Any  # the fixture's class lives in conftest.py


def made_of(client: httpx.Client, rig: Rig, form: str) -> Tensor:
    """What a correct client makes of the picture that the gateway serves."""
    spec = contract_at(rig.size)
    return to_tensor(decode(client.get(f"/v1/selftest/picture.{form}").content, spec).rgb, spec)


def post(client: httpx.Client, array: np.ndarray, query: str = "") -> httpx.Response:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return client.post(f"/v1/selftest{query}", content=buffer.getvalue())


def test_a_correct_client_hears_that_it_is(rig: Rig, client: httpx.Client) -> None:
    for form, media in (("png", "image/png"), ("jpg", "image/jpeg")):
        assert client.get(f"/v1/selftest/picture.{form}").headers["content-type"] == media
        response = post(client, made_of(client, rig, form), f"?picture={form}")
        report = response.json()
        assert (response.status_code, report["ok"], report["findings"]) == (200, True, [])
        assert report["facts"]["contract_hash"] == contract_hash(contract_at(rig.size))
    assert rig.engines.asked == []
    assert rig.told.samples == []


def test_a_wrong_client_hears_what_it_does_and_by_how_much(rig: Rig, client: httpx.Client) -> None:
    spec = contract_at(rig.size)
    mean, std = (np.array([float(v) for v in row], np.float32).reshape(1, 3, 1, 1) for row in (spec.mean, spec.std))
    pixels = made_of(client, rig, "png") * std + mean
    report = post(client, pixels[:, ::-1]).json()
    assert report["ok"] is False
    assert report["facts"]["faults"] == ["ChannelSwap", "NotNormalised"]
    assert report["facts"]["critical"] is True
    assert report["facts"]["distance"]["before"] > 0.5
    assert report["facts"]["distance"]["after"] < 0.01


def test_what_is_no_tensor_of_the_picture_is_a_problem(rig: Rig, client: httpx.Client) -> None:
    nan = np.full((1, 3, rig.size, rig.size), np.nan, np.float32)
    for response, status, reason in (
        (client.post("/v1/selftest", content=b"no npy"), 400, "Unparseable"),
        (post(client, np.zeros((1, 3, 7, 9), np.float32)), 422, "WrongShape"),
        (post(client, np.zeros((3,), np.complex64)), 422, "WrongDtype"),
        (post(client, nan), 422, "NonFiniteInput"),
        (post(client, nan, "?picture=gif"), 404, "NotFound"),
        (client.get("/v1/selftest/picture.gif"), 404, "NotFound"),
    ):
        assert (response.status_code, response.json()["reason"]) == (status, reason)
    assert post(client, np.zeros((0,), np.float32)).status_code == 422
