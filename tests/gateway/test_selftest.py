"""The self-test over HTTP: the picture, the answer, and what is sent instead of a tensor."""

import io
from typing import Any

import httpx
import numpy as np
import pytest

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


def npy_saying(shape: str, values: bytes, descr: str = "<f4") -> bytes:
    """A .npy file whose header says `shape`, whatever that is."""
    head = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + values


@pytest.mark.parametrize(
    ("shape", "bytes_after", "status", "reason"),
    [
        ("(-1, -1)", 4, 400, "Unparseable"),
        ("(-1, -3)", 12, 400, "Unparseable"),
        ("(-5, -5)", 100, 400, "Unparseable"),
        ("(True, 3)", 12, 400, "Unparseable"),
        ("(99999999999999999999, 0)", 0, 422, "WrongShape"),
        ("(0, 99999999999999999999)", 0, 422, "WrongShape"),
        ("()", 4, 422, "WrongShape"),
    ],
)
def test_a_shape_that_no_array_has_is_the_senders_problem(
    client: httpx.Client, shape: str, bytes_after: int, status: int, reason: str
) -> None:
    response = client.post("/v1/selftest", content=npy_saying(shape, bytes(bytes_after)))
    assert (response.status_code, response.json()["reason"]) == (status, reason)


def test_a_truth_value_is_no_length_of_a_tensor(rig: Rig, client: httpx.Client) -> None:
    body = npy_saying(f"(True, 3, {rig.size}, {rig.size})", bytes(12 * rig.size**2))
    headers = {"x-blurfleet-contract": contract_hash(contract_at(rig.size))}
    response = client.post("/v1/tensor", content=body, headers=headers)
    assert (response.status_code, response.json()["reason"]) == (400, "Unparseable")
    assert rig.engines.asked == []


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(1e308, np.float64), (-1e308, np.float64), (3e38, np.float32), (1.1e9, np.float32), (2**63, np.uint64)],
)
def test_values_beyond_any_constants_are_the_senders_problem(
    rig: Rig, client: httpx.Client, value: float, dtype: Any
) -> None:
    response = post(client, np.full((1, 3, rig.size, rig.size), value, dtype))
    assert (response.status_code, response.json()["reason"]) == (422, "ImpossibleInput")


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64, np.uint64])
def test_values_as_large_as_any_constants_are_judged(rig: Rig, client: httpx.Client, dtype: Any) -> None:
    wide = made_of(client, rig, "png") * np.float32(1e8)
    response = post(client, np.abs(wide).astype(dtype))
    assert (response.status_code, response.json()["ok"]) == (200, False)
