"""Triton python backend: runs the `model.onnx` beside this file with onnxruntime on CPU, FP32 in and out.

Config parameter `threads` (default 1) sets the threads of one inference. Nothing is written into the model folder: a
file newer than the load would make Triton load this engine again in the middle of a swap.
"""

import json
import sys
from pathlib import Path

sys.dont_write_bytecode = True

import numpy as np  # noqa: E402
import onnxruntime as ort  # noqa: E402
import triton_python_backend_utils as pb_utils  # noqa: E402


class TritonPythonModel:
    """One loaded engine."""

    def initialize(self, args):
        """Load the graph; its casts emulate FP16, and onnxruntime keeps them at every optimisation level."""
        config = json.loads(args["model_config"])
        threads = int(config.get("parameters", {}).get("threads", {}).get("string_value", "1"))
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        path = Path(__file__).resolve().parent / "model.onnx"
        self._session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self._input = self._session.get_inputs()[0].name
        self._output = self._session.get_outputs()[0].name

    def execute(self, requests):
        """Answer each request on its own, so that one bad tensor fails one request."""
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        tensor = pb_utils.get_input_tensor_by_name(request, self._input).as_numpy()
        try:
            (matte,) = self._session.run([self._output], {self._input: np.ascontiguousarray(tensor, np.float32)})
        except Exception as error:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(f"inference failed: {error}"))
        answer = pb_utils.Tensor(self._output, np.ascontiguousarray(matte, np.float32))
        return pb_utils.InferenceResponse(output_tensors=[answer])

    def finalize(self):
        """Let the session go."""
        self._session = None
