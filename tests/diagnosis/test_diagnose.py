"""Each classic fault of a client is named, alone and with others, on real photographs; what cannot be told is said."""

import warnings
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image
from tests.diagnosis.frames import photo
from tests.diagnosis.wrong_makings import (
    MEAN,
    STD,
    Array,
    Client,
    asymmetric,
    by_contract,
    opencv,
    pillow,
    reversed_channels,
    shifted,
)

from blurfleet.api.contract import DEFAULT_CONTRACT, ContractSpec, SizeRange, contract_at
from blurfleet.diagnosis.diagnose import Diagnosis, diagnose
from blurfleet.errors import ContractRefused
from blurfleet.pixels import to_tensor
from blurfleet.reasons import Reason

PHOTOS = ("astronaut.png", "coffee.png", "china.jpg", "chelsea.png", "rocket.jpg")


def signed_bytes(pixels: Array) -> Array:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return by_contract(pixels.astype(np.int8))


def exchanged(pixels: Array) -> Array:
    return (pixels / 255 - STD) / MEAN


def unnormalised(pixels: Array) -> Array:
    return pixels / 255


def channels_last(array: Array) -> Array:
    return array[None]


def lanczos(rgb: Array) -> Array:
    return np.asarray(Image.fromarray(rgb).resize((320, 320), Image.Resampling.LANCZOS))


def seen(name: str, client: Client, *, with_picture: bool = False) -> Diagnosis:
    rgb = photo(name)
    reference = to_tensor(rgb, DEFAULT_CONTRACT)
    return diagnose(reference, client.tensor(rgb), DEFAULT_CONTRACT, rgb if with_picture else None)


def reasons(found: Diagnosis) -> list[Reason]:
    return [fault.reason for fault in found.faults]


BGR_FIRST = Client(before=reversed_channels)
CONSTANTS = {
    "mean and std exchanged": (Client(normalise=exchanged), Reason.CONSTANTS_EXCHANGED, 0.5516, False),
    "constants in BGR order": (
        Client(normalise=lambda p: (p / 255 - MEAN[::-1]) / STD[::-1]), Reason.CONSTANTS_MISORDERED, 0.1119, False,
    ),
    "not normalised": (Client(normalise=unnormalised), Reason.NOT_NORMALISED, 1.5509, True),
    "raw levels": (Client(normalise=lambda p: p.astype(float)), Reason.WRONG_SCALE, 0.8686, True),
    "-1..1": (Client(normalise=lambda p: p / 127.5 - 1), Reason.WRONG_SCALE, 0.4860, False),
    "no division by 255": (Client(normalise=lambda p: (p - MEAN) / STD), Reason.WRONG_SCALE, 0.8691, True),
    "normalised twice": (
        Client(normalise=lambda p: (by_contract(p) - MEAN) / STD), Reason.NORMALISED_TWICE, None, False,
    ),
    "std before mean": (Client(normalise=lambda p: p / 255 / STD - MEAN), Reason.STD_BEFORE_MEAN, 0.6036, True),
    "mean 0.5, std 0.25": (Client(normalise=lambda p: (p / 255 - 0.5) / 0.25), Reason.OTHER_CONSTANTS, None, False),
}  # fmt: skip


@pytest.mark.parametrize("name", PHOTOS)
def test_no_fault_stays_no_fault(name: str) -> None:
    for with_picture in (False, True):
        found = seen(name, Client(), with_picture=with_picture)
        assert (found.faults, found.critical, found.parameter_distance) == ((), False, 0.0)
        assert found.before == pytest.approx(0, abs=1e-6)
        assert found.untold == {}


@pytest.mark.parametrize("fault", CONSTANTS)
@pytest.mark.parametrize("name", PHOTOS[:3])
def test_wrong_constants_are_named_with_their_distance(name: str, fault: str) -> None:
    client, reason, distance, critical = CONSTANTS[fault]
    found = seen(name, client)
    assert reasons(found) == [reason]
    assert found.critical is critical
    if distance is not None:
        assert found.parameter_distance == pytest.approx(distance, abs=1e-3)
    assert found.before is not None
    assert found.before > 0.2
    assert found.after < 0.01


def test_constants_that_nobody_named_are_measured() -> None:
    found = seen("coffee.png", Client(normalise=lambda p: (p / 255 - 0.4) / 0.3))
    assert reasons(found) == [Reason.OTHER_CONSTANTS]
    facts = found.faults[0].facts
    assert (facts["mean"], facts["std"]) == (pytest.approx([0.4] * 3, abs=2e-3), pytest.approx([0.3] * 3, abs=2e-3))


@pytest.mark.parametrize("name", PHOTOS)
def test_bgr_for_rgb_is_named_before_and_after_normalising(name: str) -> None:
    before, after = seen(name, BGR_FIRST), seen(name, Client(after=reversed_channels))
    assert reasons(before) == reasons(after) == [Reason.CHANNEL_SWAP]
    assert "before the constants" in before.faults[0].message
    assert "after normalising" in after.faults[0].message
    assert (before.parameter_distance, after.parameter_distance) == (0.0, pytest.approx(0.1119, abs=1e-3))


@pytest.mark.parametrize("name", PHOTOS[:3])
@pytest.mark.parametrize(
    ("normalise", "word"),
    [(lambda p: (p // 255 - MEAN) / STD, "leaves 0 and 1"), (signed_bytes, "signed bytes")],
    ids=["p // 255", "int8"],
)
def test_integer_division_is_named(name: str, normalise: Any, word: str) -> None:
    found = seen(name, Client(normalise=normalise))
    assert reasons(found) == [Reason.INTEGER_DIVISION]
    assert word in found.faults[0].message


KERNELS = {
    "linear": opencv(cv2.INTER_LINEAR),
    "area": opencv(cv2.INTER_AREA),
    "cubic without antialiasing (OpenCV)": opencv(cv2.INTER_CUBIC),
    "nearest": opencv(cv2.INTER_NEAREST),
    "lanczos": lanczos,
}


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", PHOTOS[:2])
def test_pillow_for_opencv_kernels_are_named_where_the_picture_is_given(name: str, kernel: str) -> None:
    found = seen(name, Client(resize=KERNELS[kernel]), with_picture=True)
    assert reasons(found) == [Reason.WRONG_KERNEL]
    assert found.faults[0].facts["candidates"][0] == kernel
    assert found.levels < 0.6


@pytest.mark.parametrize("kernel", KERNELS)
def test_without_the_picture_a_kernel_is_noticed_and_not_guessed(kernel: str) -> None:
    found = seen("coffee.png", Client(resize=KERNELS[kernel]))
    assert reasons(found) == [Reason.WRONG_KERNEL]
    assert found.faults[0].facts["candidates"] == ()
    assert "sharper" in found.faults[0].message
    assert "give the picture" in found.faults[0].message
    assert found.levels > 1


@pytest.mark.parametrize("name", PHOTOS[:3])
@pytest.mark.parametrize(("down", "right"), [(0.5, 0.5), (0.5, 0.0), (0.0, -0.5)])
def test_a_half_pixel_shift_is_measured(name: str, down: float, right: float) -> None:
    found = seen(name, Client(resize=shifted(down, right)))
    assert reasons(found) == [Reason.PIXEL_SHIFT]
    assert found.faults[0].message.startswith("shifted half a pixel")
    assert f"{down:+.2f} rows" in found.faults[0].message.replace("-0.00", "+0.00")


def test_a_grid_without_half_pixel_centres_is_named_where_the_picture_is_given() -> None:
    found = seen("china.jpg", Client(resize=asymmetric), with_picture=True)
    assert reasons(found) == [Reason.PIXEL_SHIFT]
    assert "without half-pixel centres" in found.faults[0].message


@pytest.mark.parametrize(
    ("pack", "word"),
    [
        (channels_last, "channels last instead of first"),
        (lambda a: a[None].reshape(1, 3, 320, 320), "channels-last numbers under a channels-first shape"),
    ],
    ids=["by its shape", "by its numbers"],
)
def test_a_transposed_layout_is_named(pack: Any, word: str) -> None:
    found = seen("astronaut.png", Client(pack=pack))
    assert [(f.reason, f.message) for f in found.faults] == [(Reason.WRONG_LAYOUT, word)]
    assert (found.before is None) is (word == "channels last instead of first")


TURNS = {
    2: lambda p: p[:, ::-1],
    3: lambda p: p[::-1, ::-1],
    4: lambda p: p[::-1],
    5: lambda p: p.transpose(1, 0, 2),
    6: lambda p: np.rot90(p, 1),
    7: lambda p: p[::-1, ::-1].transpose(1, 0, 2),
    8: lambda p: np.rot90(p, -1),
}


@pytest.mark.parametrize("orientation", TURNS)
def test_a_tag_that_was_not_applied_is_named_by_its_number(orientation: int) -> None:
    found = seen("coffee.png", Client(before=TURNS[orientation]))
    assert [(f.reason, f.facts.get("orientation")) for f in found.faults] == [(Reason.WRONG_ORIENTATION, orientation)]


COMBINED = {
    "BGR and another kernel": (
        Client(before=reversed_channels, resize=opencv(cv2.INTER_LINEAR)), [Reason.CHANNEL_SWAP, Reason.WRONG_KERNEL],
    ),
    "a turn, BGR and no constants": (
        Client(before=lambda p: reversed_channels(np.rot90(p)), normalise=unnormalised),
        [Reason.WRONG_ORIENTATION, Reason.CHANNEL_SWAP, Reason.NOT_NORMALISED],
    ),
    "BGR and exchanged constants": (
        Client(before=reversed_channels, normalise=exchanged), [Reason.CHANNEL_SWAP, Reason.CONSTANTS_EXCHANGED],
    ),
    "channels last, raw levels, another kernel": (
        Client(resize=opencv(cv2.INTER_LINEAR), normalise=lambda p: p.astype(float), pack=channels_last),
        [Reason.WRONG_LAYOUT, Reason.WRONG_SCALE, Reason.WRONG_KERNEL],
    ),
    "BGR and integer division": (
        Client(before=reversed_channels, normalise=lambda p: (p // 255 - MEAN) / STD),
        [Reason.CHANNEL_SWAP, Reason.INTEGER_DIVISION],
    ),
    "half a pixel and std before mean": (
        Client(resize=shifted(0.5, 0.5), normalise=lambda p: p / 255 / STD - MEAN),
        [Reason.STD_BEFORE_MEAN, Reason.PIXEL_SHIFT],
    ),
}  # fmt: skip


@pytest.mark.parametrize("combination", COMBINED)
@pytest.mark.parametrize("name", PHOTOS[:2])
def test_several_faults_at_once_are_each_named(name: str, combination: str) -> None:
    client, wanted = COMBINED[combination]
    assert reasons(seen(name, client, with_picture=True)) == wanted


@pytest.mark.parametrize("name", PHOTOS[:4])
@pytest.mark.parametrize("gamma", [0.8, 1.1, 2.2])
def test_gamma_is_a_curve_and_neither_a_kernel_nor_constants(name: str, gamma: float) -> None:
    found = seen(name, Client(normalise=lambda p: by_contract(255 * (p / 255) ** gamma)))
    assert reasons(found) == [Reason.TONE_CHANGED]
    assert found.parameter_distance == 0.0


@pytest.mark.parametrize("name", [*PHOTOS, "flower.jpg", "retina.jpg"])
def test_the_same_steps_in_float_by_another_library_are_no_fault(name: str) -> None:
    def resized_in_float(rgb: Array) -> Array:
        planes = [Image.fromarray(np.ascontiguousarray(rgb[..., c], np.float32)) for c in range(3)]
        return np.stack([np.asarray(p.resize((320, 320), Image.Resampling.BILINEAR)) for p in planes], axis=-1)

    found = seen(name, Client(resize=resized_in_float))
    assert found.faults == ()
    assert 0.2 < found.levels < 0.5


def test_a_grey_picture_cannot_tell_channel_orders_and_says_so() -> None:
    for client in (Client(), BGR_FIRST):
        found = seen("camera.png", client)
        assert found.faults == ()
        assert "(2, 1, 0)" in found.untold["channel order"]
    misordered = seen("camera.png", CONSTANTS["constants in BGR order"][0])
    assert reasons(misordered) == [Reason.CONSTANTS_MISORDERED]
    assert "channel order" in misordered.untold


def test_a_symmetric_picture_cannot_tell_that_it_was_mirrored_and_says_so() -> None:
    rgb = photo("coffee.png")
    rgb = np.concatenate([rgb[:, :300], rgb[:, :300][:, ::-1]], axis=1)
    reference = to_tensor(rgb, DEFAULT_CONTRACT)
    found = diagnose(reference, np.ascontiguousarray(reference[..., ::-1]), DEFAULT_CONTRACT)
    assert found.faults == ()
    assert "orientation" in found.untold


def test_a_flat_picture_accuses_nobody() -> None:
    reference = to_tensor(np.full((320, 320, 3), 90, np.uint8), DEFAULT_CONTRACT)
    found = diagnose(reference, reference, DEFAULT_CONTRACT)
    assert found.faults == ()
    assert {"channel order", "orientation"} <= found.untold.keys()


def test_the_tensor_of_another_picture_is_unexplained() -> None:
    reference = to_tensor(photo("coffee.png"), DEFAULT_CONTRACT)
    found = diagnose(reference, to_tensor(photo("astronaut.png"), DEFAULT_CONTRACT), DEFAULT_CONTRACT)
    assert reasons(found) == [Reason.UNEXPLAINED_INPUT]


BGR = ContractSpec(color_order="BGR", mean=("0.406", "0.456", "0.485"), std=("0.225", "0.224", "0.229"))
ROWS, COLUMNS = SizeRange(min=96, opt=96, max=96), SizeRange(min=128, opt=128, max=128)


@pytest.mark.parametrize(
    "spec",
    [contract_at(160, BGR), ContractSpec(layout="NHWC", height=ROWS, width=COLUMNS)],
    ids=["BGR", "channels last, not square"],
)
def test_other_contracts_are_diagnosed_by_their_own_terms(spec: ContractSpec) -> None:
    rgb = photo("coffee.png")
    reference = to_tensor(rgb, spec)
    assert diagnose(reference, reference, spec, rgb).faults == ()
    swapped = to_tensor(np.ascontiguousarray(rgb[..., ::-1]), spec)
    assert reasons(diagnose(reference, swapped, spec, rgb)) == [Reason.CHANNEL_SWAP]
    other = spec.model_copy(update={"layout": "NCHW" if spec.layout == "NHWC" else "NHWC"})
    assert reasons(diagnose(reference, to_tensor(rgb, other), spec, rgb)) == [Reason.WRONG_LAYOUT]


def test_what_cannot_be_compared_is_refused_by_reason() -> None:
    reference = to_tensor(photo("coffee.png"), DEFAULT_CONTRACT)
    with pytest.raises(ContractRefused) as wrong_size:
        diagnose(reference, reference[:, :, ::2], DEFAULT_CONTRACT)
    assert wrong_size.value.reason is Reason.WRONG_SHAPE
    with pytest.raises(ContractRefused) as no_number:
        diagnose(reference, np.full_like(reference, np.nan), DEFAULT_CONTRACT)
    assert no_number.value.reason is Reason.NON_FINITE_INPUT


def test_pillow_is_the_contracts_own_kernel() -> None:
    """The baseline of all of the above: this client's resize is byte for byte the contract's."""
    rgb = photo("coffee.png")
    np.testing.assert_allclose(Client(resize=pillow).tensor(rgb), to_tensor(rgb, DEFAULT_CONTRACT), atol=1e-6)
