"""Pictures are looked at by measurement: against composites whose truth is known."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blurfleet.api.contract import ContractSpec, contract_at
from blurfleet_cli.composites import (
    PAIRS,
    RADIUS,
    Composite,
    composite,
    glow_energy,
    halo_energy,
    photograph,
    soft_matte,
    soft_recipe,
    usual_recipe,
)
from blurfleet_preprocess.compositing.backdrop import blurred
from blurfleet_preprocess.compositing.edges import Edge, refine
from blurfleet_preprocess.compositing.light import to_levels, to_light
from blurfleet_preprocess.compositing.look import MAX_RADIUS, Look, auto_radius
from blurfleet_preprocess.compositing.scales import Scales, gridded, grown, halved
from blurfleet_preprocess.compositing.sides import sides
from blurfleet_preprocess.compositing.subject import over
from blurfleet_preprocess.picture import composed, fine_matte

SHEETS = Path(__file__).parents[2] / "out" / "quality"
SPEC = ContractSpec()
LOOK = Look(radius=RADIUS)


@pytest.fixture(scope="module", params=PAIRS, ids="-before-".join)
def made(request: pytest.FixtureRequest) -> Composite:
    return composite(*request.param)


def sheet(name: str, rows: list[list[Any]]) -> None:
    """Leave pictures side by side for people, half their size."""
    SHEETS.mkdir(parents=True, exist_ok=True)
    whole = np.concatenate([np.concatenate(row, axis=1) for row in rows])
    cv2.imwrite(str(SHEETS / f"{name}.png"), cv2.cvtColor(halved(whole), cv2.COLOR_RGB2BGR))


def small_scene(size: tuple[int, int], seed: int = 5) -> tuple[Any, Any]:
    rgb = photograph("coffee", (300, 400))
    rgb = np.ascontiguousarray(cv2.resize(rgb, size[::-1], interpolation=cv2.INTER_AREA))
    return rgb, cv2.resize(soft_matte((320, 320)), (32, 32), interpolation=cv2.INTER_AREA)


def test_less_of_the_subject_glows_around_it_than_by_the_usual_recipes(
    made: Composite, request: pytest.FixtureRequest
) -> None:
    ours = composed(made.picture, made.small, SPEC, LOOK)
    usual, soft = usual_recipe(made.picture, made.small), soft_recipe(made.picture, made.small)
    sheet(request.node.callspec.id, [[made.picture, usual], [made.truth, ours]])
    assert halo_energy(ours, made) * 2.2 < halo_energy(usual, made)
    assert halo_energy(ours, made) * 1.7 < halo_energy(soft, made)
    assert glow_energy(ours, made) * 2.4 < min(glow_energy(usual, made), glow_energy(soft, made))


def test_a_blunt_matte_is_sharpened_along_the_pictures_edges(made: Composite) -> None:
    blunt = cv2.GaussianBlur(made.small, (0, 0), 1.0)
    mixed = (made.matte > 0) & (made.matte < 1)
    error = [
        float(np.square(matte - made.matte)[mixed].mean())
        for matte in (fine_matte(made.picture, blunt, SPEC), cv2.resize(blunt, made.picture.shape[1::-1]))
    ]
    assert error[0] < 0.75 * error[1]


def test_what_is_all_subject_comes_out_byte_for_byte(made: Composite) -> None:
    inside = cv2.erode((made.matte >= 1).astype(np.uint8), np.ones((41, 41), np.uint8)).astype(bool)
    assert inside.mean() > 0.1
    for look in (LOOK, Look(style="disc"), Look(background="color"), Look(background="transparent")):
        out = composed(made.picture, made.small, SPEC, look)
        np.testing.assert_array_equal(out[..., :3][inside], made.picture[inside])


def test_a_cut_out_hides_what_was_behind_and_shows_the_subject_on_anything(made: Composite) -> None:
    cut = composed(made.picture, made.small, SPEC, Look(background="transparent"))
    assert (cut.shape[2], cut.dtype) == (4, np.uint8)
    assert not cut[cut[..., 3] == 0].any()
    np.testing.assert_array_equal(cut[:100, :400], 0)
    alpha = cut[..., 3:] / np.float32(255)
    green = np.array([0, 200, 0], np.uint8)
    laid = to_levels(to_light(cut[..., :3]) * alpha + to_light(np.full_like(made.picture, green)) * (1 - alpha))
    other = composed(made.picture, made.small, SPEC, Look(background="color", colour=(0, 200, 0)))
    assert np.abs(laid.astype(int) - other).mean() < 0.05


@pytest.mark.parametrize("value", [0.0, 1.0])
@pytest.mark.parametrize("size", [(270, 480), (271, 479), (61, 700)], ids=str)
def test_where_nothing_is_mixed_the_short_way_gives_what_the_long_one_does(value: float, size: tuple[int, int]) -> None:
    rgb = photograph("coffee", size)
    matte = np.full((32, 32), value, np.float32)
    short = composed(rgb, matte, contract_at(32), Look(radius=9))
    scales = Scales(rgb)
    edge = refine(gridded(matte, size, scales.work), scales.at(scales.work))
    assert not edge.unsettled.any()
    everywhere = Edge(
        matte=edge.matte, planes=edge.planes, unsettled=np.ones_like(edge.unsettled), subject=0 * edge.subject
    )
    known = sides(scales, everywhere)
    assert known is not None
    long = over(scales, everywhere, known, blurred(scales, everywhere, known, 9.0, "gaussian"))
    np.testing.assert_array_equal(short, long)
    if value == 1.0:
        np.testing.assert_array_equal(short, rgb)


@pytest.mark.parametrize("colour", [(0, 0, 0), (1, 2, 3), (128, 64, 200), (255, 255, 255)], ids=str)
@pytest.mark.parametrize("look", [LOOK, Look(radius=45, style="disc"), Look(radius=3), Look(mode="depth")], ids=repr)
def test_a_flat_picture_keeps_its_colour(colour: tuple[int, int, int], look: Look) -> None:
    rgb = np.full((540, 960, 3), colour, np.uint8)
    out = composed(rgb, cv2.resize(soft_matte((320, 320)), (320, 320)), SPEC, look)
    assert np.abs(out.astype(int) - colour).max() <= 1


def test_a_vivid_subject_hardly_colours_a_flat_background() -> None:
    matte = soft_matte((540, 960))
    behind, before = (np.full((540, 960, 3), colour, np.uint8) for colour in ((40, 90, 60), (250, 30, 30)))
    rgb = to_levels(to_light(behind) + matte[..., None] * (to_light(before) - to_light(behind)))
    small = cv2.resize(matte, (320, 320), interpolation=cv2.INTER_AREA)
    clear = cv2.dilate((matte > 0).astype(np.uint8), np.ones((9, 9), np.uint8)) == 0
    strayed = [
        np.abs(out[clear].astype(int) - (40, 90, 60)).max(axis=1)
        for out in (composed(rgb, small, SPEC, LOOK), usual_recipe(rgb, small))
    ]
    assert strayed[0].max() < 0.75 * strayed[1].max()
    assert 4 * (strayed[0] > 4).mean() < (strayed[1] > 4).mean()


def test_a_lamp_out_of_focus_is_a_bright_disc_with_a_rim() -> None:
    rgb = np.full((400, 400, 3), 20, np.uint8)
    cv2.circle(rgb, (200, 200), 5, (255, 255, 255), -1)
    discs = {}
    for style in ("gaussian", "disc"):
        out = composed(rgb, np.zeros((32, 32), np.float32), contract_at(32), Look(radius=30, style=style))
        discs[style] = out[200, :, 0].astype(int)
    across = discs["disc"]
    inside, outside = across[180:221], np.r_[across[:160], across[241:]]
    assert inside.min() > 2.5 * outside.max()
    assert inside.max() - inside.min() < 25
    assert inside.min() > discs["gaussian"][180:221].min()


@settings(deadline=None, max_examples=60)
@given(
    short=st.integers(64, 5000),
    share=st.floats(0, 1),
    more=st.floats(0, 0.05),
    longer=st.integers(0, 50),
)
def test_the_automatic_radius_grows_without_a_jump(short: int, share: float, more: float, longer: int) -> None:
    here = auto_radius((short, 2 * short), share)
    assert 1 <= here <= MAX_RADIUS
    assert here <= auto_radius((short + longer, 2 * short), share)
    there = auto_radius((short, 2 * short), min(1.0, share + more))
    assert here <= there <= here + 50 * more**0.5 * short / 1080 + 1e-9


def test_the_automatic_radius_at_1080p() -> None:
    radii = [auto_radius((1080, 1920), share) for share in (0.0, 0.25, 0.36, 1.0)]
    assert radii == pytest.approx([15.0, 40.0, 45.0, 65.0])


def test_a_small_picture_takes_no_more_than_a_quarter_of_its_side() -> None:
    assert Look(radius=200).radius_on((40, 100), 0.5) == 10.0
    assert Look(radius=200).radius_on((2, 2), 0.5) == 1.0
    assert Look(radius=200).radius_on((1080, 1920), 0.5) == 200.0


@settings(deadline=None, max_examples=40)
@given(
    height=st.integers(1, 90),
    width=st.integers(1, 90),
    radius=st.floats(1, 200),
    style=st.sampled_from(["gaussian", "disc"]),
    mode=st.sampled_from(["matte", "depth"]),
    background=st.sampled_from(["blur", "color", "transparent"]),
    fit=st.sampled_from(["stretch", "letterbox", "crop"]),
)
def test_any_size_is_composed(
    height: int, width: int, radius: float, style: Any, mode: Any, background: Any, fit: Any
) -> None:
    rgb, matte = small_scene((height, width))
    look = Look(radius=radius, style=style, mode=mode, background="blur" if mode == "depth" else background)
    out = composed(rgb, matte, contract_at(32, ContractSpec(fit=fit)), look)
    assert out.shape == (height, width, 4 if look.background == "transparent" else 3)
    assert out.dtype == np.uint8
    assert fine_matte(rgb, matte, contract_at(32, ContractSpec(fit=fit))).shape == (height, width)


def test_a_little_more_radius_is_a_little_more_blur() -> None:
    rgb = photograph("china", (540, 960))
    empty = np.zeros((320, 320), np.float32)
    left = [float(np.std(np.diff(composed(rgb, empty, SPEC, Look(radius=r)).astype(int), axis=1))) for r in RADII]
    assert all(a >= b for a, b in pairwise(left))
    assert max(a - b for a, b in pairwise(left)) < 0.12 * left[0]


RADII = [2.0 * 1.1**n for n in range(42)]


@pytest.mark.parametrize("size", [(64, 64), (65, 63), (7, 5), (1, 1)], ids=str)
def test_levels_do_not_drift_against_the_picture(size: tuple[int, int]) -> None:
    ramp = np.repeat(np.arange(size[1], dtype=np.float32)[None], size[0], axis=0)
    down = ramp
    for _ in range(3):
        down = halved(down)
    back = grown(down, 3, size)
    assert back.shape == size
    inner = back[:, 4:-11] - ramp[:, 4:-11]
    assert np.abs(inner).max(initial=0.0) < 1e-3
    np.testing.assert_allclose(gridded(ramp, size, 3)[:, 1:-2], down[:, 1:-2], atol=0.06)


def test_light_and_levels_are_each_others_inverse() -> None:
    levels = np.arange(256, dtype=np.uint8).reshape(16, 16)
    np.testing.assert_array_equal(to_levels(to_light(levels)), levels)
    assert to_light(levels)[8, 0] == pytest.approx(0.2158605)
    assert to_levels(np.array([[-0.5, 1.5]], np.float32)).tolist() == [[0, 255]]
