"""TensorRT-RTX: NVIDIA's compiler on a machine without a GPU, in an environment of its own.

It builds ahead of time for SM 75, 80, 86, 89, 120 and 121 (no 87: an Orin plan is built on an Orin), so it proves on
any machine that the typed graph compiles and that its FP32 islands stay FP32.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import venv
from pathlib import Path

from blurfleet.cache import cache_dir
from blurfleet.errors import EngineError
from blurfleet.reasons import Reason
from blurfleet_forge.backends import typed_compile
from blurfleet_forge.backends.base import EngineBytes, EngineJob, ServingPlan
from blurfleet_forge.fold import to_bytes
from blurfleet_forge.precision import typed_graph

PACKAGE, VERSION = "tensorrt-rtx-cu12", "1.7.1.116"
INSTALL_SECONDS, COMPILE_SECONDS = 600.0, 600.0


class TensorRtRtxBackend:
    """Builds `model.plan` through a subprocess; Triton has no backend for it, so its engines are never served."""

    name = "tensorrt_rtx"
    simulated = False

    def runtime_version(self) -> str:
        """Return `tensorrt-rtx-1.7.1.116`."""
        return f"tensorrt-rtx-{VERSION}"

    def compile(self, job: EngineJob) -> EngineBytes:
        """Build for `job.sm`. Raises EngineError (RuntimeUnavailable, BuildFailed)."""
        python = environment()
        with tempfile.TemporaryDirectory() as folder:
            graph, plan, log = (Path(folder) / n for n in ("graph.onnx", "model.plan", "log"))
            graph.write_bytes(to_bytes(typed_graph(job.graph, job.fp16_nodes, job.halves)))
            profiles = json.dumps([p.model_dump() for p in job.profiles])
            # -P: this folder holds a file of the compiler's name, which must not shadow the compiler.
            command = [str(python), "-P", typed_compile.__file__, "--module", "tensorrt_rtx", "--graph", str(graph)]
            command += ["--plan", str(plan), "--log", str(log), "--sm", str(job.sm), "--profiles", profiles]
            _run(command, COMPILE_SECONDS, Reason.BUILD_FAILED)
            said = "\n".join(json.loads(line) for line in log.read_text(encoding="utf-8").splitlines())
            flags = {"stronglyTyped": "true", "tf32": "false"}
            return EngineBytes(data=plan.read_bytes(), runtime_version=self.runtime_version(), flags=flags, log=said)

    def serving(self) -> ServingPlan:
        """Return the plan's name; no Triton backend reads it."""
        return ServingPlan(platform="tensorrt_rtx", artifact_name="model.plan", instance_kind="KIND_GPU")


def environment() -> Path:
    """Return the Python of the compiler's cached environment, made on first use. Raises EngineError."""
    home = cache_dir() / "envs" / f"{PACKAGE}-{VERSION}"
    python, done = home / "bin" / "python", home / ".complete"
    if not done.exists():
        venv.create(home, with_pip=True, clear=True)
        command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "numpy"]
        _run([*command, f"{PACKAGE}=={VERSION}"], INSTALL_SECONDS, Reason.RUNTIME_UNAVAILABLE)
        done.touch()
    return python


def _run(command: list[str], seconds: float, reason: Reason) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired as error:
        raise EngineError(reason, f"no end within {seconds:.0f} s", where=PACKAGE) from error
    if done.returncode:
        raise EngineError(reason, done.stderr.strip()[-800:] or f"exit code {done.returncode}", where=PACKAGE)
