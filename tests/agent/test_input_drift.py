"""Input drift on a node: a warning and a metric from sampled frames, and never a swap."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.agent.test_guarding import SCENE, A, OneNode, watch
from tests.agent.test_status import TOLD, said, view

from blurfleet.api.engineset import InputProfile
from blurfleet.quality.drift import DriftVerdict, features_of, statistics_of

CHECKED = np.indices((32, 32)).sum(axis=0) % 2 * 2.0 - 1.0


def scene(level: float, contrast: float = 1.0) -> Any:
    """A tensor of this brightness and contrast in every channel."""
    return np.broadcast_to(level + contrast * CHECKED, (1, 3, 32, 32)).astype(np.float32)


LEVELS = np.linspace(-1.0, 1.0, 40)
PROFILE = InputProfile(statistics=statistics_of(features_of(scene(v, 1 + 0.1 * v)) for v in LEVELS))


@pytest.fixture
def node(tmp_path: Path) -> OneNode:
    return OneNode(tmp_path, watch(profile=PROFILE))


def show(node: OneNode, lift: float) -> DriftVerdict | None:
    """Show the node forty frames, two seconds apart, this much brighter than calibration."""
    for level in np.random.default_rng(7).permutation(LEVELS):
        node.now += 2.0
        node.frame(SCENE, tensor=scene(level + lift, 1 + 0.1 * level))
    node.guarding.tick(node.now)
    return node.told[-1].inputs


def test_pictures_as_in_calibration_are_within_limits(node: OneNode) -> None:
    found = show(node, 0.0)
    assert found is not None
    assert found.drifted is False
    assert node.metric("blurfleet_input_drift") == 0.0
    assert (node.metric("blurfleet_input_drift_p") or 0.0) > 0.5


def test_brighter_pictures_warn_with_a_metric_and_swap_nothing(node: OneNode) -> None:
    show(node, 0.0)
    found = show(node, 1.5)
    assert found is not None
    assert found.drifted is True
    assert "brightness" in found.message
    assert node.metric("blurfleet_input_drift") == 1.0
    assert (node.metric("blurfleet_input_drift_p") or 1.0) < 0.01
    assert node.serving() == (A.engine, 1)
    assert all(told.trip is None and told.act == "None" for told in node.told)


def test_another_profile_starts_afresh_and_none_compares_nothing(node: OneNode) -> None:
    show(node, 1.5)
    assert node.metric("blurfleet_input_drift") == 1.0
    brighter = statistics_of(features_of(scene(v + 1.5, 1 + 0.1 * v)) for v in LEVELS)
    node.follow(profile=InputProfile(statistics=brighter))
    assert node.metric("blurfleet_input_drift") is None
    found = show(node, 1.5)
    assert found is not None
    assert found.drifted is False
    node.follow(profile=InputProfile())
    assert show(node, 1.5) is None
    assert node.metric("blurfleet_input_drift") is None


def test_the_condition_says_what_the_guard_saw() -> None:
    seen = view()
    told = {
        None: ("Unknown", "NoData"),
        DriftVerdict(drifted=None): ("Unknown", "InsufficientSamples"),
        DriftVerdict(drifted=True, p=0.001, message="darker"): ("True", "InputDrift"),
        DriftVerdict(drifted=False, p=0.4, message="as ever"): ("False", "WithinLimits"),
    }
    for inputs, wanted in told.items():
        assert said("InputDrift", seen, replace(TOLD, inputs=inputs)) == wanted
    assert said("InputDrift", seen, None) == ("Unknown", "NoData")
    assert said("ActiveHealthy", seen, replace(TOLD, inputs=DriftVerdict(drifted=True, p=0.0))) == (
        "True",
        "WithinLimits",
    )
