"""Typed and emulated graphs of one precision map: where casts are, what rounds, and what onnxruntime alone hides."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from blurfleet.errors import EngineError
from blurfleet.reasons import Reason
from blurfleet_forge.fold import canonical, to_bytes
from blurfleet_forge.precision import count_casts, emulated_graph, spread_exact, typed_graph

F32, F16 = TensorProto.FLOAT, TensorProto.FLOAT16


def chain(ops: list[tuple[str, str, list[str]]], weights: dict[str, float] | None = None) -> onnx.ModelProto:
    """Return a graph x -> ... -> y of (name, op, inputs) over float32 [4]; a node writes a tensor of its own name."""
    nodes = [helper.make_node(op, inputs, [name], name=name) for name, op, inputs in ops]
    nodes[-1].output[0] = "y"
    values = [helper.make_tensor_value_info(n, F32, [4]) for n in ("x", "y")]
    constants = [numpy_helper.from_array(np.full(4, v, np.float32), k) for k, v in (weights or {}).items()]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], constants)
    return canonical(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), 17)


def run(model: onnx.ModelProto, x: NDArray[np.float32], level: int = 99) -> NDArray[np.float32]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel(level)
    session = ort.InferenceSession(to_bytes(model), options, providers=["CPUExecutionProvider"])
    result: NDArray[np.float32] = session.run(None, {"x": x})[0]
    return result


def types(model: onnx.ModelProto) -> dict[str, int]:
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, check_type=True).graph
    values = [*inferred.value_info, *inferred.output, *inferred.input]
    return {v.name: v.type.tensor_type.elem_type for v in values}


SQUARE_ROOT = [("square", "Mul", ["x", "x"]), ("root", "Sqrt", ["square"])]
LARGE = np.full(4, 300, np.float32)  # 300 * 300 = 90000 does not fit into FP16


def test_onnxruntime_on_cpu_does_not_round_an_fp16_graph_and_hides_the_overflow() -> None:
    model = chain([*SQUARE_ROOT, ("out", "Identity", ["root"])])
    plain = run(typed_graph(model, ["square", "root"]), LARGE)
    np.testing.assert_array_equal(plain, LARGE)


@pytest.mark.parametrize("level", [0, 99], ids=["nothing optimised", "everything optimised"])
def test_the_emulated_graph_overflows_as_fp16_does(level: int) -> None:
    model = chain([*SQUARE_ROOT, ("out", "Identity", ["root"])])
    assert np.isinf(run(emulated_graph(model, ["square", "root"]), LARGE, level)).all()


@pytest.mark.parametrize("level", [0, 99], ids=["nothing optimised", "everything optimised"])
def test_each_fp16_node_rounds_its_inputs_weights_and_output(level: int) -> None:
    model = chain([("product", "Mul", ["x", "w"]), ("out", "Add", ["product", "x"])], {"w": 1.0 / 3.0})
    x = np.array([0.1, 0.7, 1.3, 1000.1], np.float32)
    halves = x.astype(np.float16).astype(np.float32) * np.float32(np.float16(np.float32(1.0 / 3.0)))
    want = halves.astype(np.float16).astype(np.float32) + x
    got = run(emulated_graph(model, ["product"]), x, level)
    np.testing.assert_array_equal(got, want)
    assert np.abs(got - run(model, x)).max() > 1e-2


def test_adjacent_fp16_nodes_share_one_cast_in_and_one_out() -> None:
    model = chain([("a", "Neg", ["x"]), ("b", "Abs", ["a"]), ("c", "Sqrt", ["b"]), ("d", "Neg", ["c"])])
    typed = typed_graph(model, ["b", "c"])
    assert count_casts(typed) == 2
    kinds = types(typed)
    assert (kinds["a"], kinds["b"], kinds["c"], kinds["y"]) == (F32, F16, F16, F32)


def test_a_tensor_read_by_two_fp16_nodes_is_cast_once() -> None:
    model = chain([("a", "Abs", ["x"]), ("b", "Neg", ["a"]), ("c", "Sqrt", ["a"]), ("d", "Add", ["b", "c"])])
    assert count_casts(typed_graph(model, ["b", "c"])) == 3  # a down once, b and c up
    assert count_casts(typed_graph(model, ["b", "c", "d"])) == 2  # a down, y up


def test_the_whole_graph_in_fp16_keeps_fp32_at_the_door() -> None:
    typed = typed_graph(chain(SQUARE_ROOT), ["square", "root"])
    kinds = types(typed)
    assert (kinds["x"], kinds["y"]) == (F32, F32)
    assert count_casts(typed) == 2


def test_a_weight_beyond_fp16_is_refused_never_clamped() -> None:
    model = chain([("a", "Mul", ["x", "w"])], {"w": 70000.0})
    with pytest.raises(EngineError) as refused:
        emulated_graph(model, ["a"])
    assert refused.value.reason is Reason.WEIGHT_OUT_OF_RANGE
    assert "4 of 4" in refused.value.message


def test_a_map_for_another_graph_is_refused() -> None:
    with pytest.raises(EngineError, match="Conv_810") as refused:
        typed_graph(chain(SQUARE_ROOT), ["Conv_810"])
    assert refused.value.reason is Reason.MAP_STALE


def test_moving_values_that_are_fp16_already_joins_the_map_and_costs_nothing() -> None:
    model = chain([("a", "Sqrt", ["x"]), ("b", "Relu", ["a"]), ("c", "Neg", ["b"])])
    spread = spread_exact(model, ["a"])
    assert spread == {"a", "b"}
    x = np.array([0.1, 0.2, 0.3, 7.7], np.float32)
    np.testing.assert_array_equal(run(emulated_graph(model, spread), x), run(emulated_graph(model, ["a"]), x))


def test_equal_maps_give_equal_bytes() -> None:
    model = chain(SQUARE_ROOT)
    assert to_bytes(emulated_graph(model, ["root", "square"])) == to_bytes(emulated_graph(model, ["square", "root"]))
