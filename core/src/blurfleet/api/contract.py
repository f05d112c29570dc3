"""PreprocessContract: everything that turns image bytes into the tensor the engine expects."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field, model_validator

from blurfleet.api.base import Digest, Model
from blurfleet.api.meta import Condition

ResizeKernel = Literal["area", "linear", "linear-antialias", "linear-antialias-reduced", "cubic-antialias", "lanczos"]


def _finite(text: str) -> float:
    """Return the value of a decimal number written as text. Raises ValueError for anything else, NaN and infinity."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text!r} is not a finite decimal number")
    return value


class SizeRange(Model):
    """Allowed lengths of one axis in pixels, each inside the next, in steps of `multiple_of`."""

    min: int = Field(ge=1, le=16384)
    opt: int = Field(ge=1, le=16384)
    max: int = Field(ge=1, le=16384)
    multiple_of: int = Field(default=1, ge=1, le=1024)

    @model_validator(mode="after")
    def _ordered(self) -> SizeRange:
        if not self.min <= self.opt <= self.max:
            raise ValueError(f"min {self.min} <= opt {self.opt} <= max {self.max} does not hold")
        if any(v % self.multiple_of for v in (self.min, self.opt, self.max)):
            raise ValueError(f"min, opt and max must be multiples of {self.multiple_of}")
        return self


class ContractSpec(Model):
    """The full contract. Defaults are the ImageNet-normalised RGB that U2-Net was trained with."""

    color_order: Literal["RGB", "BGR"] = "RGB"
    layout: Literal["NCHW", "NHWC"] = "NCHW"
    dtype: Literal["float32"] = "float32"
    height: SizeRange = SizeRange(min=320, opt=320, max=320)
    width: SizeRange = SizeRange(min=320, opt=320, max=320)
    resize: ResizeKernel = "linear-antialias"
    fit: Literal["stretch", "letterbox", "crop"] = "stretch"
    scale: str = Field(default="255", description="pixel values are divided by this before mean and std")
    mean: tuple[str, str, str] = ("0.485", "0.456", "0.406")
    std: tuple[str, str, str] = ("0.229", "0.224", "0.225")
    alpha: Literal["composite", "refuse"] = "composite"
    background: tuple[int, int, int] = (255, 255, 255)
    orientation: Literal["apply", "ignore", "refuse"] = "apply"
    sixteen_bit: Literal["scale", "refuse"] = "scale"
    grey: Literal["replicate", "refuse"] = "replicate"
    palette: Literal["expand", "refuse"] = "expand"
    cmyk: Literal["convert", "refuse"] = "convert"
    max_pixels: int = Field(default=50_000_000, ge=1)

    @model_validator(mode="after")
    def _numbers(self) -> ContractSpec:
        for name, values in (("scale", (self.scale,)), ("std", self.std)):
            if any(not (_finite(v) > 0) for v in values):
                raise ValueError(f"{name} must be positive decimal numbers, got {values}")
        for value in self.mean:
            _finite(value)
        if any(not 0 <= level <= 255 for level in self.background):
            raise ValueError(f"background must be three levels in 0..255, got {self.background}")
        return self


class ContractStatus(Model):
    """The canonical hash that clients send and every answer carries."""

    observed_generation: int = 0
    hash: Digest | None = None
    conditions: tuple[Condition, ...] = ()


DEFAULT_CONTRACT = ContractSpec()


def contract_at(size: int, base: ContractSpec = DEFAULT_CONTRACT) -> ContractSpec:
    """Return `base` with both axes fixed at `size` pixels."""
    axis = SizeRange(min=size, opt=size, max=size)
    return base.model_copy(update={"height": axis, "width": axis})
