"""Multiply-accumulates per node: what a precision map is measured in. Node counts mislead by a factor of twenty."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod

import onnx


def shapes_of(model: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    """Return the static shape of every tensor in the graph."""
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True).graph
    shapes = {t.name: tuple(t.dims) for t in inferred.initializer}
    for value in [*inferred.input, *inferred.output, *inferred.value_info]:
        shapes[value.name] = tuple(d.dim_value for d in value.type.tensor_type.shape.dim)
    return shapes


def count_macs(model: onnx.ModelProto) -> dict[str, int]:
    """Return the multiply-accumulates of every Conv, MatMul and Gemm node by name; other nodes count nothing.

    A Conv makes output elements x kernel elements x input channels per group; bias and padding are not subtracted.
    """
    shapes = shapes_of(model)
    counts: dict[str, int] = {}
    for node in model.graph.node:
        if node.op_type == "Conv":
            counts[node.name] = prod(shapes[node.output[0]]) * prod(shapes[node.input[1]][1:])
        elif node.op_type in ("MatMul", "Gemm"):
            counts[node.name] = prod(shapes[node.output[0]]) * shapes[node.input[0]][-1]
    return counts


def mac_share(counts: Mapping[str, int], nodes: Iterable[str]) -> float:
    """Return the share of all multiply-accumulates that `nodes` hold, 0 to 1."""
    total = sum(counts.values())
    return sum(counts.get(n, 0) for n in set(nodes)) / total if total else 0.0
