"""Ready tensors at the door: shapes of the profile, values that pixels can give, hashes that say what differs."""

import io
from typing import Any

import httpx
import numpy as np
import pytest

from blurfleet.api.contract import ContractSpec, SizeRange, contract_at
from blurfleet.contract import contract_hash
from blurfleet.diagnosis.admission import WINDOW
from blurfleet.pixels import Tensor, to_tensor

Rig = Any  # the fixture's class lives in conftest.py
Posted = Any


def picture(height: int, width: int, seed: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def unnormalised(height: int, width: int) -> Tensor:
    """A float picture of 0..1, whose values are no whole levels, as a client sends it that forgot the constants."""
    return np.random.default_rng(5).uniform(0, 1, (1, 3, height, width)).astype(np.float32)


@pytest.fixture
def dynamic(rig: Rig) -> ContractSpec:
    """A contract of 16..64 rows in steps of 16 and 32..96 columns in steps of 32, served by the rig."""
    spec = ContractSpec(
        height=SizeRange(min=16, opt=32, max=64, multiple_of=16),
        width=SizeRange(min=32, opt=64, max=96, multiple_of=32),
    )
    route = rig.table.models["bokeh"]
    rig.table = rig.table.with_route(route.model_copy(update={"contract": spec}))
    return spec


def post(client: httpx.Client, tensor: np.ndarray, spec: ContractSpec, stream: str = "") -> httpx.Response:
    buffer = io.BytesIO()
    np.save(buffer, tensor)
    headers = {"x-blurfleet-contract": contract_hash(spec), "x-blurfleet-stream": stream}
    return client.post("/v1/tensor", content=buffer.getvalue(), headers=headers)


@pytest.mark.parametrize(("height", "width"), [(16, 32), (48, 96), (64, 64), (32, 64)])
def test_any_size_of_the_profile_is_answered(
    rig: Rig, client: httpx.Client, dynamic: ContractSpec, height: int, width: int
) -> None:
    tensor = to_tensor(picture(80, 90), fixed(dynamic, height, width))
    assert post(client, tensor, dynamic).status_code == 200
    np.testing.assert_array_equal(rig.engines.tensors[0], tensor)


def fixed(spec: ContractSpec, height: int, width: int) -> ContractSpec:
    sizes = {
        "height": SizeRange(min=height, opt=height, max=height),
        "width": SizeRange(min=width, opt=width, max=width),
    }
    return spec.model_copy(update=sizes)


@pytest.mark.parametrize(
    ("height", "width", "profile", "axis", "length"),
    [(80, 64, "height", 2, 80), (24, 64, "height", 2, 24), (32, 16, "width", 3, 16), (32, 80, "width", 3, 80)],
    ids=["too high", "between two steps", "too narrow", "between two steps, wide"],
)
def test_a_size_outside_names_profile_axis_and_limits(
    rig: Rig, client: httpx.Client, dynamic: ContractSpec, height: int, width: int, profile: str, axis: int, length: int
) -> None:
    response = post(client, np.zeros((1, 3, height, width), np.float32), dynamic)
    body = response.json()
    assert (response.status_code, body["reason"]) == (422, "WrongShape")
    assert (body["profile"], body["axis"], body["length"]) == (profile, axis, length)
    limits = {"min": 16, "opt": 32, "max": 64, "multipleOf": 16}
    assert body["limits"] == (limits if profile == "height" else {"min": 32, "opt": 64, "max": 96, "multipleOf": 32})
    assert f"{limits['min'] if profile == 'height' else 32} to" in body["detail"]
    assert rig.engines.asked == []


@pytest.mark.parametrize(
    "shape",
    [(3, 32, 32), (2, 3, 32, 32), (1, 4, 32, 32), (1, 32, 32, 3), (0,), ()],
    ids=lambda s: "x".join(map(str, s)),
)
def test_what_is_no_picture_of_three_channels_is_refused(
    rig: Rig, client: httpx.Client, shape: tuple[int, ...]
) -> None:
    response = post(client, np.zeros(shape, np.float32), contract_at(rig.size))
    assert (response.status_code, response.json()["reason"]) == (422, "WrongShape")
    assert "layout NCHW" in response.json()["detail"]


def test_values_that_no_pixel_gives_are_refused_at_once_and_counted(rig: Rig, client: httpx.Client) -> None:
    spec = contract_at(rig.size)
    response = post(client, unnormalised(rig.size, rig.size) * np.float32(255), spec)
    body = response.json()
    assert (response.status_code, body["reason"]) == (422, "ImpossibleInput")
    assert "pixels become -2.118 to 2.249" in body["detail"]
    assert "/v1/selftest" in body["fix"]
    assert rig.engines.asked == []
    assert rig.count("blurfleet_contract_refusals_total", reason="ImpossibleInput") == 1


@pytest.fixture
def refused_stream(rig: Rig, client: httpx.Client) -> list[int]:
    return [
        post(client, unnormalised(rig.size, rig.size), contract_at(rig.size), "camera").status_code
        for _ in range(WINDOW + 2)
    ]


def test_a_stream_that_never_proves_its_scale_is_refused_from_the_thirtieth_frame_on(
    rig: Rig, client: httpx.Client, refused_stream: list[int]
) -> None:
    assert refused_stream == [200] * (WINDOW - 1) + [422] * 3
    assert rig.count("blurfleet_ready_tensors_total", standing="Suspect") == WINDOW - 1
    assert rig.count("blurfleet_contract_refusals_total", reason="SuspectInput") == 3
    spec = contract_at(rig.size)
    other = post(client, unnormalised(rig.size, rig.size), spec, "another camera")
    assert other.status_code == 200
    assert post(client, to_tensor(picture(40, 40), spec), spec, "camera").status_code == 200
    assert post(client, unnormalised(rig.size, rig.size), spec, "camera").status_code == 200


def test_a_client_that_names_no_stream_answers_for_its_own_connections_frames_alone(
    rig: Rig, client: httpx.Client
) -> None:
    wrong, spec = unnormalised(rig.size, rig.size), contract_at(rig.size)
    bobs = [post(client, wrong, spec).status_code for _ in range(WINDOW)]
    assert bobs == [200] * (WINDOW - 1) + [422]
    with httpx.Client(base_url=client.base_url, trust_env=False) as alice:
        assert post(alice, wrong, spec).status_code == 200
    assert post(client, wrong, spec).status_code == 422


def test_the_refusal_of_a_stream_says_which_scale_it_fits(
    rig: Rig, client: httpx.Client, refused_stream: list[int]
) -> None:
    body = post(client, unnormalised(rig.size, rig.size), contract_at(rig.size), "camera").json()
    assert body["reason"] == "SuspectInput"
    assert "values of 0..1 that were not normalised" in body["detail"]
    assert "the 29 frames before it" in body["detail"]


def differences(client: httpx.Client, declared: str) -> tuple[dict[str, Any], list[tuple[str, Any, Any]]]:
    response = client.post("/v1/tensor", content=b"", headers={"x-blurfleet-contract": declared})
    body = response.json()
    assert (response.status_code, body["reason"]) == (412, "ContractMismatch")
    return body, [(d["field"], d["served"], d["declared"]) for d in body.get("differences", [])]


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({"color_order": "BGR"}, [("colorOrder", "RGB", "BGR")]),
        ({"resize": "linear"}, [("resize", "linear-antialias", "linear")]),
        ({"resize": "area", "layout": "NHWC"}, [("layout", "NCHW", "NHWC"), ("resize", "linear-antialias", "area")]),
        (
            {"mean": ("0.229", "0.224", "0.225"), "std": ("0.485", "0.456", "0.406")},
            [
                ("mean", ["0.485", "0.456", "0.406"], ["0.229", "0.224", "0.225"]),
                ("std", ["0.229", "0.224", "0.225"], ["0.485", "0.456", "0.406"]),
            ],
        ),
    ],
    ids=["BGR", "another kernel", "kernel and layout", "mean and std exchanged"],
)
def test_a_well_known_wrong_contract_is_answered_with_the_difference(
    rig: Rig, client: httpx.Client, change: dict[str, Any], wanted: list[tuple[str, Any, Any]]
) -> None:
    served = contract_at(rig.size)
    body, found = differences(client, contract_hash(served.model_copy(update=change)))
    assert found == wanted
    assert body["expected"] == contract_hash(served)
    assert wanted[0][0] in body["detail"]


def test_an_unknown_hash_is_answered_with_both_and_no_guess(rig: Rig, client: httpx.Client) -> None:
    body, found = differences(client, "sha256:" + "0" * 64)
    assert found == []
    assert (body["expected"], body["received"]) == (contract_hash(contract_at(rig.size)), "sha256:" + "0" * 64)


def test_the_v2_door_judges_values_by_the_same_rule(rig: Rig, client: httpx.Client) -> None:
    spec = contract_at(rig.size)
    raw = unnormalised(rig.size, rig.size) * np.float32(255)
    sound = to_tensor(picture(40, 40), spec)
    for tensor, status in ((raw, 422), (sound, 200)):
        one = {"name": "image", "datatype": "FP32", "shape": list(tensor.shape), "data": tensor.ravel().tolist()}
        headers = {"x-blurfleet-contract": contract_hash(spec)}
        response = client.post("/v2/models/bokeh/infer", json={"inputs": [one]}, headers=headers)
        assert response.status_code == status, response.text
        assert status == 200 or "ImpossibleInput" in response.text
    assert len(rig.engines.asked) == 1
