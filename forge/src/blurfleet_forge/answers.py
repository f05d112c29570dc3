"""Reference answers by OpenCV's DNN: a runtime that serves nowhere, so no engine is judged by its own kind.

It agrees with onnxruntime on FP32 to about 0.0001 on the matte.
"""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np
import onnx
from numpy.typing import NDArray

from blurfleet.errors import EngineError
from blurfleet.reasons import Reason
from blurfleet_forge.fold import to_bytes

Tensor = NDArray[np.float32]


def reference_answers(model: onnx.ModelProto, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the FP32 output of `model` for every tensor, float32 [1, 1, H, W]. Raises EngineError (BuildFailed)."""
    try:
        net = cv2.dnn.readNetFromONNX(np.frombuffer(to_bytes(model), np.uint8))
        answers = []
        for tensor in tensors:
            net.setInput(tensor)
            answers.append(np.array(net.forward(), np.float32, copy=True))
    except cv2.error as error:
        raise EngineError(Reason.BUILD_FAILED, f"OpenCV cannot run the graph: {error.err}") from error
    return answers
