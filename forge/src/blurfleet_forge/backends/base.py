"""The one interface every backend has, and what goes in and comes out."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

import onnx

from blurfleet.api.record import Profile
from blurfleet_forge.precision import Halves


@dataclass(frozen=True, kw_only=True)
class EngineJob:
    """One engine to build.

    `graph` is the checked FP32 graph (or a quantised one, then `fp16_nodes` is empty); `halves` its
    fitted FP16 weights; `sm` is the compute capability
    as an integer such as 80, 0 on CPU; `profiles` give free axes their bounds and are empty for fixed shapes.
    """

    graph: onnx.ModelProto
    fp16_nodes: frozenset[str] = frozenset()
    halves: Halves = field(default_factory=dict)
    sm: int = 0
    profiles: tuple[Profile, ...] = ()


@dataclass(frozen=True, kw_only=True)
class EngineBytes:
    """A built engine: its bytes, the exact runtime version it is for, what was switched, the compiler's log."""

    data: bytes
    runtime_version: str
    flags: dict[str, str] = field(default_factory=dict)
    log: str = ""


@dataclass(frozen=True, kw_only=True)
class ServingPlan:
    """How Triton serves what a backend builds; `support_files` lie beside the artifact."""

    artifact_name: str
    instance_kind: Literal["KIND_CPU", "KIND_GPU"]
    backend: str | None = None
    platform: str | None = None
    support_files: tuple[Path, ...] = ()
    parameters: dict[str, str] = field(default_factory=dict)


class Backend(Protocol):
    """Builds engines for one runtime."""

    @property
    def name(self) -> str:
        """The runtime's name, as recipes write it."""
        ...

    @property
    def simulated(self) -> bool:
        """Whether FP16 is emulated rather than computed."""
        ...

    def runtime_version(self) -> str:
        """Return the exact version engines will be for. Raises EngineError (RuntimeUnavailable)."""
        ...

    def compile(self, job: EngineJob) -> EngineBytes:
        """Build one engine. Raises EngineError (BuildFailed, RuntimeUnavailable)."""
        ...

    def serving(self) -> ServingPlan:
        """Return how its engines are served."""
        ...
