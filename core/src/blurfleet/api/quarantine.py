"""EngineQuarantine: a tombstone for a digest."""

from __future__ import annotations

from pydantic import Field

from blurfleet.api.base import Digest, Model
from blurfleet.api.meta import Condition


class QuarantineSpec(Model):
    """A digest that is refused, for one class or (class absent) everywhere, until it is deleted or expires."""

    digest: Digest
    reason: str = Field(pattern=r"^[A-Z][A-Za-z0-9]*$", max_length=64)
    device_class: str | None = Field(default=None, alias="class")
    by: str | None = Field(default=None, max_length=253)
    note: str | None = Field(default=None, max_length=2048)
    expiry: str | None = Field(default=None, max_length=64)


# The most sets that one quarantine lists. A set with a quarantined digest is refused at its creation, so that only
# those of before are listed; one beyond them the operator still refuses when a rollout begins with it.
MOST_SETS = 4096


class QuarantineStatus(Model):
    """Sets that hold the digest, as namespace/name: what the admission rule for rollouts reads."""

    observed_generation: int = 0
    engine_sets: tuple[str, ...] = Field(default=(), max_length=MOST_SETS)
    conditions: tuple[Condition, ...] = ()
