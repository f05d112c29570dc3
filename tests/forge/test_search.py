"""The search keeps only what was measured within the budget, large units first."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from blurfleet_forge.fold import canonical
from blurfleet_forge.search import Trials, Unit, candidates, rank, search, units_of


def network() -> onnx.ModelProto:
    """Return x -> big Conv -> Relu -> small Conv -> y; the small one multiplies by 1000 what FP16 rounded."""
    rng = np.random.default_rng(0)
    big = rng.uniform(0.1, 1.0, (60, 3, 3, 3)).astype(np.float32)
    small = np.full((1, 60, 1, 1), 1000.0 / 60.0, np.float32)
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, c, 8, 8]) for n, c in (("x", 3), ("y", 1))]
    nodes = [
        helper.make_node("Conv", ["x", "b"], ["1"], name="Conv_big", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["1"], ["2"], name="Relu_big"),
        helper.make_node("Conv", ["2", "s"], ["y"], name="Conv_small"),
    ]
    constants = [numpy_helper.from_array(big, "b"), numpy_helper.from_array(small, "s")]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], constants)
    return canonical(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), 17)


def pictures(count: int) -> list[np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    rng = np.random.default_rng(1)
    return [rng.uniform(0, 1, (1, 3, 8, 8)).astype(np.float32) for _ in range(count)]


def test_a_convolution_and_its_relu_are_one_unit_with_the_convolutions_work() -> None:
    assert [(u.nodes, u.macs) for u in units_of(network())] == [
        (("Conv_big", "Relu_big"), 60 * 64 * 27),
        (("Conv_small",), 64 * 60),
    ]


def test_large_units_come_first_and_each_group_by_error_squared_per_work() -> None:
    units = [
        Unit(nodes=("dear",), macs=500, error=0.1),
        Unit(nodes=("cheap",), macs=480, error=0.01),
        Unit(nodes=("tiny",), macs=10, error=0.0),
        Unit(nodes=("broken",), macs=10, error=float("nan")),
    ]
    large, small = rank(units)
    assert [u.nodes[0] for u in large] == ["cheap", "dear"]
    assert [u.nodes[0] for u in small] == ["tiny", "broken"]


def test_units_below_two_percent_of_the_work_are_tried_only_when_asked() -> None:
    assert len(candidates(network(), thorough=True)) == 2
    big_only = [u for u in candidates(network(), thorough=False) if u.macs >= 0.02 * 107520]
    assert candidates(network(), thorough=False) == big_only


@pytest.mark.parametrize(
    ("budget", "found"),
    [
        pytest.param(0.0, set(), id="no budget, no FP16"),
        pytest.param(1e6, {"Conv_big", "Relu_big", "Conv_small"}, id="any error allowed, all FP16"),
    ],
)
def test_the_map_found_is_as_large_as_the_budget_allows(budget: float, found: set[str]) -> None:
    assert search(network(), pictures(4), {}, budget, thorough=True) == found


def test_whatever_the_budget_the_map_found_is_within_it() -> None:
    model, frames = network(), pictures(6)
    trials = Trials(model, frames, {})
    for budget in (0.05, 0.2, 0.5, 1.0, 2.0):
        nodes = search(model, frames, {}, budget, thorough=True)
        assert trials.within(nodes, budget)


def test_the_frame_that_broke_the_budget_is_tried_first_next_time() -> None:
    frames = [np.zeros((1, 3, 8, 8), np.float32) for _ in range(3)]
    frames[2] += np.float32(0.777)
    trials = Trials(network(), frames, {})
    everything = frozenset({"Conv_big", "Relu_big", "Conv_small"})
    assert not trials.within(everything, 1e-3)
    assert trials._frames[0][0].max() == np.float32(0.777)


def test_an_output_that_is_not_a_number_is_never_within_a_budget() -> None:
    frames = [np.full((1, 3, 8, 8), 60000.0, np.float32)]
    trials = Trials(network(), frames, {})  # the big convolution overflows FP16 here
    assert not trials.within(frozenset({"Conv_big", "Relu_big"}), 1e30)
