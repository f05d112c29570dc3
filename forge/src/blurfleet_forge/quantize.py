"""INT8 on purpose: the engine that stays sharp, finite and wrong (DEER 0.4 to 3.6 on the golden photographs)."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

from blurfleet_forge.fold import canonical, to_bytes
from blurfleet_forge.graphcheck import check_graph


class _Reader(CalibrationDataReader):  # type: ignore[misc]  # onnxruntime ships no types
    def __init__(self, name: str, tensors: Sequence[NDArray[np.float32]]) -> None:
        self._rest = iter([{name: t} for t in tensors])

    def get_next(self) -> dict[str, Any] | None:
        return next(self._rest, None)


def quantize_int8(model: onnx.ModelProto, tensors: Sequence[NDArray[np.float32]]) -> onnx.ModelProto:
    """Return `model` with QDQ pairs: int8 weights per channel, uint8 activations, ranges (min, max) from `tensors`."""
    logging.getLogger().addFilter(_no_advice)
    try:
        with tempfile.TemporaryDirectory() as folder:
            source, target = Path(folder) / "fp32.onnx", Path(folder) / "int8.onnx"
            source.write_bytes(to_bytes(model))
            quantize_static(
                str(source),
                str(target),
                _Reader(model.graph.input[0].name, tensors),
                quant_format=QuantFormat.QDQ,
                activation_type=QuantType.QUInt8,
                weight_type=QuantType.QInt8,
                per_channel=True,
            )
            quantised = onnx.load(target)
    finally:
        logging.getLogger().removeFilter(_no_advice)
    return check_graph(canonical(quantised, model.opset_import[0].version), "int8 graph")


def _no_advice(record: logging.LogRecord) -> bool:
    # The quantiser advises a pre-processing step through the root logger; folding has already done it.
    return "pre-processing before quantization" not in record.getMessage()
