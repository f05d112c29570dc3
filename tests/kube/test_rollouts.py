"""Rollouts on the real API server, by the real operator under the chart's account, over scripted nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fleet_objects import Fleet
from operator_process import OperatorProcess
from scripted_nodes import ScriptedNode

Join = Callable[..., ScriptedNode]


@pytest.fixture
def fleet(admin_store: Any, api: Any, space: str, until: Any) -> Fleet:
    return Fleet(admin_store, api, space, until)


def test_the_examples_are_promoted_on_two_nodes_with_events_and_columns(
    fleet: Fleet, operator: OperatorProcess, join: Join
) -> None:
    a100, orin = join("ex-a100", "a100"), join("ex-orin", "jetson-orin")
    fleet.apply_examples(wave_soak="0s", gate="Auto")
    fleet.wait_promoted("bokeh", "bokeh-mixed-2", within_s=60)
    assert fleet.condition("bokeh", "Promoted") == ("True", "Promoted")
    assert fleet.status("bokeh").nodes == "2/2"
    assert fleet.serving("ex-a100") == ("bokeh-mixed-2", "Primary", "Mixed")
    assert fleet.serving("ex-orin") == ("bokeh-mixed-2", "Primary", "Mixed")
    reasons = fleet.reasons("bokeh")
    assert reasons.count("Promoted") == 1
    assert len(fleet.said("bokeh")) == len(set(fleet.said("bokeh")))
    assert a100.errors == []
    assert orin.errors == []
    columns = fleet.table("enginerollouts")
    assert columns["PHASE"] == "Promoted"
    assert columns["NODES"] == "2/2"
    assert operator.alive()
    assert operator.stop() == 0
