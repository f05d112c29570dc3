"""Input drift: the test itself against scipy, its false alarms on the calibration's own law, what it must notice."""

from functools import cache

import cv2
import numpy as np
import pytest
from scipy.stats import ks_2samp
from tests.diagnosis.frames import PHOTOS, photo

from blurfleet.api.contract import contract_at
from blurfleet.pixels import to_tensor
from blurfleet.quality.drift import (
    CLEARS_AT,
    FEWEST,
    LEVEL,
    MOST,
    Features,
    InputDrift,
    baseline_of,
    features_of,
    statistics_of,
    two_sample,
)

SPEC = contract_at(64)


@cache
def views() -> tuple[Features, ...]:
    """Features of 420 views of seven photographs: the law that calibration and live frames are both drawn from."""
    rng, found = np.random.default_rng(11), []
    for name in PHOTOS:
        rgb = cv2.resize(photo(name), (256, 192), interpolation=cv2.INTER_AREA)
        found += [features_of(to_tensor(view(rgb, rng), SPEC)) for _ in range(60)]
    return tuple(found)


def view(rgb: np.ndarray, rng: np.random.Generator, gain: float = 1.0) -> np.ndarray:
    top, left = rng.integers(0, 64), rng.integers(0, 96)
    part = rgb[top : top + 128, left : left + 160].astype(np.float64) * rng.uniform(0.6, 1.4) * gain
    return np.clip(np.rint(part), 0, 255).astype(np.uint8)


def drawn(count: int, rng: np.random.Generator) -> list[Features]:
    return [views()[i] for i in rng.choice(len(views()), count, replace=False)]


def fed(frames: list[Features], state: InputDrift, start: float = 0.0) -> InputDrift:
    for second, features in enumerate(frames):
        assert state.due("cam", start + 2.0 * second)
        state = state.after("cam", features, start + 2.0 * second)
    return state


def calibrated(frames: list[Features]) -> InputDrift:
    baseline = baseline_of(statistics_of(frames))
    assert baseline is not None
    return InputDrift(baseline=baseline)


@pytest.mark.parametrize(("n", "m", "shift"), [(20, 46, 0.0), (46, 46, 0.3), (64, 64, 0.5), (30, 50, 0.8)])
def test_the_distance_is_scipys_and_p_is_close_to_the_exact_one(n: int, m: int, shift: float) -> None:
    rng = np.random.default_rng(n + m)
    for _ in range(20):
        one, other = rng.normal(size=n), rng.normal(shift, 1, size=m)
        distance, p = two_sample(one, other)
        exact = ks_2samp(one, other, method="exact")
        assert distance == pytest.approx(exact.statistic, abs=1e-12)
        assert p == pytest.approx(exact.pvalue, abs=0.05)
        if exact.pvalue < 0.05:
            assert 0.6 < p / exact.pvalue < 1.5


def test_equal_and_disjoint_samples_are_the_two_ends() -> None:
    assert two_sample(np.arange(30.0), np.arange(30.0)) == (0.0, 1.0)
    distance, p = two_sample(np.arange(30.0), np.arange(30.0) + 100)
    assert distance == 1.0
    assert p < 1e-12


def test_frames_of_the_calibrations_own_law_hardly_ever_warn() -> None:
    rng, warned, trials = np.random.default_rng(1), 0, 400
    for _ in range(trials):
        frames = drawn(92, rng)
        state = calibrated(frames[:46])
        for features in frames[46:]:
            state = state.after("cam", features, 0.0)
        warned += bool(state.verdict.drifted)
    assert warned <= LEVEL * trials


@pytest.mark.parametrize("gain", [0.5, 1.7], ids=["darker", "brighter"])
def test_a_shift_in_brightness_warns_and_names_it(gain: float) -> None:
    rng = np.random.default_rng(2)
    shifted = []
    for name in PHOTOS:
        rgb = cv2.resize(photo(name), (256, 192), interpolation=cv2.INTER_AREA)
        shifted += [features_of(to_tensor(view(rgb, rng, gain), SPEC)) for _ in range(7)]
    state = fed(shifted, calibrated(drawn(46, rng)))
    assert state.verdict.drifted is True
    assert state.verdict.p is not None
    assert state.verdict.p < LEVEL
    assert "brightness" in state.verdict.message or "contrast" in state.verdict.message


def test_lost_contrast_warns() -> None:
    rng = np.random.default_rng(3)
    hazy = [tuple(v * (0.4 if i % 2 else 1.0) for i, v in enumerate(f)) for f in drawn(46, rng)]
    state = fed(hazy, calibrated(drawn(46, rng)))
    assert state.verdict.drifted is True
    assert "contrast" in state.verdict.message


def test_too_few_frames_say_nothing() -> None:
    rng = np.random.default_rng(4)
    state = fed(drawn(FEWEST - 1, rng), calibrated(drawn(46, rng)))
    assert (state.verdict.drifted, state.verdict.p) == (None, None)
    assert state.verdict.message == "19 of 20 frames"


def test_the_window_is_as_long_as_the_profile_and_slides() -> None:
    rng = np.random.default_rng(5)
    state = calibrated(drawn(46, rng))
    bright = [tuple(v + 2.0 for v in f) for f in drawn(60, rng)]
    state = fed(bright, state)
    assert len(state.frames) == 46
    assert state.verdict.drifted is True
    state = fed(drawn(80, rng), state, start=1000.0)
    assert state.verdict.drifted is False


def test_a_warning_stands_until_it_is_clearly_over() -> None:
    assert LEVEL < CLEARS_AT
    base = [tuple(float(i) for _ in range(6)) for i in range(40)]
    state = calibrated(base)
    edge: list[float] = []
    for lift in np.arange(20.0, 0.0, -0.5):  # fade from far off to the same
        state = fed([tuple(v + lift for v in f) for f in base], state, start=1000 * (21 - lift))
        assert state.verdict.p is not None
        if LEVEL <= state.verdict.p < CLEARS_AT:
            edge.append(state.verdict.p)
            assert state.verdict.drifted is True
    assert edge
    assert state.verdict.drifted is False


def test_neighbours_of_one_stream_count_once_and_other_streams_by_themselves() -> None:
    state = calibrated(drawn(46, np.random.default_rng(6)))
    state = state.after("cam", views()[0], 100.0)
    assert not state.due("cam", 100.9)
    assert state.due("cam", 101.0)
    assert state.due("other", 100.1)
    assert state.due("cam", 50.0)  # a clock that was set back does not end the watch


def test_a_profile_keeps_values_as_text_and_thins_many_frames() -> None:
    frames = [tuple(float(i + c) for c in range(6)) for i in range(200)]
    text = statistics_of(frames)
    baseline = baseline_of(text)
    assert baseline is not None
    assert [len(column) for column in baseline] == [MOST] * 6
    assert baseline[0][0] == pytest.approx(1.05, abs=1.0)
    assert all(len(value) <= 1024 for value in text.values())
    assert list(text)[:2] == ["channel0.brightness", "channel0.contrast"]


@pytest.mark.parametrize(
    "broken",
    [
        {},
        {"channel0.brightness": "1 2"},
        dict.fromkeys(statistics_of([(0.0,) * 6]), "x"),
        {name: " ".join("1" * 30) for name in list(statistics_of([(0.0,) * 6]))[:5]},
        dict.fromkeys(statistics_of([(0.0,) * 6]), "nan " * 30),
    ],
    ids=["empty", "too few", "no numbers", "a channel is missing", "NaN"],
)
def test_a_profile_without_frames_is_no_baseline(broken: dict[str, str]) -> None:
    assert baseline_of(broken) is None
    state = InputDrift(baseline=None)
    assert not state.due("cam", 0.0)


def test_features_are_the_same_in_both_layouts() -> None:
    tensor = to_tensor(photo("coffee.png"), SPEC)
    swapped = np.ascontiguousarray(tensor.transpose(0, 2, 3, 1))
    assert features_of(tensor) == pytest.approx(features_of(swapped))
    assert features_of(tensor)[0] == pytest.approx(float(tensor[0, 0].mean()), abs=1e-6)
    assert features_of(tensor)[5] == pytest.approx(float(tensor[0, 2].std()), abs=1e-6)
