"""The matte goes back to the place in the picture that it came from."""

import io
from typing import Any

import cv2
import httpx
import numpy as np
import pytest

from blurfleet.api.contract import ContractSpec, contract_at
from blurfleet.errors import InvalidInput
from blurfleet_preprocess.compositing.look import Look
from blurfleet_preprocess.picture import composed, encode, matte_on_picture

HALVES = np.concatenate([np.ones((32, 16), np.float32), np.zeros((32, 16), np.float32)], axis=1)


@pytest.mark.parametrize("size", [(32, 32), (50, 90), (7, 3)])
def test_a_stretched_matte_covers_the_whole_picture(size: tuple[int, int]) -> None:
    whole = matte_on_picture(HALVES, contract_at(32), size)
    assert whole.shape == size
    assert (whole[:, 0].min(), whole[:, -1].max()) == (1.0, 0.0)


def test_a_letterboxs_margin_is_cut_off() -> None:
    spec = contract_at(32, ContractSpec(fit="letterbox"))
    matte = np.zeros((32, 32), np.float32)
    matte[12:20] = 1.0  # where a picture of 10x40 lies
    assert matte_on_picture(matte, spec, (10, 40)).min() == 1.0
    matte = 1.0 - matte
    assert matte_on_picture(matte, spec, (10, 40)).max() == 0.0


def test_what_a_crop_left_out_is_background() -> None:
    spec = contract_at(32, ContractSpec(fit="crop"))
    whole = matte_on_picture(np.ones((32, 32), np.float32), spec, (10, 40))
    assert whole[:, 15:25].min() == 1.0
    assert whole[:, :15].max() == 0.0 == whole[:, 25:].max()


def test_a_matte_of_another_size_than_the_tensor_is_placed_by_proportion() -> None:
    spec = contract_at(32, ContractSpec(fit="letterbox"))
    half = np.zeros((16, 16), np.float32)
    half[6:10] = 1.0
    assert matte_on_picture(half, spec, (10, 40)).min() == 1.0


def test_float_noise_around_the_range_is_clipped() -> None:
    noisy = np.where(HALVES > 0, np.float32(1.00005), np.float32(-0.00005))
    whole = matte_on_picture(noisy, contract_at(32), (64, 64))
    assert (whole.min(), whole.max()) == (0.0, 1.0)


def test_a_sixteen_bit_picture_is_blurred_as_eight_bit() -> None:
    rgb = np.full((20, 20, 3), 99.6, np.float32)
    out = composed(rgb, np.ones((32, 32), np.float32), contract_at(32), Look(radius=5.0))
    assert out.dtype == np.uint8
    assert set(np.unique(out)) == {100}


def test_a_picture_too_long_for_its_format_is_refused() -> None:
    with pytest.raises(InvalidInput):
        encode(np.zeros((1, 70000, 3), np.uint8), "jpeg")


@pytest.mark.parametrize("shape", [(24, 40, 3), (24, 40), (1, 1, 3)], ids=str)
def test_a_jpeg_keeps_colour_and_size(shape: tuple[int, ...]) -> None:
    colour = np.array([200, 60, 30], np.uint8)
    picture = np.full(shape, colour if len(shape) == 3 else 60, np.uint8)
    back: Any = cv2.imdecode(np.frombuffer(encode(picture, "jpeg"), np.uint8), cv2.IMREAD_UNCHANGED)
    assert back.shape == shape
    assert np.abs(back.astype(int) - (picture[..., ::-1] if len(shape) == 3 else picture)).max() <= 3


@pytest.mark.parametrize(
    ("path", "size"),
    [
        ("/v1/blur", (65000, 2)),
        ("/v1/blur?format=png&mode=depth", (2, 32767)),
        ("/v1/matte", (32767, 2)),
        ("/v1/blur?format=webp", (16384, 20)),
        ("/v1/blur?format=webp&background=transparent", (20, 16384)),
    ],
)
def test_sides_that_cannot_be_composed_or_written_are_refused_before_the_inference(
    rig: Any, client: httpx.Client, path: str, size: tuple[int, int]
) -> None:
    said = client.post(path, content=black(size)).json()
    assert (said["status"], said["reason"], said["where"]) == (413, "ImageTooLarge", "image")
    assert rig.engines.asked == []
    assert rig.count("blurfleet_contract_refusals_total", reason="ImageTooLarge") == 1


@pytest.mark.parametrize("path", ["/v1/blur?format=png", "/v1/blur?format=jpeg", "/v1/matte"])
def test_the_longest_sides_that_can_be_composed_are(client: httpx.Client, path: str) -> None:
    response = client.post(path, content=black((32766, 2)))
    made: Any = cv2.imdecode(np.frombuffer(response.content, np.uint8), cv2.IMREAD_UNCHANGED)
    assert made.shape[:2] == (2, 32766)


def test_a_matte_at_the_networks_size_has_no_longest_side(rig: Any, client: httpx.Client) -> None:
    response = client.post("/v1/matte?format=npy", content=black((65000, 2)))
    assert np.load(io.BytesIO(response.content)).shape == (rig.size, rig.size)


def black(size: tuple[int, int]) -> bytes:
    """A PNG of (width, height)."""
    return bytes(cv2.imencode(".png", np.zeros((size[1], size[0], 3), np.uint8))[1])
