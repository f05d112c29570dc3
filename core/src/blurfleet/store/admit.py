"""The admission review, as a store without an API server asks it before every write and deletion."""

from __future__ import annotations

from blurfleet.api import admission
from blurfleet.api.kinds import Resource
from blurfleet.errors import AdmissionRefused, InvalidSpec
from blurfleet.reasons import Reason
from blurfleet.store.port import Store


def admit(store: Store, new: Resource, old: Resource | None) -> None:
    """Return where `new` may be written over `old` (None at creation). Raises InvalidSpec and AdmissionRefused."""
    refusals = admission.review(
        new,
        old,
        quarantines=store.objects("EngineQuarantine"),
        sets=store.objects("EngineSet"),
        rollouts=store.objects("EngineRollout"),
    )
    _raise(refusals, new)


def admit_deletion(store: Store, old: Resource | None) -> None:
    """Return where `old` (None: there is none) may be deleted. Raises AdmissionRefused."""
    if old is not None:
        _raise(admission.review_deletion(old, store.objects("EngineRollout")), old)


def _raise(refusals: list[admission.Refusal], what: Resource) -> None:
    if refusals:
        reason = refusals[0].reason
        error = InvalidSpec if reason in (Reason.IMMUTABLE, Reason.INVALID_SPEC) else AdmissionRefused
        raise error(reason, "; ".join(r.message for r in refusals), where=what.key)
