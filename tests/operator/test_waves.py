"""Which nodes a wave holds."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blurfleet.api.nodeengine import NodeEngineSpec, NodeEngineStatus
from blurfleet.api.rollout import Selector, Wave
from blurfleet_operator.decide.choice import selects
from blurfleet_operator.decide.observation import NodeView
from blurfleet_operator.decide.waves import covered, reached, strangers


def nodes(**counts: int) -> list[NodeView]:
    classes = {"a": "a100", "o": "jetson-orin"}
    return [
        NodeView(
            name=f"{k}{i}", spec=NodeEngineSpec(device_class=classes[k]), status=NodeEngineStatus(), labels={"zone": k}
        )
        for k, count in counts.items()
        for i in range(count)
    ]


@pytest.mark.parametrize(
    ("waves", "index", "expected"),
    [
        pytest.param([Wave(name="w", percent=1)], 0, ("a0", "o0"), id="one percent is one node of each class"),
        pytest.param(
            [Wave(name="w", percent=50)], 0, ("a0", "o0", "o1"), id="half of three is two, half of one is one"
        ),
        pytest.param([Wave(name="w", percent=100)], 0, ("a0", "o0", "o1", "o2"), id="a hundred is all"),
        pytest.param([Wave(name="w", nodes=("o2", "gone"))], 0, ("o2",), id="named nodes, those that exist"),
        pytest.param(
            [Wave(name="w", nodes=("o2",)), Wave(name="v", percent=34)],
            1,
            ("a0", "o0", "o2"),
            id="a share counts the nodes named before",
        ),
        pytest.param(
            [Wave(name="w", nodes=("o1", "o2")), Wave(name="v", percent=1)],
            1,
            ("a0", "o1", "o2"),
            id="a smaller share takes no node back",
        ),
    ],
)
def test_a_wave_holds(waves: list[Wave], index: int, expected: tuple[str, ...]) -> None:
    assert reached(waves, index, nodes(a=1, o=3)) == expected


@settings(deadline=None)
@given(a=st.integers(0, 7), o=st.integers(0, 7), shares=st.lists(st.integers(1, 100), min_size=1, max_size=5))
def test_waves_only_grow_and_a_last_of_a_hundred_percent_is_everybody(a: int, o: int, shares: list[int]) -> None:
    waves = [Wave(name=f"w{i}", percent=p) for i, p in enumerate([*sorted(shares), 100])]
    members = nodes(a=a, o=o)
    sets = [set(reached(waves, i, members)) for i in range(len(waves))]
    assert all(x <= y for x, y in itertools.pairwise(sets))
    assert set(covered(waves, members)) == {n.name for n in members}


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        pytest.param(Selector(), ["a0", "o0"], id="empty selects all"),
        pytest.param(Selector(classes=("a100",)), ["a0"], id="by class"),
        pytest.param(Selector(match_labels={"zone": "o"}), ["o0"], id="by label"),
        pytest.param(Selector(nodes=("a0", "x")), ["a0"], id="by name"),
        pytest.param(Selector(classes=("a100",), nodes=("o0",)), [], id="all conditions must hold"),
    ],
)
def test_a_selector_means(selector: Selector, expected: list[str]) -> None:
    assert [n.name for n in nodes(a=1, o=1) if selects(selector, n)] == expected


def test_strangers_are_the_names_of_the_waves_reached_that_are_not_selected() -> None:
    waves = [Wave(name="u", nodes=("a0", "o9")), Wave(name="v", percent=50), Wave(name="w", nodes=("a7", "o0"))]
    assert strangers(waves, 0, nodes(a=1, o=1)) == ("o9",)
    assert strangers(waves, 1, nodes(a=1, o=1)) == ("o9",)
    assert strangers(waves, 2, nodes(a=1, o=1)) == ("a7", "o9")
    assert strangers(waves, 2, nodes(a=8, o=10)) == ()
