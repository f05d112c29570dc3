"""EngineRollout: which set a model is to be served from, on which nodes, in which waves."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from blurfleet.api.base import Duration, Model, Name
from blurfleet.api.meta import Condition
from blurfleet.api.policy import PolicySpec


class Wave(Model):
    """A share of the selected nodes of each class (`percent`, cumulative) or named nodes, soaked and gated."""

    name: Name
    percent: int | None = Field(default=None, ge=1, le=100)
    nodes: tuple[str, ...] = Field(default=(), max_length=1000)
    soak: Duration = "0s"
    gate: Literal["Auto", "Manual"] = "Auto"

    @model_validator(mode="after")
    def _one_form(self) -> Wave:
        if (self.percent is None) == (not self.nodes):
            raise ValueError(f"wave {self.name} needs exactly one of `percent` and `nodes`")
        return self


class Correlation(Model):
    """A class reverts when min(`nodes`, nodes of the class running the digest) trip within `window`."""

    nodes: int = Field(default=2, ge=1)
    window: Duration = "10m"


class Ops(Model):
    """Commands: each acts once per new token; removing a token does nothing. `promote` also opens a manual gate."""

    promote: str | None = Field(default=None, max_length=128)
    abort: str | None = Field(default=None, max_length=128)
    retry: str | None = Field(default=None, max_length=128)


class Selector(Model):
    """Which nodes: all given conditions must hold; empty selects every node."""

    classes: tuple[str, ...] = Field(default=(), max_length=16)
    match_labels: dict[str, str] = Field(default_factory=dict)
    nodes: tuple[str, ...] = Field(default=(), max_length=1000)


class RolloutSpec(Model):
    """The wish of a platform engineer. The last wave without `nodes` must be 100 percent."""

    model: Name
    engine_set: Name
    policy_ref: Name
    selector: Selector = Selector()
    waves: tuple[Wave, ...] = Field(default=(Wave(name="all", percent=100),), min_length=1, max_length=32)
    correlation: Correlation = Correlation()
    paused: bool = False
    progress_deadline: Duration = "10m"
    rollback_window: Duration = "1h"
    ops: Ops = Ops()

    @model_validator(mode="after")
    def _waves_grow(self) -> RolloutSpec:
        shares = [w.percent for w in self.waves if w.percent is not None]
        if shares != sorted(shares):
            raise ValueError(f"wave percentages must not decrease, got {shares}")
        if shares and not self.waves[-1].nodes and shares[-1] != 100:
            raise ValueError(f"the last wave must be 100 percent or name its nodes, got {shares[-1]} percent")
        names = [w.name for w in self.waves]
        if len(set(names)) != len(names):
            raise ValueError(f"wave names must be unique, got {names}")
        return self


Phase = Literal["Pending", "Progressing", "Holding", "Promoted", "RollingBack", "RolledBack", "Aborted", "Stalled"]


# The most nodes a fleet may have.
MOST_NODES = 5000


class TripNote(Model):
    """One trip as the rollout saw it: `at` by the operator's clock, `reported` by the node's (empty: it said none)."""

    node: str
    device_class: str
    digest: str
    attempt: str = ""
    reason: str
    at: str
    reported: str = ""


class KnownGood(Model):
    """A set that was promoted on a class: what a revert goes back to, and under which policy it was proven.

    A name may be given to other bytes later, so `set_digest` and `engines` (digests, for the class) say what was
    proven; empty in a status that was written before they were kept. `at` is when it was last good; empty when it was
    given up and only its FP32 is trusted.
    """

    device_class: str
    set: str
    policy_name: str = ""
    at: str = ""
    set_digest: str = ""
    engines: tuple[str, ...] = Field(default=(), max_length=64)

    def is_of(self, name: str, set_digest: str) -> bool:
        """Tell whether it is the set `name` with content `set_digest`; where one of the two is unknown, by name."""
        return self.set == name and (not self.set_digest or not set_digest or self.set_digest == set_digest)

    def vouches(self, name: str, engine: str) -> bool:
        """Tell whether the engine of that digest is one that was promoted as the set `name`."""
        return self.set == name and (not self.engines or engine in self.engines)


Outcome = Literal["", "Promoted", "RolledBack", "Aborted"]


class RolloutStatus(Model):
    """Where the rollout stands. Printer columns are precomputed here.

    `outcome` is how the attempt ended ("" while it runs) and stays until another set or a retry; `phase` is what a
    person is shown and follows from it and from what is observed. `known_good` is newest first, per class.
    `set_digest` is the content of `set`: the same name with other bytes is another attempt.
    `keeps` are the sets it serves or would go back to: their objects are not to be deleted.
    `drained` are nodes that are suspect and take no part.
    `gate_opened` is the index of the wave whose gate and soak `ops.promote` opened, -1 for none.
    """

    observed_generation: int = 0
    phase: Phase = "Pending"
    outcome: Outcome = ""
    set: str = ""
    set_digest: str = ""
    wave: str = ""
    wave_index: int = 0
    wave_started: str = ""
    wave_healthy_since: str = ""
    progress_at: str = ""
    attempt: str = ""
    nodes: str = "0/0"
    tripped: int = 0
    fallback: str = ""
    policy: PolicySpec | None = None
    policy_name: str = ""
    gate_opened: int = -1
    known_good: tuple[KnownGood, ...] = Field(default=(), max_length=32)
    acted: Ops = Ops()
    last_known_good: str = ""
    keeps: tuple[str, ...] = Field(default=(), max_length=64)
    reverted_classes: tuple[str, ...] = ()
    drained: tuple[str, ...] = Field(default=(), max_length=MOST_NODES)
    trips: tuple[TripNote, ...] = Field(default=(), max_length=100)
    conditions: tuple[Condition, ...] = ()
