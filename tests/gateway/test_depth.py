"""Depth mode on a real scene with measured depth: scikit-image's motorcycle (Middlebury 2014)."""

from functools import cache
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from skimage import data

from blurfleet_preprocess.compositing.depth import focus_of, layered

SHEETS = Path(__file__).parents[2] / "out" / "quality"
STYLES = ("gaussian", "disc")


@cache
def motorcycle() -> tuple[Any, Any, Any]:
    """Return the left picture, its nearness in [0,1] with the gaps filled, and where it was measured."""
    left, _, disparity = data.stereo_motorcycle()
    known = np.isfinite(disparity)
    near = np.where(known, disparity, 0).astype(np.float32)
    near = (255 * near / near.max()).astype(np.uint8)
    near = cv2.inpaint(near, (~known).astype(np.uint8), 5, cv2.INPAINT_TELEA)
    return left, cv2.medianBlur(near, 5).astype(np.float32) / 255, known


def detail(picture: Any) -> Any:
    grey = cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY).astype(np.float32)
    return np.abs(cv2.Laplacian(grey, cv2.CV_32F))


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("focus", [0.0, 0.4, 1.0])
def test_a_pattern_is_softer_the_further_it_is_from_the_focus(focus: float, style: Any) -> None:
    pattern = np.random.default_rng(3).integers(0, 256, (256, 1024, 3), dtype=np.uint8)
    near = np.repeat(np.linspace(0, 1, 1024, dtype=np.float32)[None], 256, axis=0)
    out = layered(pattern, near, focus=focus, radius=16, style=style)
    kept = (detail(out).sum(axis=0) / detail(pattern).sum(axis=0)).reshape(32, 32).mean(axis=1)
    distance = np.abs(near[0].reshape(32, 32).mean(axis=1) - focus)
    for side in (near[0, ::32] + 0.5 / 32 > focus, near[0, ::32] + 0.5 / 32 < focus):
        ordered = kept[side][np.argsort(distance[side])]
        assert (np.diff(ordered) <= 0.012).all()
    assert kept[np.argmin(distance)] > 0.6
    assert kept[np.argmax(distance)] < 0.05


@pytest.mark.parametrize("style", STYLES)
def test_what_lies_behind_the_motorcycle_is_softer_and_the_motorcycle_is_not(style: Any) -> None:
    left, near, known = motorcycle()
    out = layered(left, near, focus=0.85, radius=20, style=style)
    SHEETS.mkdir(parents=True, exist_ok=True)
    sheet = np.concatenate((left, out), axis=1)
    cv2.imwrite(str(SHEETS / f"depth-{style}.png"), cv2.cvtColor(sheet, cv2.COLOR_RGB2BGR))
    distance = np.abs(near - 0.85)
    kept = []
    for low, high in ((0.0, 0.02), (0.02, 0.15), (0.15, 0.4), (0.4, 0.9)):
        band = known & (distance >= low) & (distance < high)
        assert band.sum() > 3000
        kept.append(float(detail(out)[band].sum() / detail(left)[band].sum()))
    assert kept == sorted(kept, reverse=True)
    assert kept[0] > 0.6
    assert kept[-1] < 0.12


def test_all_in_the_plane_of_focus_comes_out_byte_for_byte() -> None:
    left, near, _ = motorcycle()
    out = layered(left, np.full_like(near, 0.5), focus=0.5, radius=30, style="gaussian")
    np.testing.assert_array_equal(out, left)


def test_a_sharp_thing_leaves_no_glow_in_what_is_blurred_behind_it() -> None:
    rgb = np.full((240, 320, 3), (40, 90, 60), np.uint8)
    near = np.zeros((240, 320), np.float32)
    rgb[80:160, 120:200] = (250, 30, 30)
    near[80:160, 120:200] = 1.0
    out = layered(rgb, near, focus=1.0, radius=20, style="gaussian")
    behind = np.ones(near.shape, bool)
    behind[76:164, 116:204] = False
    assert np.abs(out[behind].astype(int) - (40, 90, 60)).max() <= 2
    np.testing.assert_array_equal(out[90:150, 130:190], rgb[90:150, 130:190])


def test_what_is_blurred_in_front_spreads_over_what_is_sharp_behind_it() -> None:
    rgb = np.full((240, 320, 3), (40, 90, 60), np.uint8)
    near = np.zeros((240, 320), np.float32)
    rgb[80:160, 120:200] = (250, 30, 30)
    near[80:160, 120:200] = 1.0
    out = layered(rgb, near, focus=0.0, radius=20, style="gaussian")
    assert out[120, 114, 0] > 100
    assert out[120, 60].tolist() == [40, 90, 60]


def test_strips_meet_without_a_seam() -> None:
    tall = np.random.default_rng(3).integers(0, 256, (1200, 64, 3), dtype=np.uint8)
    near = np.repeat(np.linspace(0, 1, 64, dtype=np.float32)[None], 1200, axis=0)
    whole = layered(tall, near, focus=1.0, radius=12, style="gaussian")
    alone = layered(tall[900:], near[900:], focus=1.0, radius=12, style="gaussian")
    assert np.abs(whole[1000:1100].astype(int) - alone[100:200]).max() <= 2


def test_automatic_focus_goes_to_the_nearest_thing() -> None:
    near = np.zeros((100, 100), np.float32)
    near[:50, :50] = 0.8
    near[0, 0] = 1.0
    assert focus_of(near) == pytest.approx(0.8)
