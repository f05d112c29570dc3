"""The self-test picture shows every fault: none hides behind another, none is left open."""

from io import BytesIO
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image
from tests.diagnosis.wrong_makings import MEAN, STD, Client, asymmetric, by_contract, opencv, reversed_channels, shifted

from blurfleet.api.contract import DEFAULT_CONTRACT, ContractSpec, SizeRange, contract_at
from blurfleet.check import CheckReport
from blurfleet.diagnosis.selftest import examine, picture_bytes, selftest_picture
from blurfleet.identity import digest_bytes
from blurfleet.pixels import decode, to_tensor

RIGHT = Client()
FAULTS = {
    "BGR": (Client(before=reversed_channels), ["ChannelSwap"]),
    "BGR after normalising": (Client(after=reversed_channels), ["ChannelSwap"]),
    "exchanged": (Client(normalise=lambda p: (p / 255 - STD) / MEAN), ["ConstantsExchanged"]),
    "misordered": (Client(normalise=lambda p: (p / 255 - MEAN[::-1]) / STD[::-1]), ["ConstantsMisordered"]),
    "0..1": (Client(normalise=lambda p: p / 255), ["NotNormalised"]),
    "raw": (Client(normalise=lambda p: p.astype(float)), ["WrongScale"]),
    "twice": (Client(normalise=lambda p: (by_contract(p) - MEAN) / STD), ["NormalisedTwice"]),
    "std first": (Client(normalise=lambda p: p / 255 / STD - MEAN), ["StdBeforeMean"]),
    "whole division": (Client(normalise=lambda p: (p // 255 - MEAN) / STD), ["IntegerDivision"]),
    "half a pixel": (Client(resize=shifted(0.5, 0.5)), ["PixelShift"]),
    "old grid": (Client(resize=asymmetric), ["PixelShift"]),
    "channels last": (Client(pack=lambda a: a[None]), ["WrongLayout"]),
    "mirrored": (Client(before=lambda p: p[:, ::-1]), ["WrongOrientation"]),
    "BGR, OpenCV, no constants": (
        Client(before=reversed_channels, resize=opencv(cv2.INTER_LINEAR), normalise=lambda p: p / 255),
        ["ChannelSwap", "NotNormalised", "WrongKernel"],
    ),
}


def faults(report: CheckReport) -> list[str]:
    return [reason.value for reason in report.facts["faults"]]


def test_the_right_tensor_passes_with_nothing_left_open() -> None:
    for form in ("png", "jpg"):
        decoded = decode(picture_bytes(form), DEFAULT_CONTRACT)
        report = examine(to_tensor(decoded.rgb, DEFAULT_CONTRACT), DEFAULT_CONTRACT, form)
        assert (report.ok, report.findings, faults(report)) == (True, (), [])
        assert report.facts["untold"] == {}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_named_on_this_one_picture(fault: str) -> None:
    client, wanted = FAULTS[fault]
    report = examine(client.tensor(selftest_picture()), DEFAULT_CONTRACT)
    assert (report.ok, faults(report)) == (False, wanted)
    if fault != "whole division":  # which leaves next to nothing of a picture
        assert report.facts["untold"] == {}


@pytest.mark.parametrize("size", [160, 320])
def test_every_kernel_is_told_from_every_other(size: int) -> None:
    rgb = selftest_picture()
    for served in ("linear-antialias", "area"):
        spec = contract_at(size, ContractSpec(resize=served))
        for kernel in ("area", "linear", "linear-antialias", "cubic-antialias", "lanczos"):
            report = examine(to_tensor(rgb, contract_at(size, ContractSpec(resize=kernel))), spec)
            if kernel == served:
                assert report.ok
            else:
                assert report.facts["details"]["WrongKernel"]["candidates"] == (kernel,)


def test_the_jpeg_has_to_be_turned_by_its_tag() -> None:
    stored = np.asarray(Image.open(BytesIO(picture_bytes("jpg"))))
    assert stored.shape == (960, 720, 3)
    report = examine(RIGHT.tensor(stored), DEFAULT_CONTRACT, "jpg")
    assert faults(report) == ["WrongOrientation"]
    assert report.facts["details"]["WrongOrientation"]["orientation"] == 6


def test_another_type_of_number_is_said_and_the_values_are_still_looked_at() -> None:
    levels = RIGHT.resize(selftest_picture()).transpose(2, 0, 1)[None]
    report = examine(levels, DEFAULT_CONTRACT)
    assert [f.reason.value for f in report.findings] == ["WrongDtype", "WrongScale"]


def test_a_size_of_the_profile_is_compared_at_that_size() -> None:
    spec = ContractSpec(height=SizeRange(min=96, opt=320, max=640), width=SizeRange(min=96, opt=320, max=640))
    smaller = contract_at(192)
    assert examine(to_tensor(selftest_picture(), smaller), spec).ok


def test_the_picture_is_the_same_everywhere() -> None:
    decoded: Any = decode(picture_bytes("png"), DEFAULT_CONTRACT)
    assert digest_bytes(decoded.rgb.tobytes()) == digest_bytes(selftest_picture().tobytes())


@pytest.mark.parametrize("size", [160, 224])
def test_a_jpeg_reduced_by_its_decoder_is_told_from_one_that_was_not(size: int) -> None:
    data = picture_bytes("jpg")
    names = ("linear-antialias", "linear-antialias-reduced")
    specs = {name: contract_at(size, ContractSpec.model_validate({"resize": name})) for name in names}
    tensors = {name: to_tensor(decode(data, spec), spec) for name, spec in specs.items()}
    for served, made in (names, names[::-1]):
        assert examine(tensors[served], specs[served], "jpg").ok
        report = examine(tensors[made], specs[served], "jpg")
        assert report.facts["details"]["WrongKernel"]["candidates"] == (made,)
