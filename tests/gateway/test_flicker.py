"""Flicker as a person would see it: the real network on a photograph that stands still before a noisy camera."""

from pathlib import Path

import cv2
import numpy as np
import pytest
from skimage import data

from blurfleet.api.contract import contract_at
from blurfleet.pixels import Tensor, decode, to_tensor
from blurfleet_forge.recipe import load_recipe
from blurfleet_forge.workpiece import Workpiece
from blurfleet_preprocess.steadying import Past, Sight, steadied

SPEC = contract_at(160)
FRAMES = 16


def shot(rng: np.random.Generator) -> Tensor:
    """One frame of a camera: noise of 4 levels, exposure that wavers by 1 %, JPEG at 85."""
    noisy = data.astronaut() * (1 + rng.normal(0, 0.01)) + rng.normal(0, 4, (512, 512, 3))
    bgr = cv2.cvtColor(np.clip(noisy, 0, 255).astype(np.uint8), cv2.COLOR_RGB2BGR)
    jpeg = bytes(cv2.imencode(".jpg", bgr, [cv2.IMWRITE_JPEG_QUALITY, 85])[1])
    return to_tensor(decode(jpeg, SPEC).rgb, SPEC)


def test_a_still_photograph_flickers_a_quarter_as_much_at_07_and_stays_the_same_matte() -> None:
    rng = np.random.default_rng(0)
    network = Workpiece(load_recipe(Path(__file__).parents[2] / "model_repo/bokeh-u2netp/recipe.yaml")).oracle()
    sights = [
        Sight(matte=network.run(t)[0, 0], tensor=t, spec=SPEC, made_by="u2netp") for t in map(shot, [rng] * FRAMES)
    ]
    flickers = {}
    for strength in (0.0, 0.7):
        past: Past | None = None
        found = []
        for sight in sights:
            past, steady = steadied(past, sight, strength)
            assert not steady.cut
            found.append(steady)
        flickers[strength] = float(np.mean([steady.flicker for steady in found[1:]]))
        assert np.mean([steady.engine_flicker for steady in found[1:]]) == pytest.approx(0.0038, rel=0.15)
        assert float(np.abs(found[-1].matte - sights[-1].matte).mean()) < 0.004
    assert flickers[0.0] == pytest.approx(0.0038, rel=0.15)
    assert flickers[0.7] < 0.27 * flickers[0.0]
