"""Rules over more than one object, checked before a write: what ValidatingAdmissionPolicies check on a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from blurfleet.api.kinds import KINDS, Resource
from blurfleet.reasons import Reason


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """Why a write is refused, in a sentence a person can act on."""

    reason: Reason
    message: str


def review(
    new: Resource,
    old: Resource | None,
    *,
    quarantines: Sequence[Resource],
    sets: Sequence[Resource],
    rollouts: Sequence[Resource],
) -> list[Refusal]:
    """Return the refusals of writing `new` over `old` (None at creation); empty where the write may pass."""
    if old is not None and KINDS[new.kind].immutable and new.spec != old.spec:
        return [Refusal(reason=Reason.IMMUTABLE, message=f"{new.kind} is immutable; create a new one")]
    return []
