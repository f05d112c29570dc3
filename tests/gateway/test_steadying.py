"""The matte of a stream: steady where the picture stands still, prompt where it moves, and how flicker is measured."""

import cv2
import numpy as np
import pytest

from blurfleet.api.contract import ContractSpec, contract_at
from blurfleet.pixels import Tensor, to_tensor
from blurfleet_preprocess.steadying import Past, Sight, Steady, flicker, steadied

SIZE = 96
SPEC = contract_at(SIZE)
RNG = np.random.default_rng(11)
ROOM = cv2.GaussianBlur(RNG.integers(0, 256, (SIZE, SIZE, 3), dtype=np.uint8), (0, 0), 2)
SHIRT = np.full((SIZE, SIZE, 3), (250, 60, 20), np.uint8)


def disc(x: float, radius: float = 14) -> np.ndarray:
    """A soft-edged disc at column `x`, drawn to a sixteenth of a pixel: the true matte [H,W]."""
    hard = np.zeros((SIZE, SIZE), np.float32)
    cv2.circle(hard, (round(x * 16), 48 * 16), round(radius * 16), 1.0, -1, cv2.LINE_AA, 4)
    return np.clip(cv2.GaussianBlur(hard, (0, 0), 1.0), 0, 1)


def scene(matte: np.ndarray, seed: int | None = None) -> Tensor:
    """The tensor of a shirt in a room; with camera noise of two levels where a seed is given."""
    rgb = ROOM + matte[..., None] * (SHIRT.astype(np.float32) - ROOM)
    if seed is not None:
        rgb = rgb + np.random.default_rng(seed).normal(0, 2, rgb.shape)
    return to_tensor(np.clip(np.rint(rgb), 0, 255).astype(np.uint8), SPEC)


def sight(matte: np.ndarray, tensor: Tensor, made_by: str = "one", spec: ContractSpec = SPEC) -> Sight:
    return Sight(matte=matte.astype(np.float32), tensor=tensor, spec=spec, made_by=made_by)


def run(sights: list[Sight], strength: float) -> list[Steady]:
    past: Past | None = None
    found = []
    for one in sights:
        past, steady = steadied(past, one, strength)
        found.append(steady)
    return found


def noisy(count: int) -> list[Sight]:
    """A scene that stands still before a noisy camera, and an engine that is unsure by up to 0.1."""
    truth = 0.1 + 0.8 * disc(48)
    return [sight(truth + RNG.uniform(-0.1, 0.1, truth.shape), scene(disc(48), seed)) for seed in range(count)]


def test_without_strength_the_matte_is_the_engines_own_and_flicker_is_measured_all_the_same() -> None:
    sights = noisy(3)
    found = run(sights, 0.0)
    assert all(steady.matte is one.matte for steady, one in zip(found, sights, strict=True))
    assert (found[0].flicker, found[0].engine_flicker) == (None, None)
    assert found[2].flicker == found[2].engine_flicker == pytest.approx(0.2 / 3, rel=0.05)


def test_a_scene_that_stands_still_flickers_less_the_more_the_past_counts() -> None:
    sights = noisy(30)
    means = {}
    for strength in (0.5, 0.8, 0.95):
        settled = run(sights, strength)[15:]
        means[strength] = float(np.mean([steady.flicker for steady in settled]))
        assert np.mean([steady.engine_flicker for steady in settled]) == pytest.approx(0.2 / 3, rel=0.05)
    # Of independent noise an exponential mean of weight w lets w / sqrt(2 - w) through from one frame to the next.
    for strength, mean in means.items():
        weight = 1 - strength
        assert mean == pytest.approx(0.0667 * weight / (2 - weight) ** 0.5, rel=0.25)


def test_an_edge_that_moves_leaves_no_ghost() -> None:
    places = [20 + 4 * step for step in range(13)]
    sights = [sight(disc(x), scene(disc(x), x)) for x in places]
    found = run(sights, 0.9)
    ghost = sights[0].matte
    for one, steady in zip(sights[1:], found[1:], strict=True):
        ghost = 0.9 * ghost + 0.1 * one.matte
        assert float(np.abs(steady.matte - one.matte).max()) < 0.02
    assert float(np.abs(ghost - sights[-1].matte).max()) > 0.8  # the same weight without a look at the picture


def test_an_edge_too_faint_to_be_seen_moving_from_one_frame_to_the_next_is_followed_all_the_same() -> None:
    places = [30 + 0.3 * step for step in range(60)]
    faint = [np.rint(100 + 40 * disc(x))[..., None].repeat(3, axis=2).astype(np.uint8) for x in places]
    found = run([sight(disc(x), to_tensor(rgb, SPEC)) for x, rgb in zip(places, faint, strict=True)], 0.95)
    # A soft edge that is one pixel late differs by its slope, 0.4.
    late = max(float(np.abs(steady.matte - disc(x)).max()) for steady, x in zip(found, places, strict=True))
    assert late < 0.4


def test_a_cut_to_another_scene_begins_anew() -> None:
    other = to_tensor(255 - ROOM, SPEC)
    first, second = sight(disc(48), scene(disc(48))), sight(disc(20), other)
    _, steady = run([first, second], 0.9)
    np.testing.assert_array_equal(steady.matte, second.matte)
    assert (steady.cut, steady.flicker) == (True, None)


def test_nothing_of_another_engines_matte_is_carried_on() -> None:
    tensor = scene(disc(48))
    bad, good = sight(disc(48) * 0.5, tensor, "bad"), sight(disc(48), tensor, "good")
    _, steady = run([bad, good], 0.9)
    np.testing.assert_array_equal(steady.matte, good.matte)
    # What a person sees at the swap is a flicker all the same.
    assert steady.flicker == pytest.approx(float(disc(48).mean()) / 2, rel=1e-4)


def test_another_size_begins_anew() -> None:
    small = contract_at(48)
    tensor = to_tensor(np.zeros((48, 48, 3), np.uint8), small)
    first, second = sight(disc(48), scene(disc(48))), sight(np.ones((48, 48)), tensor, spec=small)
    _, steady = run([first, second], 0.9)
    np.testing.assert_array_equal(steady.matte, second.matte)
    assert (steady.cut, steady.flicker) == (False, None)


def test_the_layout_of_the_tensor_makes_no_difference() -> None:
    last = ContractSpec(layout="NHWC", height=SPEC.height, width=SPEC.width)
    mattes = [one.matte for one in noisy(3)]
    first = run([sight(matte, scene(disc(48), n)) for n, matte in enumerate(mattes)], 0.7)
    other = [sight(m, scene(disc(48), n).transpose(0, 2, 3, 1), spec=last) for n, m in enumerate(mattes)]
    np.testing.assert_array_equal(first[-1].matte, run(other, 0.7)[-1].matte)


def test_a_matte_of_another_size_than_the_tensor_is_steadied_too() -> None:
    tensor = scene(disc(48))
    half = [sight(np.full((48, 48), value), tensor) for value in (0.4, 0.6)]
    _, steady = run(half, 0.75)
    np.testing.assert_allclose(steady.matte, 0.45, atol=1e-6)
    assert steady.flicker == pytest.approx(0.05, abs=1e-6)


def test_what_is_sent_stays_between_0_and_1() -> None:
    ends = [sight(RNG.integers(0, 2, (SIZE, SIZE)), scene(disc(48), seed)) for seed in range(20)]
    for steady in run(ends, 0.95):
        assert steady.matte.dtype == np.float32
        assert (float(steady.matte.min()), float(steady.matte.max())) >= (0.0, 0.0)
        assert 0.0 <= steady.matte.min() <= steady.matte.max() <= 1.0


def test_flicker_is_the_mean_change_where_the_picture_stood_still() -> None:
    before, now = np.zeros((10, 20), np.float32), np.zeros((10, 20), np.float32)
    now[:, :10], now[:, 10:] = 0.25, 1.0
    still = np.zeros((10, 20), bool)
    still[:, :10] = True
    assert flicker(now, before, still) == pytest.approx(0.25)
    still[0, 10:] = True
    assert flicker(now, before, still) == pytest.approx((100 * 0.25 + 10) / 110)
    assert flicker(now, before, np.zeros((10, 20), bool)) is None
