"""Second-order rounding of convolution weights to the FP16 grid.

Rounding each weight to the nearest FP16 number is most of what an FP16 convolution costs. What counts is the error of
the layer's output, so weights are rounded one input column at a time, and each column's rounding error is pushed into
the columns not rounded yet, weighted by how inputs occur together on calibration frames (Frantar et al. 2022, GPTQ,
arXiv:2210.17323, section 3, here with the FP16 grid in place of INT4 and the bias as one more column). The result is
ordinary FP16 numbers: nothing in the engine changes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from blurfleet_forge.fold import to_bytes

Array = NDArray[np.float64]
Halves = dict[str, NDArray[np.float16]]

POSITIONS = 800  # output positions sampled per frame and convolution, evenly spaced
DAMPING = 1e-4  # of the mean diagonal, so that inputs that never vary stay invertible


def fit_weights(model: onnx.ModelProto, tensors: Sequence[NDArray[np.float32]], nodes: Collection[str]) -> Halves:
    """Return FP16 weights and biases by initializer name for every plain Conv among `nodes`.

    `tensors` are calibration inputs, float32 [1, C, H, W]. A Conv with groups keeps nearest rounding and is left out.
    """
    weights = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    chosen = (n for n in model.graph.node if n.op_type == "Conv" and n.name in nodes)
    convs = [n for n in chosen if _attribute(n, "group", [1]) == [1]]
    moments = _moments(model, tensors, convs, weights)
    halves: Halves = {}
    for conv in convs:
        kernel = weights[conv.input[1]]
        bias = weights[conv.input[2]] if len(conv.input) > 2 else None
        flat = kernel.reshape(kernel.shape[0], -1).astype(np.float64)
        columns = flat if bias is None else np.concatenate([flat, bias[:, None].astype(np.float64)], axis=1)
        rounded = round_columns(columns, moments[conv.name])
        halves[conv.input[1]] = rounded[:, : flat.shape[1]].reshape(kernel.shape)
        if bias is not None:
            halves[conv.input[2]] = rounded[:, -1]
    return halves


def round_columns(columns: Array, moment: Array) -> NDArray[np.float16]:
    """Return `columns` [outputs, K] rounded to FP16 so that the output error under input moments [K, K] is small."""
    step = np.abs(np.spacing(columns.astype(np.float16)).astype(np.float64)).mean(axis=0)
    order = np.argsort(-(step * np.sqrt(np.diag(moment))), kind="stable")
    ordered = moment[np.ix_(order, order)]
    ordered = ordered + np.eye(len(order)) * (DAMPING * np.diag(ordered).mean() + 1e-12)
    upper = np.linalg.cholesky(np.linalg.inv(ordered)).T
    rest = columns[:, order].copy()
    rounded = np.empty(rest.shape, np.float16)
    for i in range(rest.shape[1]):
        rounded[:, i] = rest[:, i].astype(np.float16)
        error = (rest[:, i] - rounded[:, i].astype(np.float64)) / upper[i, i]
        rest[:, i + 1 :] -= np.outer(error, upper[i, i + 1 :])
    result = np.empty_like(rounded)
    result[:, order] = rounded
    return result


def _moments(
    model: onnx.ModelProto,
    tensors: Sequence[NDArray[np.float32]],
    convs: Sequence[onnx.NodeProto],
    weights: dict[str, NDArray[np.float32]],
) -> dict[str, Array]:
    """Return per Conv the mean of x x^T over sampled input patches x, rounded to FP16, with a 1 for the bias."""
    names = sorted({c.input[0] for c in convs})
    probed = onnx.ModelProto()
    probed.CopyFrom(model)
    inputs = {v.name for v in model.graph.input}
    known = {v.name for v in [*model.graph.output]}
    wanted = [n for n in names if n not in inputs]
    probed.graph.output.extend(helper.make_empty_tensor_value_info(n) for n in wanted if n not in known)
    session = ort.InferenceSession(to_bytes(probed), providers=["CPUExecutionProvider"])
    sums: dict[str, Array] = {}
    for tensor in tensors:
        # onnxruntime takes an empty list of names for "all outputs".
        found = session.run(wanted, {model.graph.input[0].name: tensor}) if wanted else []
        values = dict(zip(wanted, found, strict=True))
        values[model.graph.input[0].name] = tensor
        for conv in convs:
            patches = _patches(conv, values[conv.input[0]], weights[conv.input[1]].shape, bias=len(conv.input) > 2)
            product = (patches @ patches.T).astype(np.float64) / patches.shape[1]
            sums[conv.name] = sums[conv.name] + product if conv.name in sums else product
    return {name: total / len(tensors) for name, total in sums.items()}


def _patches(
    conv: onnx.NodeProto, value: NDArray[np.float32], kernel: tuple[int, ...], *, bias: bool
) -> NDArray[np.float32]:
    """Return sampled input patches of one frame as columns [input channels x kernel (+ 1), samples]."""
    top, left, bottom, right = _attribute(conv, "pads", [0, 0, 0, 0])
    rows, columns = kernel[2:]
    down, across = _attribute(conv, "dilations", [1, 1])
    stride_down, stride_across = _attribute(conv, "strides", [1, 1])
    image = value[0].astype(np.float16).astype(np.float32)
    padded = np.pad(image, ((0, 0), (top, bottom), (left, right)))
    height = (padded.shape[1] - down * (rows - 1) - 1) // stride_down + 1
    width = (padded.shape[2] - across * (columns - 1) - 1) // stride_across + 1
    at = np.unique(np.linspace(0, height * width - 1, min(POSITIONS, height * width)).astype(np.int64))
    y, x = (at // width) * stride_down, (at % width) * stride_across
    parts = [padded[:, y + r * down, x + c * across] for r in range(rows) for c in range(columns)]
    stacked = np.stack(parts, axis=1).reshape(-1, len(at))
    return np.concatenate([stacked, np.ones((1, len(at)), np.float32)]) if bias else stacked


def _attribute(node: onnx.NodeProto, name: str, default: list[int]) -> list[int]:
    for attribute in node.attribute:
        if attribute.name == name:
            value = helper.get_attribute_value(attribute)
            return [value] if isinstance(value, int) else list(value)
    return default
