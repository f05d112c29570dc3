"""The build record: what an engine is made of, how it was built, what errors it reached, and how it is to be served.

It is the only thing the agent reads about an engine: no runtime is named in the agent's code.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from blurfleet.api.base import Digest, Model, Precision

RECORD_SCHEMA = 1
PICTURE_RANK = 4


class Tensor(Model):
    """One input or output: name, NumPy dtype name, shape with -1 for a free axis."""

    name: str = Field(max_length=256)
    dtype: Literal["float32", "float16"] = "float32"
    shape: tuple[int, ...] = Field(max_length=8)


class Target(Model):
    """What a variant was built for. `runtime_version` is exact; `sm` is the compute capability, 0 on CPU."""

    device_class: str = Field(alias="class")
    sm: int = 0
    platform: str = "linux-x86_64"
    runtime_version: str


class Source(Model):
    """Where the network came from: package, file inside it, digest of that file."""

    package: str
    file: str
    digest: Digest
    licence: str


class PrecisionMap(Model):
    """Which nodes compute in FP16, and the share of all multiply-accumulates that they hold, 0 to 1."""

    size: int
    fp16_nodes: tuple[str, ...] = ()
    fp16_mac_share: float = 0.0
    fp16_node_share: float = 0.0
    map_digest: Digest | None = None


class Profile(Model):
    """Shapes of one optimisation profile for one input, each inside the next."""

    tensor: str
    min: tuple[int, ...]
    opt: tuple[int, ...]
    max: tuple[int, ...]


class ErrorFigures(Model):
    """Largest max-abs error over a set of frames against the independent FP32 reference, and how many frames."""

    frames: int
    max_abs: float
    p999: float
    deer: float | None = None
    over_limit: int = 0
    limit: float | None = None


class SupportFile(Model):
    """A file that must lie beside the artifact when it is served, e.g. the python backend's `model.py`."""

    name: str
    uri: str
    digest: Digest
    bytes: int


class Serving(Model):
    """How Triton serves the artifact. Exactly one of `backend` and `platform` is set.

    `artifact_name` is the file's name inside the version folder; `parameters` become the config's parameters.
    """

    backend: str | None = None
    platform: str | None = None
    artifact_name: str
    instance_kind: Literal["KIND_CPU", "KIND_GPU"]
    support_files: tuple[SupportFile, ...] = ()
    parameters: dict[str, str] = Field(default_factory=dict)


class BuildRecord(Model):
    """One engine's birth certificate, named by the digest of its own JSON bytes.

    Every tensor is a picture [N,C,H,W]: the agent asks each engine with one it makes from the first input's shape.
    """

    schema_version: Literal[1] = 1
    model: str
    model_id: str = Field(pattern=r"^[a-f0-9]{12}$")
    variant: str
    source: Source
    artifact_digest: Digest
    artifact_bytes: int
    precision: Precision
    precision_map: PrecisionMap | None = None
    runtime: str
    runtime_version: str
    target: Target
    inputs: tuple[Tensor, ...] = Field(min_length=1)
    outputs: tuple[Tensor, ...] = Field(min_length=1)
    profiles: tuple[Profile, ...] = ()
    flags: dict[str, str] = Field(default_factory=dict)
    errors: dict[str, ErrorFigures] = Field(default_factory=dict)
    serving: Serving
    simulated: bool
    built_at: str
    build_seconds: float

    @field_validator("inputs", "outputs")
    @classmethod
    def _pictures(cls, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        for tensor in tensors:
            if len(tensor.shape) != PICTURE_RANK or any(n == 0 or n < -1 for n in tensor.shape):
                raise ValueError(f"{tensor.name} is {list(tensor.shape)}, not [N,C,H,W] with -1 for a free axis")
        return tensors
