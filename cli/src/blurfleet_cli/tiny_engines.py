"""Engines that cost nothing to load and to run: what the swap bench and its tests serve in place of networks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from blurfleet.api.record import BuildRecord, Serving, Source, Target, Tensor
from blurfleet.identity import digest12, digest_bytes, engine_name
from blurfleet_agent.config_text import engine_config
from blurfleet_agent.repository import ModelRepository

ARTIFACT = "scale.txt"
MODEL_PY = '''"""Scales the first channel: matte = image[:, :1] * scale."""

import os

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        folder = os.path.join(args["model_repository"], args["model_version"])
        with open(os.path.join(folder, "scale.txt")) as handle:
            self.scale = np.float32(float(handle.read()))

    def execute(self, requests):
        answers = []
        for request in requests:
            image = pb_utils.get_input_tensor_by_name(request, "image").as_numpy()
            matte = np.ascontiguousarray(image[:, :1] * self.scale)
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("matte", matte)]))
        return answers
'''


@dataclass(frozen=True, kw_only=True)
class TinyEngine:
    """One published tiny engine; the matte of an all-ones image is `scale` everywhere: an answer names its engine."""

    name: str
    digest: str
    scale: float
    record: BuildRecord


def publish_tiny_engine(
    repository: ModelRepository, sources: Path, *, alias: str, scale: float, size: int
) -> TinyEngine:
    """Write and publish an engine of `size` x `size` pixels. `sources` is a folder for its files. Raises OSError."""
    text = f"{scale:.6f}\n"
    digest = digest_bytes(text.encode())
    record = tiny_record(digest, size=size)
    name = engine_name(alias, digest)
    artifact = sources / f"{digest12(digest)}.txt"
    artifact.write_text(text)
    model = sources / "model.py"
    model.write_text(MODEL_PY)
    repository.publish_engine(name, engine_config(record, name), {ARTIFACT: artifact, "model.py": model})
    return TinyEngine(name=name, digest=digest, scale=scale, record=record)


def tiny_record(digest: str, *, size: int) -> BuildRecord:
    """Return a build record for a tiny engine: one image float32 [1,3,size,size] in, one matte [1,1,size,size] out."""
    return BuildRecord(
        model="tiny",
        model_id=digest12(digest),
        variant="tiny-fp32",
        source=Source(package="blurfleet", file=ARTIFACT, digest=digest, licence="Apache-2.0"),
        artifact_digest=digest,
        artifact_bytes=9,
        precision="FP32",
        runtime="python",
        runtime_version="0",
        target=Target(device_class="cpu", runtime_version="0"),
        inputs=(Tensor(name="image", shape=(1, 3, size, size)),),
        outputs=(Tensor(name="matte", shape=(1, 1, size, size)),),
        serving=Serving(backend="python", artifact_name=ARTIFACT, instance_kind="KIND_CPU"),
        simulated=True,
        built_at="1970-01-01T00:00:00Z",
        build_seconds=0.0,
    )
