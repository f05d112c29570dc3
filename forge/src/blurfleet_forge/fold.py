"""Folding: one output, one fixed size, constants computed once, names of our own; the result stays standard ONNX."""

from __future__ import annotations

import tempfile
from pathlib import Path

import onnx
import onnx.utils
import onnx.version_converter
import onnxruntime as ort

from blurfleet.errors import InvalidInput
from blurfleet.reasons import Reason
from blurfleet_forge.graphcheck import check_graph
from blurfleet_forge.recipe import Network


def fold(graph: onnx.ModelProto, network: Network, size: int) -> onnx.ModelProto:
    """Return `graph` as `engine_input` float32 [1,3,size,size] -> `engine_output` float32 [1,1,size,size].

    onnxruntime's basic (hardware-free) optimisation folds the shape arithmetic; node names of the source survive.
    Raises InvalidInput where a named tensor is missing or the result fails the full check.
    """
    _require_names(graph, network)
    converted = onnx.version_converter.convert_version(graph, network.opset)
    _set_size(converted, size)
    del converted.graph.value_info[:]
    optimised = _optimise(converted)
    only = onnx.utils.Extractor(optimised).extract_model([network.input], [network.output])
    _rename(only.graph, {network.input: network.engine_input, network.output: network.engine_output})
    return check_graph(canonical(only, network.opset), "folded graph")


def canonical(model: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    """Return the graph in a fixed order and with nothing of its history: equal graphs become equal bytes."""
    graph = model.graph
    for node in graph.node:
        attributes = sorted(node.attribute, key=lambda a: a.name)
        del node.attribute[:]
        node.attribute.extend(attributes)
        node.ClearField("doc_string")
    initializers = sorted(graph.initializer, key=lambda t: t.name)
    del graph.value_info[:]
    made = onnx.helper.make_graph(list(graph.node), "blurfleet", list(graph.input), list(graph.output), initializers)
    return onnx.helper.make_model(
        made, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=8, producer_name="blurfleet"
    )


def to_bytes(model: onnx.ModelProto) -> bytes:
    """Return the graph's bytes; equal graphs give equal bytes."""
    data: bytes = model.SerializeToString(deterministic=True)
    return data


def _require_names(graph: onnx.ModelProto, network: Network) -> None:
    for kind, name, values in (
        ("input", network.input, graph.graph.input),
        ("output", network.output, graph.graph.output),
    ):
        names = [v.name for v in values]
        if name not in names:
            raise InvalidInput(Reason.NOT_FOUND, f"the graph has no {kind} {name!r}", fix=f"one of {', '.join(names)}")


def _set_size(model: onnx.ModelProto, size: int) -> None:
    for values, channels in ((model.graph.input, 3), (model.graph.output, 1)):
        for value in values:
            shape = value.type.tensor_type.shape
            del shape.dim[:]
            for length in (1, channels, size, size):
                shape.dim.add().dim_value = length


def _optimise(model: onnx.ModelProto) -> onnx.ModelProto:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.log_severity_level = 3
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "folded.onnx"
        options.optimized_model_filepath = str(path)
        ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return onnx.load(path)


def _rename(graph: onnx.GraphProto, names: dict[str, str]) -> None:
    for node in graph.node:
        for words in (node.input, node.output):
            for i, word in enumerate(words):
                words[i] = names.get(word, word)
    for value in [*graph.input, *graph.output]:
        value.name = names.get(value.name, value.name)
