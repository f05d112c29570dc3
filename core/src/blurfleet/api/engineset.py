"""EngineSet: all variants of one model version; immutable."""

from __future__ import annotations

import json

from pydantic import Field, model_validator

from blurfleet.api.base import Digest, Model, Name, Precision
from blurfleet.api.meta import Condition
from blurfleet.api.record import Target, Tensor
from blurfleet.identity import digest_bytes


class Blob(Model):
    """Bytes by address and digest."""

    uri: str = Field(min_length=1, max_length=1024)
    digest: Digest
    bytes: int | None = Field(default=None, ge=0)


class InputProfile(Model):
    """Input statistics of the calibration frames, for drift of inputs (Warn only)."""

    statistics: dict[str, str] = Field(default_factory=dict)
    calibration_digest: Digest | None = None


class Interface(Model):
    """What clients of the alias see: names, dtypes and shapes of its tensors. Another one needs another alias."""

    inputs: tuple[Tensor, ...] = Field(min_length=1, max_length=8)
    outputs: tuple[Tensor, ...] = Field(min_length=1, max_length=8)


class Variant(Model):
    """An engine for one target: SM x exact runtime version x platform x precision."""

    name: Name
    target: Target
    runtime: str = Field(max_length=64)
    precision: Precision
    artifact: Blob
    build_record: Blob
    memory_bytes: int = Field(default=0, ge=0)


class EngineSetSpec(Model):
    """One model version. Every reduced-precision variant has an FP32 one for the same target."""

    model: Name
    contract_ref: Name
    golden: Blob
    profile: InputProfile = InputProfile()
    interface: Interface | None = None
    variants: tuple[Variant, ...] = Field(min_length=1, max_length=64)

    @model_validator(mode="after")
    def _pairs(self) -> EngineSetSpec:
        names = [v.name for v in self.variants]
        if len(set(names)) != len(names):
            raise ValueError(f"variant names must be unique, got {sorted(names)}")
        full = [v.target for v in self.variants if v.precision == "FP32"]
        lone = [v.name for v in self.variants if v.precision != "FP32" and v.target not in full]
        if lone:
            raise ValueError(f"variants {lone} need an FP32 variant for the same target")
        return self


class EngineSetStatus(Model):
    """Verified: records and artifacts fit; Compatible: nodes of the fleet have a variant."""

    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()


def fp32_for(spec: EngineSetSpec, target: Target) -> Variant | None:
    """Return the FP32 variant for `target`: the oracle of every other variant for it."""
    return next((v for v in spec.variants if v.precision == "FP32" and v.target == target), None)


def content_digest(spec: EngineSetSpec) -> str:
    """Return `sha256:<64 hex>` of what a set makes nodes serve and be judged by: contract, golden frames, engines.

    Addresses, sizes and variants' names are left out: the same bytes from elsewhere are the same set.
    """
    engines = [(v.target.model_dump(mode="json"), v.precision, v.artifact.digest) for v in spec.variants]
    text = json.dumps([spec.model, spec.contract_ref, spec.golden.digest, engines], sort_keys=True)
    return digest_bytes(text.encode())
