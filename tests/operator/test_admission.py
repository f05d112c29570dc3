"""What a store refuses to take, and that what it refuses by it names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from simulated_fleet import NOW, digest, policy_spec, resource, rollout_spec, set_spec

from blurfleet.api.admission import LET_GO, review, review_deletion
from blurfleet.api.kinds import Resource
from blurfleet.api.nodeengine import NodeEngineSpec
from blurfleet.api.quarantine import QuarantineSpec, QuarantineStatus
from blurfleet.api.rollout import Outcome, Phase, RolloutStatus
from blurfleet.errors import AdmissionRefused, InvalidSpec
from blurfleet.reasons import Reason
from blurfleet.store.folder import FolderStore
from blurfleet.store.memory import MemoryStore
from blurfleet.store.port import ref_of
from blurfleet_operator.decide.housekeeping import quarantine_status

BAD = resource(
    "EngineQuarantine",
    "q",
    QuarantineSpec(digest=digest("naive-a100"), reason="MaxAbsErrorExceeded", device_class="a100"),
)
LISTED = BAD.with_status(QuarantineStatus(engine_sets=("default/naive",)))
NAIVE = resource("EngineSet", "naive", set_spec("naive", precision="FP16"))
GOOD = resource("EngineSet", "fp32", set_spec("fp32"))


def rollout(engine_set: str, **fields: Any) -> Resource:
    return resource("EngineRollout", "bokeh", rollout_spec(engine_set, **fields))


def node(device_class: str) -> Resource:
    return resource("NodeEngine", "n", NodeEngineSpec(device_class=device_class))


def labelled(old: Resource) -> Resource:
    return replace(old, meta=old.meta.model_copy(update={"labels": {"team": "video"}}))


def phased(phase: Phase, outcome: Outcome = "", serving: str = "fp32") -> Resource:
    return rollout("fp32").with_status(RolloutStatus(phase=phase, outcome=outcome, set=serving))


def widened(old: Resource, device_class: str | None) -> Resource:
    return replace(old, spec=old.spec.model_copy(update={"device_class": device_class}))


def noted(old: Resource) -> Resource:
    return replace(old, spec=old.spec.model_copy(update={"note": "known", "expiry": "2030-01-31T12:00:00Z"}))


ORIN = resource("EngineSet", "naive", set_spec("naive", precision="FP16", classes=("jetson-orin",)))
EVERYWHERE = resource("EngineQuarantine", "q", QuarantineSpec(digest=digest("net-fp32"), reason="OutOfRangeOutput"))


@pytest.mark.parametrize(
    ("new", "old", "quarantines", "reasons"),
    [
        pytest.param(NAIVE, None, [], [], id="a set nobody quarantined is admitted"),
        pytest.param(
            NAIVE, None, [BAD], [Reason.QUARANTINED], id="creating a set with a quarantined digest is refused"
        ),
        pytest.param(
            replace(NAIVE, meta=NAIVE.meta.model_copy(update={"name": "innocent"})),
            None,
            [BAD],
            [Reason.QUARANTINED],
            id="another name does not help",
        ),
        pytest.param(NAIVE, NAIVE, [BAD], [], id="an unchanged set passes"),
        pytest.param(labelled(NAIVE), NAIVE, [BAD], [], id="a label of a quarantined set may change"),
        pytest.param(ORIN, None, [BAD], [], id="the digest is free for a class it is not quarantined on"),
        pytest.param(
            ORIN, None, [EVERYWHERE], [Reason.QUARANTINED], id="a quarantine without class holds for every class"
        ),
        pytest.param(ORIN, NAIVE, [], [Reason.IMMUTABLE], id="a set never changes"),
        pytest.param(ORIN, NAIVE, [BAD], [Reason.IMMUTABLE], id="immutable before quarantined"),
        pytest.param(
            rollout("naive"), None, [BAD], [Reason.QUARANTINED], id="a new rollout of a quarantined set is refused"
        ),
        pytest.param(
            rollout("naive"), rollout("fp32"), [BAD], [Reason.QUARANTINED], id="pointing a rollout at it is refused"
        ),
        pytest.param(
            rollout("gone"),
            rollout("fp32"),
            [BAD.with_status(QuarantineStatus(engine_sets=("default/gone",)))],
            [Reason.QUARANTINED],
            id="the quarantine's own list is enough",
        ),
        pytest.param(
            rollout("naive", paused=True),
            rollout("naive"),
            [LISTED],
            [],
            id="a rollout already on it may still be paused",
        ),
        pytest.param(rollout("naive"), rollout("naive"), [LISTED], [], id="applying it again unchanged is a no-op"),
        pytest.param(rollout("fp32"), rollout("naive"), [LISTED], [], id="pointing away from it is admitted"),
        pytest.param(
            rollout("naive", selector={"classes": ("jetson-orin",)}),
            None,
            [LISTED],
            [],
            id="a rollout on other classes only is admitted",
        ),
        pytest.param(
            rollout("fp32", model="depth"), rollout("fp32"), [], [Reason.IMMUTABLE], id="a rollout keeps its model"
        ),
        pytest.param(
            rollout("fp32", model="depth"),
            phased("Promoted", "Promoted"),
            [],
            [Reason.IMMUTABLE],
            id="a rollout that is over keeps its model too",
        ),
        *(
            pytest.param(
                rollout("fp32", policy_ref="lax"),
                phased(phase, outcome),
                [],
                [Reason.IMMUTABLE],
                id=f"the policy of a rollout that is {phase} stays",
            )
            for phase, outcome in (
                ("Pending", ""),
                ("Progressing", ""),
                ("Holding", ""),
                ("Stalled", ""),
                ("RollingBack", "RolledBack"),
            )
        ),
        *(
            pytest.param(
                rollout("fp32", policy_ref="lax"),
                phased(phase, phase),
                [],
                [],
                id=f"the policy may change once {phase}",
            )
            for phase in ("Promoted", "RolledBack", "Aborted")
        ),
        *(
            pytest.param(
                rollout("fp32", policy_ref="lax"),
                phased("Stalled", serving=serving),
                [],
                [],
                id=f"the policy of a set that has not begun may change, with {serving or 'none'} before it",
            )
            for serving in ("", "older")
        ),
        pytest.param(
            rollout("naive", policy_ref="lax"),
            phased("Progressing"),
            [],
            [],
            id="the policy may change together with the set, in the middle of it",
        ),
        pytest.param(
            rollout("fp32", policy_ref="lax", ops={"abort": "1"}),
            phased("Progressing"),
            [],
            [Reason.IMMUTABLE],
            id="an abort does not take another policy along",
        ),
        pytest.param(
            rollout("naive", model="depth"),
            rollout("fp32"),
            [BAD],
            [Reason.IMMUTABLE, Reason.QUARANTINED],
            id="every rule that refuses is named",
        ),
        pytest.param(EVERYWHERE, BAD, [], [Reason.IMMUTABLE], id="a quarantine keeps its digest"),
        pytest.param(widened(BAD, None), BAD, [], [Reason.IMMUTABLE], id="a quarantine of a class does not grow"),
        pytest.param(
            widened(EVERYWHERE, "a100"), EVERYWHERE, [], [Reason.IMMUTABLE], id="a quarantine of all does not shrink"
        ),
        pytest.param(noted(BAD), BAD, [], [], id="note and expiry of a quarantine may change"),
        pytest.param(node("h100"), None, [], [Reason.UNKNOWN_CLASS], id="a node of an unknown class is refused"),
        pytest.param(node("a100"), None, [], [], id="a node of a known class is admitted"),
        pytest.param(
            labelled(node("h100")), node("h100"), [], [], id="an old node of an unknown class may be labelled"
        ),
    ],
)
def test_review(new: Resource, old: Resource | None, quarantines: list[Resource], reasons: list[Reason]) -> None:
    found = review(new, old, quarantines=quarantines, sets=[GOOD, NAIVE], rollouts=[])
    assert [r.reason for r in found] == reasons


def test_a_refusal_names_the_digest_the_class_the_cause_and_the_way_out() -> None:
    (found,) = review(rollout("naive"), None, quarantines=[BAD], sets=[NAIVE])
    for word in (digest("naive-a100"), "a100", "MaxAbsErrorExceeded", "naive", "delete the EngineQuarantine"):
        assert word in found.message


def test_a_store_raises_by_kind_of_refusal_and_keeps_what_it_had() -> None:
    store = MemoryStore()
    store.apply(NAIVE)
    with pytest.raises(InvalidSpec) as immutable:
        store.apply(ORIN)
    store.apply(BAD)
    with pytest.raises(AdmissionRefused) as refused:
        store.apply(rollout("naive"))
    assert (immutable.value.reason, refused.value.reason) == (Reason.IMMUTABLE, Reason.QUARANTINED)
    assert store.get(ref_of(NAIVE)).spec == NAIVE.spec
    assert store.objects("EngineRollout") == []


def test_memory_keeps_uid_and_status_and_numbers_only_changed_specs() -> None:
    store = MemoryStore()
    first = store.apply(resource("QualityPolicy", "p", policy_spec()))
    again = store.apply(resource("QualityPolicy", "p", policy_spec()))
    label = store.apply(labelled(resource("QualityPolicy", "p", policy_spec())))
    other = store.apply(resource("QualityPolicy", "p", policy_spec(shadow_samples=3)))
    assert [r.meta.generation for r in (first, again, label, other)] == [1, 1, 1, 2]
    assert len({r.meta.uid for r in (first, again, label, other)}) == 1
    assert again is first


NEEDING = rollout("fp32").with_status(RolloutStatus(set="fp32", keeps=("fp32", "naive")))
LET_GO_OF = replace(NAIVE, meta=NAIVE.meta.model_copy(update={"annotations": {LET_GO: "true"}}))
ELSEWHERE = replace(NEEDING, meta=NEEDING.meta.model_copy(update={"namespace": "other"}))


@pytest.mark.parametrize(
    ("old", "rollouts", "reasons"),
    [
        pytest.param(NAIVE, [], [], id="a set that no rollout is there for goes"),
        pytest.param(NAIVE, [NEEDING], [Reason.IN_USE], id="a set that a rollout would go back to stays"),
        pytest.param(GOOD, [NEEDING, NEEDING], [Reason.IN_USE] * 2, id="each rollout that serves it is named"),
        pytest.param(NAIVE, [rollout("naive")], [], id="a rollout that never began with it needs it not"),
        pytest.param(NAIVE, [ELSEWHERE], [], id="a rollout of another namespace means another set"),
        pytest.param(LET_GO_OF, [NEEDING], [], id="a person may let it go"),
        pytest.param(NEEDING, [NEEDING], [], id="a rollout goes at any time"),
        pytest.param(BAD, [NEEDING], [], id="a quarantine is lifted at any time"),
    ],
)
def test_review_of_a_deletion(old: Resource, rollouts: list[Resource], reasons: list[Reason]) -> None:
    assert [r.reason for r in review_deletion(old, rollouts)] == reasons


def stores(tmp_path: Path) -> list[MemoryStore | FolderStore]:
    return [MemoryStore(), FolderStore(tmp_path)]


@pytest.mark.parametrize("which", [0, 1], ids=["memory", "folder"])
def test_a_store_keeps_a_set_that_is_needed_and_says_by_whom_and_what_to_do(which: int, tmp_path: Path) -> None:
    store = stores(tmp_path)[which]
    store.apply(GOOD)
    store.apply(rollout("fp32"))
    store.write_status(ref_of(NEEDING), NEEDING.status)
    with pytest.raises(AdmissionRefused) as refused:
        store.delete(ref_of(GOOD))
    assert refused.value.reason is Reason.IN_USE
    for word in ("EngineSet fp32", "EngineRollout bokeh", "spec.rollbackWindow", f"{LET_GO}=true"):
        assert word in refused.value.message
    assert store.get(ref_of(GOOD)).spec == GOOD.spec
    assert store.delete(ref_of(NEEDING))
    assert store.delete(ref_of(GOOD))
    assert not store.delete(ref_of(GOOD))


def test_the_three_hundredth_set_that_holds_a_digest_is_refused_like_the_first() -> None:
    sets = [replace(NAIVE, meta=NAIVE.meta.model_copy(update={"name": f"s{n:03}"})) for n in range(300)]
    listed = BAD.with_status(quarantine_status(BAD, sets, NOW))
    assert len(listed.status.engine_sets) == 300
    (found,) = review(rollout("s299"), None, quarantines=[listed], sets=[])
    assert found.reason is Reason.QUARANTINED
