"""What happens is said once, also by an operator that is killed between any two of its writes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from simulated_fleet import Fleet, Script, digest, resource

from blurfleet.api.base import Model
from blurfleet.api.kinds import Resource
from blurfleet.api.meta import timestamp
from blurfleet.api.quarantine import QuarantineSpec
from blurfleet.errors import StoreError
from blurfleet.reasons import Reason
from blurfleet.store.folder import FolderStore
from blurfleet.store.memory import MemoryStore
from blurfleet.store.port import Event, Ref, Store
from blurfleet_operator.controller import settle
from blurfleet_operator.reconcile import reconcile

REF = Ref(kind="EngineRollout", name="bokeh", namespace="default")
WAVES = ({"name": "canary", "percent": 50}, {"name": "all", "percent": 100})
GATED = ({"name": "canary", "percent": 50, "gate": "Manual"}, {"name": "all", "percent": 100})
A_WHILE = 14


class Killed(BaseException):
    """The operator is gone: nothing of it runs any more."""


class Mortal:
    """A store whose operator dies at its write number `after`, before that write is done; then another takes over."""

    def __init__(self, store: MemoryStore, after: int) -> None:
        self._store = store
        self._left = after

    def _count(self) -> None:
        self._left -= 1
        if self._left == 0:
            raise Killed

    def apply(self, resource: Resource) -> Resource:
        self._count()
        return self._store.apply(resource)

    def write_status(self, ref: Ref, status: Model) -> None:
        if ref.kind != "NodeEngine":  # which agents write
            self._count()
        self._store.write_status(ref, status)

    def delete(self, ref: Ref) -> bool:
        self._count()
        return self._store.delete(ref)

    def record(self, event: Event) -> None:
        self._count()
        self._store.record(event)

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    @property
    def died(self) -> bool:
        return self._left <= 0


def good_set(fleet: Fleet) -> None:
    fleet.rollout("good", waves=WAVES)


def going_on(fleet: Fleet) -> None:
    fleet.promote("good")
    fleet.change(engine_set="next", waves=WAVES)


def tripping(fleet: Fleet) -> None:
    fleet.promote("good")
    fleet.script = Script(live={("*", digest("next-a100")): "DEERExceeded"})
    fleet.change(engine_set="next")


def failing(fleet: Fleet) -> None:
    fleet.promote("good")
    fleet.script = Script(golden={("*", digest("next-jetson-orin")): "oracle passes"})
    fleet.change(engine_set="next")


def aborting(fleet: Fleet) -> None:
    fleet.promote("good")
    fleet.change(engine_set="next", waves=GATED)
    fleet.tick(8)
    fleet.ops(abort="stop")


def suspecting(fleet: Fleet) -> None:
    fleet.promote("good")
    fleet.script = Script(golden={("orin-0", digest("next-jetson-orin")): "oracle fails"})
    fleet.change(engine_set="next")


def misnaming(fleet: Fleet) -> None:
    fleet.rollout("typo")


STORIES = [good_set, going_on, tripping, failing, aborting, suspecting, misnaming]


Said = Counter[tuple[str, str]]


def told(story: Callable[[Fleet], None], dies_at: int, *, later: bool = False) -> tuple[Said, Counter[str], bool]:
    """Return what was said of the rollout and how often, its conditions at the end, and whether the operator died.

    The next operator comes at once, or `later`: when agents have done what they were told.
    """
    fleet = Fleet()
    for name in ("good", "next"):
        fleet.set(name, precision="FP16")
    story(fleet)
    real = fleet.store
    mortal = Mortal(real, dies_at)
    fleet.store = mortal  # type: ignore[assignment]  # stands before the store
    uid = real.get(REF).meta.uid
    for _ in range(A_WHILE):
        try:
            fleet.tick()
        except Killed:
            if not later:
                settle(real, clock=lambda: fleet.now)
    said = Counter((e.reason.value, e.message.replace(uid, "uid")) for e in real.events(REF))
    conditions = Counter(f"{c.type} {c.status} {c.reason}" for c in fleet.status().conditions)
    return said, conditions, mortal.died


@pytest.mark.parametrize("story", STORIES, ids=lambda s: s.__name__)
def test_an_operator_killed_at_any_write_loses_no_event_and_repeats_none(story: Callable[[Fleet], None]) -> None:
    said, ends, _ = told(story, 10**9)
    assert said.total() >= 1
    at, died = 0, True
    while died:
        at += 1
        found, end, died = told(story, at)
        assert (found, end) == (said, ends), f"killed at write {at}"
    assert at > 5


@pytest.mark.parametrize(("story", "reason"), [(tripping, "ClassReverted"), (failing, "GoldenFailed")])
def test_a_class_goes_back_for_its_own_reason_though_nodes_show_no_more_of_it(
    story: Callable[[Fleet], None], reason: str
) -> None:
    whole, _, _ = told(story, 10**9)
    expected = {said: count for said, count in whole.items() if said[0] == reason}
    at, died = 0, True
    while died:
        at += 1
        said, _, died = told(story, at, later=True)
        assert {s: count for s, count in said.items() if s[0] in (reason, "Quarantined")} == expected, at


def test_an_expired_quarantine_is_said_to_be_gone_before_it_is() -> None:
    store = MemoryStore()
    spec = QuarantineSpec(digest=digest("bad"), reason="DEERExceeded", expiry=timestamp(100.0))
    store.apply(resource("EngineQuarantine", "q", spec))
    for at in (1, 2):
        with pytest.raises(Killed):
            reconcile(Mortal(store, at), 200.0)  # type: ignore[arg-type]  # stands before the store
    reconcile(store, 201.0)
    reconcile(store, 202.0)
    assert [e.reason for e in store.events()] == [Reason.QUARANTINE_EXPIRED]
    assert store.objects("EngineQuarantine") == []


def test_what_the_store_would_not_hear_is_said_by_the_next_pass_and_the_status_waits_for_it() -> None:
    fleet = Fleet()
    fleet.set("good", precision="FP16")
    fleet.rollout("good")
    store, quiet = fleet.store, fleet.store.record

    def away(event: Event) -> None:
        raise StoreError(Reason.STORE_UNWRITABLE, "no answer", where=str(event.involved))

    store.record = away  # type: ignore[method-assign]  # for one pass
    reconcile(store, fleet.now)
    assert (fleet.status().set, fleet.reasons()) == ("", [])
    store.record = quiet  # type: ignore[method-assign]
    reconcile(store, fleet.now)
    assert (fleet.status().set, fleet.reasons()[0]) == ("good", "Accepted")


@pytest.fixture(params=["memory", "folder"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return MemoryStore() if request.param == "memory" else FolderStore(tmp_path)


def test_the_same_transition_is_kept_once_and_another_of_the_same_words_again(store: Store) -> None:
    first = Event(involved=REF, reason=Reason.PAUSED, message="held", at=1.0, transition="a")
    other = Event(involved=REF, reason=Reason.PROMOTED, message="done", at=2.0, transition="a")
    later = Event(involved=REF, reason=Reason.PAUSED, message="held", at=3.0, transition="b")
    for event in (first, other, first, other, later, first, later):
        store.record(event)
    assert store.events(REF) == [first, other, later]
