"""Which tensors can come from the contract: error rates over 117 frames for every well-known wrong making."""

from collections import Counter
from collections.abc import Callable
from functools import cache

import cv2
import numpy as np
import pytest
from tests.diagnosis.frames import frames

from blurfleet.api.contract import DEFAULT_CONTRACT, ContractSpec
from blurfleet.diagnosis.admission import WINDOW, InputVerdict, InputWindow, Standing, judge_tensor
from blurfleet.pixels import Tensor, to_tensor
from blurfleet.reasons import Reason

SPEC = DEFAULT_CONTRACT
MEAN = np.array([float(m) for m in SPEC.mean], np.float32).reshape(1, 3, 1, 1)
STD = np.array([float(s) for s in SPEC.std], np.float32).reshape(1, 3, 1, 1)
Make = Callable[[Tensor], Tensor]


@cache
def correct() -> tuple[tuple[str, Tensor], ...]:
    """The 117 frames as a client with an 8-bit resize makes them."""
    return tuple((kind, to_tensor(rgb, SPEC)) for kind, _, rgb in frames())


@cache
def resized_in_float() -> tuple[tuple[str, Tensor], ...]:
    """The same as a client makes them that resizes in float, whose values are no whole pixel levels."""
    found = []
    for kind, _, rgb in frames():
        part = cv2.resize(rgb.astype(np.float32), (320, 320), interpolation=cv2.INTER_AREA)
        found.append((kind, ((part.transpose(2, 0, 1)[None] / 255 - MEAN) / STD).astype(np.float32)))
    return tuple(found)


def counts(made: tuple[tuple[str, Tensor], ...], make: Make) -> Counter[str]:
    """How many frames of each kind came to each standing, as `kind Standing` and as `Standing`."""
    found: Counter[str] = Counter()
    for kind, tensor in made:
        standing = judge_tensor(np.ascontiguousarray(make(tensor), np.float32), SPEC).standing.value
        found.update((standing, f"{kind} {standing}"))
    return found


def pixels(tensor: Tensor) -> Tensor:
    return tensor * STD + MEAN


def as_made(tensor: Tensor) -> Tensor:
    return tensor


def swapped_before(tensor: Tensor) -> Tensor:
    return (pixels(tensor)[:, ::-1] - MEAN) / STD


def test_no_correct_frame_is_refused_and_every_picture_is_proved() -> None:
    found = counts(correct(), as_made)
    assert found["Refused"] == 0
    assert {k: found[f"{k} Proved"] for k in ("normal", "haze", "low contrast")} == {
        "normal": 67,
        "haze": 7,
        "low contrast": 7,
    }
    assert found["Suspect"] == 0


@pytest.mark.parametrize("level", [0, 1, 60, 128, 200, 254, 255])
def test_a_flat_scene_of_an_8_bit_client_is_never_suspect(level: int) -> None:
    grey = to_tensor(np.full((40, 40, 3), level, np.uint8), SPEC)
    assert judge_tensor(grey, SPEC).standing in (Standing.UNPROVED, Standing.PROVED)
    wrong = judge_tensor(np.full_like(grey, level / 255), SPEC)
    assert wrong.standing is Standing.SUSPECT, "the same scene in 0..1 is"


def test_no_correct_frame_of_a_client_that_resizes_in_float_is_refused() -> None:
    found = counts(resized_in_float(), as_made)
    assert found["Refused"] == 0
    assert found["normal Proved"] >= 65
    assert found["normal Suspect"] == 0
    assert found["Suspect"] <= 20


@pytest.mark.parametrize("made", [correct, resized_in_float], ids=["resized in 8 bit", "resized in float"])
@pytest.mark.parametrize(
    ("make", "refused"),
    [
        pytest.param(lambda t: pixels(t) * 255, 115, id="raw 0..255"),
        pytest.param(lambda t: (pixels(t) * 255 - MEAN) / STD, 115, id="not divided by 255"),
        pytest.param(lambda t: (t - MEAN) / STD, 114, id="normalised twice"),
    ],
)
def test_scales_out_of_range_are_refused(
    made: Callable[[], tuple[tuple[str, Tensor], ...]], make: Make, refused: int
) -> None:
    assert counts(made(), make)["Refused"] >= refused


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(pixels, id="0..1"),
        pytest.param(lambda t: (pixels(t) - STD) / MEAN, id="mean and std exchanged"),
        pytest.param(lambda t: pixels(t) * 2 - 1, id="-1..1"),
    ],
)
def test_scales_within_range_are_never_proved_and_refused_where_the_pixel_levels_show(make: Make) -> None:
    eight_bit, floating = counts(correct(), make), counts(resized_in_float(), make)
    assert eight_bit["Refused"] == 67 + 7 + 7
    assert eight_bit["Suspect"] == 36
    assert floating["Suspect"] + floating["Refused"] == 117


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda t: t[:, ::-1], id="channels exchanged after normalising"),
        pytest.param(lambda t: (pixels(t) - MEAN[:, ::-1]) / STD[:, ::-1], id="constants in BGR order"),
    ],
)
def test_misordered_constants_are_refused_on_every_picture_of_an_8_bit_client(make: Make) -> None:
    eight_bit, floating = counts(correct(), make), counts(resized_in_float(), make)
    assert {k: eight_bit[f"{k} Refused"] for k in ("normal", "haze", "low contrast")} == {
        "normal": 67,
        "haze": 7,
        "low contrast": 7,
    }
    assert floating["normal Refused"] >= 64


def test_std_before_mean_is_refused_on_every_picture_of_an_8_bit_client() -> None:
    found = counts(correct(), lambda t: pixels(t) / STD - MEAN)
    assert (found["normal Refused"], found["haze Refused"], found["low contrast Refused"]) == (67, 7, 7)


def test_channels_exchanged_before_normalising_cannot_be_told_from_values() -> None:
    as_right, as_wrong = counts(correct(), as_made), counts(correct(), swapped_before)
    for kind in ("normal", "haze", "low contrast"):
        assert as_wrong[f"{kind} Proved"] == as_right[f"{kind} Proved"]
    assert as_wrong["Refused"] == 0


def test_a_value_that_is_no_number_is_refused_by_name() -> None:
    for value in (np.nan, np.inf, -np.inf):
        tensor = correct()[0][1].copy()
        tensor[0, 1, 5, 6] = value
        verdict = judge_tensor(tensor, SPEC)
        assert (verdict.standing, verdict.reason) == (Standing.REFUSED, Reason.NON_FINITE_INPUT)
        assert verdict.message.startswith("1 values")


def test_the_other_making_is_named() -> None:
    tensor = correct()[0][1]
    verdict = judge_tensor(pixels(tensor).astype(np.float32), SPEC)
    assert verdict.reason is Reason.IMPOSSIBLE_INPUT
    assert "0..1 that were not normalised" in verdict.message


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        (ContractSpec(mean=("0", "0", "0"), std=("1", "1", "1")), "0..1"),
        (ContractSpec(scale="1", mean=("0", "0", "0"), std=("1", "1", "1")), "0..255"),
        (ContractSpec(mean=("0.5", "0.5", "0.5"), std=("0.5", "0.5", "0.5")), "-1..1"),
        (ContractSpec(color_order="BGR", layout="NHWC"), "BGR, channels last"),
        (ContractSpec(scale="1", mean=("123.675", "116.28", "103.53"), std=("58.395", "57.12", "57.375")), "in levels"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_other_contracts_refuse_none_of_their_own_frames(spec: ContractSpec, name: str) -> None:
    verdicts = [(kind, judge_tensor(to_tensor(rgb, spec), spec)) for kind, _, rgb in frames()]
    assert [v.message for _, v in verdicts if v.standing is Standing.REFUSED] == []
    assert all(v.standing is Standing.PROVED for kind, v in verdicts if kind != "flat")


def verdict(standing: Standing) -> InputVerdict:
    return InputVerdict(standing=standing, reason=Reason.SUSPECT_INPUT if standing is Standing.SUSPECT else None)


SUSPECT, PROVED, UNPROVED, REFUSED = map(
    verdict, (Standing.SUSPECT, Standing.PROVED, Standing.UNPROVED, Standing.REFUSED)
)


def feed(frames: list[tuple[int, InputVerdict]]) -> list[int]:
    """The frame ids that were refused."""
    window, refused = InputWindow(), []
    for frame_id, one in frames:
        window, no = window.after(frame_id, one)
        if no:
            refused.append(frame_id)
    return refused


def test_a_stream_is_refused_from_its_thirtieth_suspect_frame_in_a_row_on() -> None:
    assert WINDOW == 30
    assert feed([(i, SUSPECT) for i in range(1, 33)]) == [30, 31, 32]


@pytest.mark.parametrize("other", [PROVED, UNPROVED], ids=["proved", "unproved"])
def test_one_other_frame_within_the_window_clears_the_stream(other: InputVerdict) -> None:
    stream = [(i, other if i == 20 else SUSPECT) for i in range(1, 52)]
    assert feed(stream) == [50, 51]


def test_a_frame_that_is_not_suspect_is_served_whatever_came_before_it() -> None:
    stream = [(i, SUSPECT) for i in range(1, 31)]
    assert feed([*stream, (31, PROVED), (32, SUSPECT)]) == [30]
    assert feed([(1, REFUSED), (2, PROVED)]) == [1]


def test_frames_count_in_the_order_of_their_arrival_whenever_they_are_judged() -> None:
    stream = [(i, SUSPECT) for i in range(1, 31)]
    late_proof = [*stream[:9], *stream[10:], (31, SUSPECT), (10, PROVED), (32, SUSPECT)]
    assert feed(late_proof) == [31]  # frame 10 was not heard of yet; as soon as it is, the stream is cleared
    assert feed(list(reversed(stream))) == [1]
    too_late = [(i, SUSPECT) for i in range(5, 36)]
    assert feed([*too_late, (1, PROVED), (36, SUSPECT)]) == [34, 35, 36]


def test_a_frame_that_is_judged_twice_counts_once() -> None:
    assert feed([(i // 2, SUSPECT) for i in range(2, 61)]) == [30]
