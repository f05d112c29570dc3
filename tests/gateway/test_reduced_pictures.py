"""Under `linear-antialias-reduced` every way asks the engine the same tensor, and pictures are made at full size."""

import contextlib
import io
from collections.abc import Callable
from typing import Any

import cv2
import httpx
import numpy as np
import pytest
from PIL import Image
from tests.diagnosis.frames import picture_file

from blurfleet import pixels
from blurfleet.api.contract import ContractSpec, contract_at
from blurfleet.client import Client, FrameResult, VideoOptions
from blurfleet.pixels import decode, to_tensor

Rig = Any  # the fixture's class lives in conftest.py
Serve = Callable[..., contextlib.AbstractContextManager[httpx.Client]]
PHOTO = picture_file("china.jpg").read_bytes()


@pytest.fixture
def spec(rig: Rig) -> ContractSpec:
    made = contract_at(rig.size, ContractSpec(resize="linear-antialias-reduced"))
    rig.route(contract=made)
    return made


def test_matte_blur_and_stream_ask_the_one_tensor_that_the_client_prepares(
    rig: Rig, spec: ContractSpec, serve: Serve
) -> None:
    decoded = decode(PHOTO, spec)
    assert decoded.reduced_by == 8
    wanted = to_tensor(decoded, spec)
    with serve(rig) as http:
        for path in ("/v1/matte?format=npy", "/v1/matte?format=png", "/v1/blur", "/v1/blur?mode=depth"):
            assert http.post(path, content=PHOTO).status_code == 200
        with Client(str(http.base_url)) as client:
            with client.stream(VideoOptions(output="both")) as video:
                video.send(PHOTO)
                assert isinstance(video.receive(), FrameResult)
            client.tensor(client.prepare(PHOTO))
    assert len(rig.engines.tensors) == 6
    assert {tensor.tobytes() for tensor in rig.engines.tensors} == {wanted.tobytes()}


def test_what_comes_back_is_the_whole_picture_with_its_subject_as_it_was(
    rig: Rig, spec: ContractSpec, serve: Serve
) -> None:
    whole: Any = cv2.imdecode(np.frombuffer(PHOTO, np.uint8), cv2.IMREAD_COLOR_RGB)
    with serve(rig) as http:
        drawn = http.post("/v1/blur?format=png", content=PHOTO)
        fine = http.post("/v1/matte?format=png", content=PHOTO)
    shown = np.asarray(Image.open(io.BytesIO(drawn.content)))
    assert shown.shape == whole.shape == (427, 640, 3)
    np.testing.assert_array_equal(shown[203:223, 310:330], whole[203:223, 310:330])
    assert Image.open(io.BytesIO(fine.content)).size == (640, 427)


def test_a_matte_at_the_networks_size_never_costs_the_whole_picture(
    rig: Rig, spec: ContractSpec, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[tuple[int, ...]] = []
    real = pixels.simplejpeg.decode_jpeg

    def noting(*args: Any, **options: Any) -> Any:
        found = real(*args, **options)
        sizes.append(found.shape[:2])
        return found

    monkeypatch.setattr(pixels.simplejpeg, "decode_jpeg", noting)
    with serve(rig) as http:
        http.post("/v1/matte?format=npy", content=PHOTO)
        assert sizes == [(54, 80)]
        answer = http.post("/v1/blur", content=PHOTO)
    assert sizes == [(54, 80), (54, 80), (427, 640)]
    stages = [part.split(";")[0] for part in answer.headers["server-timing"].split(", ")]
    assert stages.count("decode") == 1
