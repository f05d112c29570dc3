"""The calibration profile that a set carries: what live inputs are held against."""

from typing import Any

import numpy as np
import pytest

from blurfleet.quality.drift import InputDrift, baseline_of, features_of
from blurfleet_forge import frames
from blurfleet_forge.recipe import Recipe
from blurfleet_forge.workpiece import Workpiece


@pytest.fixture(scope="module")
def small(recipe: Recipe) -> Workpiece:
    """The recipe at 64 pixels: what pictures look like on the whole does not depend on size."""
    return Workpiece(recipe.model_copy(update={"size": 64}))


def test_the_profile_keeps_brightness_and_contrast_of_every_calibration_frame(small: Workpiece) -> None:
    profile = small.profile()
    baseline = baseline_of(profile.statistics)
    assert baseline is not None
    wanted: Any = np.sort([features_of(t)[0] for t in small.calibration])
    np.testing.assert_allclose(baseline[0], wanted, atol=1e-4)
    assert all(len(text) <= 1024 for text in profile.statistics.values())
    assert profile.statistics["channel0.mean"]


def test_held_out_frames_are_as_the_calibration_and_half_as_bright_ones_are_not(small: Workpiece) -> None:
    tensors = frames.tensors(frames.held_out(small.recipe.frames), small.contract)
    sound = dark = InputDrift(baseline=baseline_of(small.profile().statistics))
    mean, std = (np.array(v, np.float32).reshape(1, 3, 1, 1) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    for tensor in [*tensors, *tensors]:
        sound = sound.after("cam", features_of(tensor), 0.0)
        dark = dark.after("cam", features_of(((tensor * std + mean) * np.float32(0.4) - mean) / std), 0.0)
    assert sound.verdict.drifted is False
    assert dark.verdict.drifted is True
