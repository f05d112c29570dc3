"""One precision map, two graphs: the typed graph for GPU compilers and the emulated graph for onnxruntime on CPU.

Both follow the same rule. An FP16 node reads FP16 inputs and FP16 weights and writes FP16; a tensor that crosses from
one precision to the other is cast once. The typed graph holds real FP16 tensors. The emulated graph stays FP32 and
rounds every such tensor by a Cast to FP16 and back, because onnxruntime on CPU computes FP16 graphs in FP32 without
rounding. Sums inside a node are FP32 in both, as in tensor cores.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from blurfleet.errors import EngineError
from blurfleet.reasons import Reason
from blurfleet_forge.fold import canonical
from blurfleet_forge.graphcheck import check_graph

Halves = Mapping[str, NDArray[np.float16]]
_NEAREST: Halves = MappingProxyType({})

# Inputs that the standard keeps out of the data type: Resize's roi, scales and sizes; a reduction's axes.
_PARAMETER_INPUTS = {"Resize": {1, 2, 3}, "ReduceSum": {1}, "ReduceMean": {1}}
# These only move or pick values: on FP16 inputs their FP16 result is exact, so they cost no error.
_EXACT_OPS = frozenset({"Concat", "MaxPool", "Relu"})


def typed_graph(model: onnx.ModelProto, fp16_nodes: Iterable[str], halves: Halves = _NEAREST) -> onnx.ModelProto:
    """Return the strongly typed graph: FP16 inside `fp16_nodes`, explicit casts at every border, FP32 in and out.

    `halves` gives FP16 weights by initializer name; weights it lacks are rounded to nearest.
    """
    return _Retyper(model, frozenset(fp16_nodes), halves, emulate=False).build()


def emulated_graph(model: onnx.ModelProto, fp16_nodes: Iterable[str], halves: Halves = _NEAREST) -> onnx.ModelProto:
    """Return an FP32 graph that rounds where the typed graph would, for a runtime that has no FP16 arithmetic."""
    return _Retyper(model, frozenset(fp16_nodes), halves, emulate=True).build()


def spread_exact(model: onnx.ModelProto, fp16_nodes: Iterable[str]) -> frozenset[str]:
    """Return `fp16_nodes` plus every value-moving node all of whose inputs they produce: fewer casts, no error."""
    chosen = set(fp16_nodes)
    halves: set[str] = set()
    for node in model.graph.node:
        if node.name not in chosen and node.op_type in _EXACT_OPS and halves.issuperset(node.input):
            chosen.add(node.name)
        if node.name in chosen:
            halves.update(node.output)
    return frozenset(chosen)


def count_casts(model: onnx.ModelProto) -> int:
    """Return the number of Cast nodes."""
    return sum(node.op_type == "Cast" for node in model.graph.node)


def round_fp16(values: NDArray[np.float32], name: str) -> NDArray[np.float16]:
    """Return `values` rounded to FP16. Raises EngineError (WeightOutOfRange) rather than clamp or make an infinity."""
    with np.errstate(over="ignore"):
        halves = values.astype(np.float16)
    lost = int(np.count_nonzero(~np.isfinite(halves)))
    if lost:
        message = f"{lost} of {values.size} values do not fit into FP16 (largest {np.abs(values).max():g})"
        raise EngineError(Reason.WEIGHT_OUT_OF_RANGE, message, where=name, fix="keep the node in FP32")
    return halves


class _Retyper:
    """Walks the nodes in order and rewrites the graph for one map."""

    def __init__(self, model: onnx.ModelProto, fp16: frozenset[str], halves: Halves, *, emulate: bool) -> None:
        names = {n.name for n in model.graph.node}
        strangers = sorted(fp16 - names)
        if strangers:
            message = f"the map names nodes the graph lacks: {', '.join(strangers[:5])}"
            raise EngineError(Reason.MAP_STALE, message, fix="run blurfleet forge search again")
        self._model = model
        self._fp16 = fp16
        self._emulate = emulate
        self._given = halves
        self._weights = {t.name: t for t in model.graph.initializer}
        self._outputs = {v.name for v in model.graph.output}
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: dict[str, onnx.TensorProto] = {}
        self._half: dict[str, str] = {}  # tensor -> its rounded or FP16 form, for readers in FP16
        self._full: dict[str, str] = {}  # tensor -> its FP32 form, for readers in FP32

    def build(self) -> onnx.ModelProto:
        for node in self._model.graph.node:
            if node.name in self._fp16:
                self._half_node(node)
            else:
                self._full_node(node)
        source = self._model.graph
        initializers = list(self._initializers.values())
        graph = helper.make_graph(self._nodes, source.name, list(source.input), list(source.output), initializers)
        opset = self._model.opset_import[0].version
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
        return check_graph(canonical(made, opset), "typed graph")

    def _half_node(self, node: onnx.NodeProto) -> None:
        made = onnx.NodeProto()
        made.CopyFrom(node)
        parameters = _PARAMETER_INPUTS.get(node.op_type, set())
        for i, name in enumerate(node.input):
            made.input[i] = self._as_is(name) if i in parameters or not name else self._as_half(name)
        self._nodes.append(made)
        for i, name in enumerate(node.output):
            made.output[i] = self._write_half(name)

    def _full_node(self, node: onnx.NodeProto) -> None:
        made = onnx.NodeProto()
        made.CopyFrom(node)
        for i, name in enumerate(node.input):
            made.input[i] = self._as_full(name) if name else name
        self._nodes.append(made)

    def _write_half(self, name: str) -> str:
        """Register an FP16 node's output and return the name it writes under."""
        if self._emulate:
            raw = f"{name}__raw"
            self._cast(raw, f"{name}__half", TensorProto.FLOAT16)
            self._cast(f"{name}__half", name, TensorProto.FLOAT)
            self._half[name] = name
            return raw
        written = f"{name}__half" if name in self._outputs else name
        self._half[name] = written
        if name in self._outputs:
            self._cast(written, name, TensorProto.FLOAT)
            self._full[name] = name
        return written

    def _as_half(self, name: str) -> str:
        if name in self._half:
            return self._half[name]
        if name in self._weights:
            self._half[name] = self._half_weight(name)
        elif self._emulate:
            self._cast(name, f"{name}__half", TensorProto.FLOAT16)
            self._half[name] = self._cast(f"{name}__half", f"{name}__rounded", TensorProto.FLOAT)
        else:
            self._half[name] = self._cast(name, f"{name}__half", TensorProto.FLOAT16)
        return self._half[name]

    def _as_full(self, name: str) -> str:
        if name in self._weights or self._emulate or name not in self._half:
            return self._as_is(name)
        produced_half = self._half[name] == name
        if produced_half and name not in self._full:
            self._full[name] = self._cast(name, f"{name}__full", TensorProto.FLOAT)
        return self._full.get(name, name)

    def _as_is(self, name: str) -> str:
        if name in self._weights:
            self._initializers[name] = self._weights[name]
        return name

    def _half_weight(self, name: str) -> str:
        weight = self._weights[name]
        values = numpy_helper.to_array(weight)
        if values.dtype != np.float32:
            return self._as_is(name)
        halves = self._given[name] if name in self._given else round_fp16(values, name)
        rounded = f"{name}__half"
        stored = halves.astype(np.float32) if self._emulate else halves
        self._initializers[rounded] = numpy_helper.from_array(stored, rounded)
        return rounded

    def _cast(self, source: str, target: str, kind: int) -> str:
        self._nodes.append(helper.make_node("Cast", [source], [target], name=f"Cast_{target}", to=kind))
        return target
