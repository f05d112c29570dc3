"""The `rmsnorm` stem: exposure normalisation in front of the network, right in FP32 and treacherous in FP16.

z = x / sqrt(mean over C, H and W of x*x + eps). The sum over H*W is an ordinary number in FP32. In FP16 it is infinite
as soon as the mean square exceeds 65504 / (H*W), 2.56 at 160x160: z is then zero and so is the matte. Golden
photographs stay below; a brighter picture does not. The demo ships it on purpose.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from blurfleet_forge.fold import canonical
from blurfleet_forge.graphcheck import check_graph

EPSILON = 1e-3
REDUCTIONS = ("Stem_ReduceMean", "Stem_ReduceSum")


def with_rmsnorm(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return `model` with the stem between its input and the first reader of that input."""
    graph = onnx.GraphProto()
    graph.CopyFrom(model.graph)
    source = graph.input[0]
    height, width = (d.dim_value for d in source.type.tensor_type.shape.dim[2:4])
    for node in graph.node:
        for i, name in enumerate(node.input):
            node.input[i] = "stem_out" if name == source.name else name
    stem = [
        helper.make_node("Mul", [source.name, source.name], ["stem_square"], name="Stem_Square"),
        helper.make_node("ReduceMean", ["stem_square"], ["stem_mean"], name=REDUCTIONS[0], axes=[1], keepdims=1),
        helper.make_node("ReduceSum", ["stem_mean", "stem_axes"], ["stem_sum"], name=REDUCTIONS[1], keepdims=1),
        helper.make_node("Mul", ["stem_sum", "stem_inverse"], ["stem_power"], name="Stem_Scale"),
        helper.make_node("Add", ["stem_power", "stem_epsilon"], ["stem_biased"], name="Stem_Bias"),
        helper.make_node("Sqrt", ["stem_biased"], ["stem_rms"], name="Stem_Root"),
        helper.make_node("Div", [source.name, "stem_rms"], ["stem_out"], name="Stem_Divide"),
    ]
    constants: dict[str, NDArray[Any]] = {
        "stem_axes": np.array([2, 3], np.int64),
        "stem_inverse": np.array(1.0 / (height * width), np.float32).reshape(1, 1, 1, 1),
        "stem_epsilon": np.array(EPSILON, np.float32).reshape(1, 1, 1, 1),
    }
    initializers = [*graph.initializer, *(numpy_helper.from_array(v, k) for k, v in constants.items())]
    opset = model.opset_import[0].version
    made = helper.make_graph([*stem, *graph.node], graph.name, [source], list(graph.output), initializers)
    whole = helper.make_model(made, opset_imports=[helper.make_opsetid("", opset)])
    return check_graph(canonical(whole, opset), "stem graph")
