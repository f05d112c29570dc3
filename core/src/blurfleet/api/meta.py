"""Object metadata and conditions, after the Kubernetes API conventions."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal

from pydantic import Field

from blurfleet.api.base import Model
from blurfleet.reasons import Reason

ConditionStatus = Literal["True", "False", "Unknown"]


class Owner(Model):
    """The object with which another one goes."""

    api_version: str
    kind: str
    name: str
    uid: str


class ObjectMeta(Model):
    """Name, identity and versions of an object. Fields of Kubernetes that we do not read are dropped when parsing."""

    name: str = Field(min_length=1, max_length=253)
    namespace: str | None = None
    uid: str = ""
    generation: int = 0
    resource_version: str = ""
    creation_timestamp: str = ""
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    owner_references: tuple[Owner, ...] | None = None


class Condition(Model):
    """One observed fact: status, closed CamelCase reason, a sentence, and since when the status holds."""

    type: str = Field(max_length=64)
    status: ConditionStatus
    reason: Reason
    message: str = Field(default="", max_length=2048)
    observed_generation: int = 0
    last_transition_time: str = ""


def timestamp(now: float) -> str:
    """Return `now` (seconds since the epoch) as RFC 3339 in UTC with milliseconds."""
    return datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def set_condition(conditions: tuple[Condition, ...], new: Condition, now: float) -> tuple[Condition, ...]:
    """Return `conditions` with `new` in place of the one of its type.

    `last_transition_time` moves only when the status flips, as the Kubernetes conventions ask.
    """
    old = next((c for c in conditions if c.type == new.type), None)
    since = old.last_transition_time if old and old.status == new.status else timestamp(now)
    placed = new.model_copy(update={"last_transition_time": since})
    kept = [placed if c.type == new.type else c for c in conditions]
    return tuple(kept) if old else (*kept, placed)


def condition(conditions: tuple[Condition, ...], kind: str) -> Condition | None:
    """Return the condition of type `kind`, None where it was never set."""
    return next((c for c in conditions if c.type == kind), None)


def is_true(conditions: tuple[Condition, ...], kind: str) -> bool:
    """Tell whether the condition of type `kind` is set and True: Unknown and absent are not."""
    found = condition(conditions, kind)
    return found is not None and found.status == "True"
