"""QualityPolicy: which figures are judged, against which limits, and what a breach does."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import Field, model_validator

from blurfleet.api.base import Duration, Fraction, Model
from blurfleet.api.meta import Condition


class MetricName(StrEnum):
    """The figures that a rule can name (DESIGN 6)."""

    NON_FINITE = "NonFinite"
    OUT_OF_RANGE = "OutOfRange"
    COLLAPSED = "Collapsed"
    MAX_ABS_ERROR = "MaxAbsError"
    P999_ERROR = "P999Error"
    DEER = "DEER"
    SSIM = "SSIM"
    LPIPS = "LPIPS"


SENTINELS = frozenset({MetricName.NON_FINITE, MetricName.OUT_OF_RANGE, MetricName.COLLAPSED})
UNAVAILABLE = frozenset({MetricName.LPIPS})


class Trip(Model):
    """When breaches trip: `frames` within `window` consecutive valid frames, or without a valid pass `for` a time."""

    frames: int | None = Field(default=None, ge=1, le=1000)
    window: int | None = Field(default=None, ge=1, le=1000)
    for_: Duration | None = Field(default=None, alias="for")
    max_gap: Duration | None = None

    @model_validator(mode="after")
    def _one_form(self) -> Trip:
        if (self.frames is None) == (self.for_ is None):
            raise ValueError("trip needs exactly one of `frames` and `for`")
        if self.window is not None and (self.frames is None or self.window < self.frames):
            raise ValueError("trip.window goes with trip.frames and is not smaller than it")
        if self.max_gap is not None and self.for_ is None:
            raise ValueError("trip.maxGap goes with trip.for")
        return self


class Rule(Model):
    """One rule. A sentinel takes no limit; any other metric needs one.

    `action` Swap at source Golden means: refuse the engine. `classes` empty means every device class; `role` narrows a
    Golden rule to engines tested as Primary (candidates) or as Fallback (FP32, oracles included).
    """

    metric: MetricName
    source: Literal["Golden", "Live"]
    limit: Fraction | None = None
    trip: Trip = Trip(frames=1, window=1)
    min_valid_samples: int = Field(default=1, ge=1)
    action: Literal["Swap", "Hold", "Warn"] = "Swap"
    classes: tuple[str, ...] = Field(default=(), max_length=16)
    role: Literal["Primary", "Fallback"] | None = None

    @model_validator(mode="after")
    def _limit_fits(self) -> Rule:
        if self.metric in SENTINELS:
            if self.limit is not None:
                raise ValueError(f"{self.metric} is a sentinel and takes no limit")
        elif self.limit is None:
            raise ValueError(f"{self.metric} needs a limit")
        return self


class FlapControl(Model):
    """More than `max_swaps_per_hour` swaps latch the node on its fallback."""

    max_swaps_per_hour: int = Field(default=4, ge=1)


class Probation(Model):
    """How a primary that tripped on drift is re-proven in shadow before it is served again."""

    enabled: bool = True
    samples: int = Field(default=50, ge=1)
    back_off: Duration = "1m"
    max_back_off: Duration = "1h"


class PolicySpec(Model):
    """Rules in order: when several breach on one sample the first names the reason."""

    metrics: tuple[Rule, ...] = Field(default=(), max_length=64)
    shadow_samples: int = Field(default=20, ge=0, description="valid live samples a candidate needs in shadow")
    probation: Probation = Probation()
    flap_control: FlapControl = FlapControl()
    standby_proof_every: Duration = "60s"
    stale_after: Duration = "30s"


class PolicyStatus(Model):
    """Whether every rule can be evaluated."""

    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()
