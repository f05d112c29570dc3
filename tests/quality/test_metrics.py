"""Figures of a pair: the right values, and what they become on pixels that break naive code."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from skimage.metrics import structural_similarity

from blurfleet.api.policy import MetricName
from blurfleet.errors import InvalidInput
from blurfleet.quality.metrics import measure
from blurfleet.quality.sentinel import sentinel
from blurfleet.reasons import Reason

CASES = Path(__file__).parents[1] / "cases" / "metrics"
PAIRS = json.loads((CASES / "pairs_expected.json").read_text())


def disc(size: int = 64, centre: float = 32.0) -> np.ndarray:
    y, x = np.mgrid[:size, :size]
    return np.clip(12 - np.hypot(x - centre, y - centre), 0, 1).astype(np.float32)


@pytest.mark.parametrize("row", PAIRS, ids=lambda row: row["pair"])
def test_every_committed_pair_has_its_figures(row: dict[str, float]) -> None:
    with np.load(CASES / f"pair_{row['pair']}.npz") as pair:
        found = measure(pair["ref"], pair["cand"])
    for value, key, tolerance in (
        (found.max_abs_error, "max_abs", 1e-6),
        (found.p999_error, "p999", 1e-6),
        (found.deer, "deer", 1e-6),
        (found.ssim, "ssim_range1", 1e-6),
    ):
        assert value == pytest.approx(row[key], abs=tolerance, nan_ok=True), key
    assert found.edge_pixels == row.get("edge_pixels", 0)


def test_ssim_is_scikit_images_for_shapes_that_do_not_divide_into_bands() -> None:
    random = np.random.default_rng(1)
    for shape in ((7, 7), (7, 9), (33, 2000), (160, 160), (320, 320), (41, 320)):
        a, b = (random.random(shape, dtype=np.float32) for _ in range(2))
        want = structural_similarity(a.astype(float), b.astype(float), data_range=1.0)
        assert measure(a, b).ssim == pytest.approx(want, abs=1e-9), shape


def test_p999_interpolates_between_neighbours_as_numpy_does() -> None:
    random = np.random.default_rng(2)
    for size in (8, 31, 100):
        a, b = (random.random((size, size), dtype=np.float32) for _ in range(2))
        assert measure(a, b).p999_error == pytest.approx(float(np.percentile(np.abs(a - b), 99.9)), abs=1e-7)


def test_one_nan_in_the_candidate_makes_every_figure_nan_and_is_counted() -> None:
    broken = disc()
    broken[5, 5] = np.nan
    found = measure(disc(), broken)
    figures = (found.max_abs_error, found.p999_error, found.deer, found.ssim, found.psnr)
    assert all(value is not None and math.isnan(value) for value in figures)
    assert (found.non_finite, found.judgeable) == (1, True)


def test_an_infinite_pixel_without_nan_makes_max_abs_infinite() -> None:
    broken = disc()
    broken[5, 5] = -np.inf
    found = measure(disc(), broken)
    assert found.max_abs_error == math.inf
    assert found.non_finite == 1


def test_a_nan_only_in_the_reference_says_nothing_about_the_candidate() -> None:
    broken = disc()
    broken[5, 5] = np.nan
    found = measure(broken, disc())
    assert not found.judgeable
    assert (found.non_finite, found.reference_non_finite) == (0, 1)
    assert math.isnan(found.max_abs_error)


def test_deer_of_two_edgeless_mattes_is_not_measurable_rather_than_zero() -> None:
    flat = np.zeros((64, 64), np.float32)
    found = measure(flat, flat)
    assert found.deer is None
    assert not found.deer_valid
    assert found.max_abs_error == 0.0


def test_edges_only_in_the_candidate_are_an_infinite_rate() -> None:
    assert measure(np.zeros((64, 64), np.float32), disc()).deer == math.inf


@pytest.mark.parametrize(("width", "pixels"), [(27, 62), (28, 64)], ids=["62 edge pixels", "64 edge pixels"])
def test_deer_needs_64_edge_pixels(width: int, pixels: int) -> None:
    bar = np.zeros((40, 64), np.float32)
    bar[20, 20 : 20 + width] = 1.0  # one bright row has 2 * width + 8 edge pixels around it
    found = measure(bar, bar)
    assert found.edge_pixels == pixels
    assert found.deer == (0.0 if pixels >= 64 else None)


def test_identical_mattes_have_a_rate_of_exactly_zero() -> None:
    random = np.random.default_rng(3)
    for _ in range(50):
        matte = random.random((37, 53), dtype=np.float32)
        assert measure(matte, matte.copy()).deer == 0.0


def test_deer_is_blind_to_an_inverted_matte_where_max_abs_is_not() -> None:
    found = measure(disc(), 1 - disc())
    assert found.deer == pytest.approx(0.0, abs=1e-5)
    assert found.max_abs_error == 1.0


def test_a_collapsed_candidate_is_told_from_an_empty_scene() -> None:
    empty = np.zeros((64, 64), np.float32)
    assert measure(disc(), empty).collapsed
    assert measure(disc(), empty + 1).collapsed
    assert not measure(empty, empty).collapsed
    assert not measure(disc() * 0.1, empty).collapsed
    assert measure(disc(), empty).figures()[MetricName.COLLAPSED] == 1.0


def test_out_of_range_pixels_are_counted_and_rounding_is_not() -> None:
    loud = disc()
    loud[0, 0], loud[0, 1], loud[0, 2] = 1.5, -0.2, 1.00001
    assert measure(disc(), loud).out_of_range == 2


def test_depth_errors_are_shares_of_the_references_range() -> None:
    ramp = np.linspace(2.0, 12.0, 64 * 64, dtype=np.float32).reshape(64, 64)
    found = measure(ramp, ramp + 0.5, kind="depth")
    assert found.max_abs_error == pytest.approx(0.05, abs=1e-5)
    assert found.p999_error == pytest.approx(0.05, abs=1e-5)
    assert found.out_of_range == 0


def test_a_flat_depth_reference_is_refused() -> None:
    with pytest.raises(InvalidInput) as caught:
        measure(np.ones((64, 64), np.float32), disc(), kind="depth")
    assert caught.value.reason is Reason.INVALID_SAMPLE


@pytest.mark.parametrize(
    ("reference", "candidate", "reason"),
    [
        pytest.param(disc(), disc(32, 16), Reason.WRONG_SHAPE, id="two sizes"),
        pytest.param(disc()[0], disc()[0], Reason.WRONG_SHAPE, id="a row is no matte"),
        pytest.param(
            np.zeros((3, 8, 8), np.float32), np.zeros((3, 8, 8), np.float32), Reason.WRONG_SHAPE, id="3 planes"
        ),
        pytest.param(np.zeros((0, 8), np.float32), np.zeros((0, 8), np.float32), Reason.WRONG_SHAPE, id="no pixel"),
        pytest.param(disc().astype(np.uint8), disc(), Reason.WRONG_DTYPE, id="bytes are not alpha"),
        pytest.param(disc().astype(complex), disc(), Reason.WRONG_DTYPE, id="complex numbers"),
        pytest.param([[0.0]], disc(), Reason.WRONG_DTYPE, id="a list"),
        pytest.param(np.full((8, 8), None), disc(), Reason.WRONG_DTYPE, id="objects"),
    ],
)
def test_what_is_no_pair_of_mattes_is_refused(reference: Any, candidate: Any, reason: Reason) -> None:
    with pytest.raises(InvalidInput) as caught:
        measure(reference, candidate)
    assert caught.value.reason is reason


def test_a_batch_axis_of_one_and_half_precision_are_accepted() -> None:
    batched = disc()[None, None].astype(np.float16)
    assert measure(batched, disc()).max_abs_error == pytest.approx(0.0, abs=5e-4)


def test_a_double_beyond_float32_is_a_non_finite_output() -> None:
    huge = disc().astype(np.float64)
    huge[0, 0] = 1e300
    assert measure(disc(), huge).non_finite == 1


@pytest.mark.parametrize(
    ("pixel", "outside"), [(-0.2, 1), (1.2, 1), (-1e-5, 0), (1.00001, 0)], ids=["below", "above", "noise 0", "noise 1"]
)
def test_one_pixel_out_of_range_is_enough_to_withhold(pixel: float, outside: int) -> None:
    matte = disc()
    matte[0, 0] = pixel
    assert (sentinel(matte).out_of_range, sentinel(matte).withhold) == (outside, outside > 0)


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0, 1.5, -0.5, np.nan, np.inf, -np.inf]), min_size=16, max_size=16))
@settings(max_examples=60, deadline=None)
def test_the_sentinel_counts_each_kind_of_broken_pixel(pixels: list[float]) -> None:
    found = sentinel(np.array(pixels, np.float32).reshape(4, 4))
    assert found.non_finite == sum(not math.isfinite(p) for p in pixels)
    assert found.out_of_range == sum(math.isfinite(p) and not 0 <= p <= 1 for p in pixels)
    assert found.withhold == (found.non_finite + found.out_of_range > 0)
    finite = [p for p in pixels if math.isfinite(p)]
    assert found.span == (max(finite) - min(finite) if finite else 0.0)
