"""TensorRT 10.3 to 11.x: what GPU nodes run. A plan is built on the GPU it is for, from the same typed graph."""

from __future__ import annotations

import ctypes
import importlib
from types import ModuleType

from blurfleet.errors import EngineError
from blurfleet.reasons import Reason
from blurfleet_forge.backends.base import EngineBytes, EngineJob, ServingPlan
from blurfleet_forge.backends.typed_compile import CompileError, compile_plan
from blurfleet_forge.fold import to_bytes
from blurfleet_forge.precision import typed_graph

OLDEST = (10, 3)


class TensorRtBackend:
    """Builds `model.plan` with the installed `tensorrt`; needs a CUDA device."""

    name = "tensorrt"
    simulated = False

    def runtime_version(self) -> str:
        """Return for example `tensorrt-10.16.1.11`. Raises EngineError (RuntimeUnavailable)."""
        return f"tensorrt-{_bindings().__version__}"

    def compile(self, job: EngineJob) -> EngineBytes:
        """Build a plan for this machine's GPU. Raises EngineError (RuntimeUnavailable, BuildFailed)."""
        require_cuda()
        trt = _bindings()
        log: list[str] = []
        graph = to_bytes(typed_graph(job.graph, job.fp16_nodes, job.halves))
        profiles = [p.model_dump() for p in job.profiles]
        try:
            # The plan is for the device at hand; sm is checked against it by the node, not chosen here.
            plan = compile_plan(trt, graph, profiles=profiles, sm=0, log=log)
        except CompileError as error:
            raise EngineError(Reason.BUILD_FAILED, str(error), where="tensorrt") from error
        flags = {"stronglyTyped": "true", "tf32": "false"}
        return EngineBytes(data=plan, runtime_version=self.runtime_version(), flags=flags, log="\n".join(log))

    def serving(self) -> ServingPlan:
        """Return Triton's TensorRT platform."""
        return ServingPlan(platform="tensorrt_plan", artifact_name="model.plan", instance_kind="KIND_GPU")


def require_cuda() -> None:
    """Raise EngineError unless the CUDA driver sees a device: TensorRT crashes, rather than fails, without one."""
    count = ctypes.c_int(0)
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        seen = driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0
    except OSError:
        seen = False
    if not seen:
        fix = "build on the node the engine is for"
        raise EngineError(Reason.RUNTIME_UNAVAILABLE, "no CUDA device here", where="tensorrt", fix=fix)


def _bindings() -> ModuleType:
    try:
        module = importlib.import_module("tensorrt")
    except ImportError as error:
        fix = "install TensorRT 10.3 or newer"
        raise EngineError(Reason.RUNTIME_UNAVAILABLE, str(error), where="tensorrt", fix=fix) from error
    version = tuple(int(p) for p in str(module.__version__).split(".")[:2])
    if version < OLDEST:
        message = f"TensorRT {module.__version__} is older than 10.3"
        raise EngineError(Reason.RUNTIME_UNAVAILABLE, message, where="tensorrt", fix="install 10.3 or newer")
    return module
