"""A sound JPEG is decoded by the quick decoder to the very bytes that OpenCV gives; any other is OpenCV's to judge."""

import io
import random
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_sample_images

from blurfleet import pixels
from blurfleet.api.contract import DEFAULT_CONTRACT
from blurfleet.errors import ContractRefused
from blurfleet.pixels import decode
from blurfleet.reasons import Reason

CHINA = np.ascontiguousarray(load_sample_images().images[0])
SMALL = cv2.resize(CHINA, (203, 151), interpolation=cv2.INTER_AREA)
SAMPLINGS = {
    "444": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444,
    "440": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_440,
    "422": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_422,
    "420": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_420,
    "411": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_411,
}


def jpeg(rgb: Any, sampling: str = "420", quality: int = 90, *, progressive: bool = False, restart: int = 0) -> bytes:
    options = [
        cv2.IMWRITE_JPEG_QUALITY, quality, cv2.IMWRITE_JPEG_SAMPLING_FACTOR, SAMPLINGS[sampling],
        cv2.IMWRITE_JPEG_PROGRESSIVE, int(progressive), cv2.IMWRITE_JPEG_RST_INTERVAL, restart,
    ]  # fmt: skip
    return bytes(cv2.imencode(".jpg", cv2.cvtColor(rgb, cv2.COLOR_RGB2BGR), options)[1])


def saved(image: Image.Image, **options: Any) -> bytes:
    into = io.BytesIO()
    image.save(into, "JPEG", **options)
    return into.getvalue()


def opencv(data: bytes) -> Any:
    return cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION)


@pytest.fixture
def without_opencv(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("OpenCV was asked")

    monkeypatch.setattr(pixels.cv2, "imdecode", refuse)


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("quality", [30, 97])
def test_every_kind_of_sound_jpeg_decodes_to_opencvs_bytes(sampling: str, quality: int, progressive: bool) -> None:
    for rgb in (SMALL, CHINA):
        data = jpeg(rgb, sampling, quality, progressive=progressive, restart=3)
        np.testing.assert_array_equal(decode(data, DEFAULT_CONTRACT).rgb, opencv(data))


@pytest.mark.parametrize(
    "data",
    [
        saved(Image.fromarray(SMALL).convert("L")),
        saved(Image.fromarray(SMALL), keep_rgb=True),
        saved(Image.fromarray(SMALL).convert("CMYK")),
        saved(Image.fromarray(SMALL), optimize=True, dpi=(300, 300), comment=b"a comment"),
    ],
    ids=["grey", "stored as RGB", "CMYK", "with other segments"],
)
def test_so_does_every_colour_model(data: bytes) -> None:
    np.testing.assert_array_equal(decode(data, DEFAULT_CONTRACT).rgb, opencv(data))


def test_a_sound_jpeg_never_reaches_opencv(without_opencv: None) -> None:
    assert decode(jpeg(SMALL), DEFAULT_CONTRACT).rgb.shape == SMALL.shape
    assert decode(saved(Image.fromarray(SMALL).convert("L")), DEFAULT_CONTRACT).source_mode == "L"


def outcome(data: bytes) -> Any:
    """The pixels, or why there are none."""
    try:
        return decode(data, DEFAULT_CONTRACT).rgb
    except ContractRefused as error:
        return error.reason


def test_a_damaged_jpeg_is_what_opencv_makes_of_it_unless_a_part_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(7)
    seeds = [jpeg(SMALL, name, progressive=way) for name in ("420", "444") for way in (False, True)]
    refused = 0
    for _ in range(400):
        data = bytearray(chance.choice(seeds))
        for _ in range(chance.randint(1, 5)):
            data[chance.randrange(2, len(data))] = chance.randrange(256)
        quick = outcome(bytes(data))
        with monkeypatch.context() as patch:
            patch.setattr(pixels, "_sound_jpeg", lambda *_: None)
            if quick is not Reason.TRUNCATED_IMAGE:  # OpenCV fills in grey for what is missing
                np.testing.assert_array_equal(quick, outcome(bytes(data)))
        refused += isinstance(quick, Reason)
    assert 20 < refused < 380
