"""The recipe: what an engine set is built from, read from YAML."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import yaml
from pydantic import Field, ValidationError, model_validator

from blurfleet.api.base import Digest, Fraction, Model, Name
from blurfleet.api.kinds import invalid
from blurfleet.errors import InvalidInput
from blurfleet.reasons import Reason

Reduced = Literal["none", "naive-fp16", "mixed", "int8"]
Stem = Literal["rmsnorm"]


class SourceFile(Model):
    """One file inside one pinned wheel, by digest."""

    package: str = Field(pattern=r"^[A-Za-z0-9._-]+$")
    version: str = Field(pattern=r"^[A-Za-z0-9.+!_-]+$")
    file: str
    digest: Digest
    licence: str


class Network(Model):
    """Names in the source graph, and what the engine calls its own input and output."""

    opset: int = Field(default=17, ge=13, le=21)
    input: str
    output: str
    engine_input: str = "image"
    engine_output: str = "matte"


class BuildTarget(Model):
    """A device class to build for: which backend builds, its max-abs limit, the share of it the search may use."""

    device_class: str = Field(alias="class")
    sm: int = 0
    platform: str = "linux-x86_64"
    runtime: str
    limit: Fraction
    budget: Fraction


class FrameSets(Model):
    """Picture files shipped in scikit-image and scikit-learn, by role. No file has two roles."""

    golden: tuple[str, ...] = Field(min_length=1)
    calibration: tuple[str, ...] = ()
    held_out: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _disjoint(self) -> FrameSets:
        names = [*self.golden, *self.calibration, *self.held_out]
        twice = sorted({n for n in names if names.count(n) > 1})
        if twice:
            raise ValueError(f"pictures {twice} have more than one role")
        return self


class SetPlan(Model):
    """One engine set: its reduced-precision form (beside FP32), an optional stem, the classes it is for."""

    name: Name
    reduced: Reduced = "none"
    stem: Stem | None = None
    classes: tuple[str, ...] = ()


class Recipe(Model):
    """A whole recipe file."""

    schema_version: Literal[1]
    name: Name
    model: Name
    source: SourceFile
    network: Network
    size: int = Field(ge=32, le=2048, multiple_of=32)
    contract_name: Name
    targets: tuple[BuildTarget, ...] = Field(min_length=1)
    frames: FrameSets
    sets: tuple[SetPlan, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _named_once(self) -> Recipe:
        for what, names in (("sets", [s.name for s in self.sets]), ("targets", [t.device_class for t in self.targets])):
            if len(set(names)) != len(names):
                raise ValueError(f"{what} must have distinct names, got {names}")
        known = {t.device_class for t in self.targets}
        strangers = sorted({c for s in self.sets for c in s.classes} - known)
        if strangers:
            raise ValueError(f"sets name classes {strangers} that no target has")
        return self

    def targets_of(self, plan: SetPlan) -> tuple[BuildTarget, ...]:
        """Return the targets that `plan` is built for: all, unless it names classes."""
        return tuple(t for t in self.targets if not plan.classes or t.device_class in plan.classes)

    def target(self, device_class: str) -> BuildTarget:
        """Return the target of `device_class`. Raises InvalidInput (UnknownClass)."""
        for target in self.targets:
            if target.device_class == device_class:
                return target
        known = ", ".join(t.device_class for t in self.targets)
        raise InvalidInput(
            Reason.UNKNOWN_CLASS, f"the recipe has no target for {device_class!r}", fix=f"one of {known}"
        )


def load_recipe(path: Path, *, size: int | None = None) -> Recipe:
    """Read a recipe; `size` replaces its size in pixels. Raises InvalidInput naming the file and the field."""
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInput(Reason.UNREADABLE_FILE, str(error.strerror), where=str(path)) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InvalidInput(Reason.UNPARSEABLE, f"not YAML: {error}", where=str(path)) from error
    if isinstance(raw, dict) and size is not None:
        raw["size"] = size
    try:
        return Recipe.model_validate(raw)
    except ValidationError as error:
        raise invalid(error, str(path)) from error
