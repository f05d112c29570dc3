"""onnxruntime on CPU: serves here. FP16 is emulated by casts, so the engine is an ordinary FP32 ONNX file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from blurfleet.errors import EngineError
from blurfleet.reasons import Reason
from blurfleet_forge.backends.base import EngineBytes, EngineJob, ServingPlan
from blurfleet_forge.fold import to_bytes
from blurfleet_forge.precision import emulated_graph


class Session:
    """A loaded network with one input and one output; the FP32 one is the oracle of the others."""

    def __init__(self, data: bytes, *, threads: int = 2) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # be a good neighbour on busy machines
        try:
            self._session = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime's own exception classes are not public
            raise EngineError(Reason.LOAD_FAILED, f"onnxruntime refuses the graph: {error}") from error
        self._input = self._session.get_inputs()[0].name

    def run(self, tensor: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the network's output, float32 [1, 1, H, W], for a float32 [1, 3, H, W] tensor."""
        result: NDArray[np.float32] = self._session.run(None, {self._input: tensor})[0]
        return result


class OnnxRuntimeBackend:
    """Builds the emulated graph; Triton serves it through the python backend and the template beside the recipe."""

    name = "onnxruntime"
    simulated = True

    def __init__(self, template: Path) -> None:
        self._template = template

    def runtime_version(self) -> str:
        """Return for example `onnxruntime-1.32.0`."""
        return f"onnxruntime-{ort.__version__}"

    def compile(self, job: EngineJob) -> EngineBytes:
        """Return the emulated graph of `job` as bytes."""
        graph = emulated_graph(job.graph, job.fp16_nodes, job.halves) if job.fp16_nodes else job.graph
        flags = {"fp16": "emulated by casts" if job.fp16_nodes else "none"}
        return EngineBytes(data=to_bytes(graph), runtime_version=self.runtime_version(), flags=flags)

    def serving(self) -> ServingPlan:
        """Return the python backend with its `model.py` and one thread per engine."""
        return ServingPlan(
            backend="python",
            artifact_name="model.onnx",
            instance_kind="KIND_CPU",
            support_files=(self._template,),
            parameters={"threads": "1"},
        )
