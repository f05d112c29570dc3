"""Which backend a recipe's `runtime` names. Each is loaded only when a recipe asks for it."""

from __future__ import annotations

from pathlib import Path

from blurfleet.errors import InvalidInput
from blurfleet.reasons import Reason
from blurfleet_forge.backends.base import Backend

NAMES = ("onnxruntime", "tensorrt", "tensorrt_rtx")


def backend_for(runtime: str, templates: Path) -> Backend:
    """Return the backend named `runtime`; `templates` is the folder of serving templates. Raises InvalidInput."""
    if runtime == "onnxruntime":
        from blurfleet_forge.backends.onnxruntime import OnnxRuntimeBackend

        return OnnxRuntimeBackend(templates / "onnxruntime" / "model.py")
    if runtime == "tensorrt":
        from blurfleet_forge.backends.tensorrt import TensorRtBackend

        return TensorRtBackend()
    if runtime == "tensorrt_rtx":
        from blurfleet_forge.backends.tensorrt_rtx import TensorRtRtxBackend

        return TensorRtRtxBackend()
    raise InvalidInput(Reason.RUNTIME_UNAVAILABLE, f"no backend {runtime!r}", fix=f"one of {', '.join(NAMES)}")
