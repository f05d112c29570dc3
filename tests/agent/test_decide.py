"""What an agent does next, and how far a candidate came: decision tables named by sentences."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.agent.standins import NEW, NEW32, OLD, OLD32, name, routed

from blurfleet.api.engineset import Blob
from blurfleet.api.nodeengine import EngineRef, NodeModel
from blurfleet.api.policy import PolicySpec
from blurfleet.reasons import Reason
from blurfleet_agent.candidate import judge_candidate
from blurfleet_agent.decide import (
    Drain,
    FetchRecord,
    Load,
    ProveFlip,
    Refresh,
    RunGolden,
    Serve,
    Settle,
    Unload,
    choose_serving,
    decide,
    wanted_engines,
)
from blurfleet_agent.journal_records import AliasState, Latch
from blurfleet_agent.model_memory import ModelMemory
from blurfleet_agent.recovery import Served
from blurfleet_agent.remembered import Remembered
from blurfleet_agent.view import Fault, GoldenResult, ModelView, Problem, Role, ShadowResult, Verdict
from blurfleet_agent.watches import watch_of

NOW = 1000.0


BUNDLE = Blob(uri="file:///golden", digest="sha256:" + "9" * 64, bytes=1)
PASS = GoldenResult(verdict="Pass", reason=Reason.WITHIN_LIMITS, message="fine", at=NOW)
FAIL = replace(PASS, verdict="Fail", reason=Reason.MAX_ABS_ERROR_EXCEEDED, message="0.17 against 0.0035")
UNSURE = replace(PASS, verdict="Inconclusive", reason=Reason.INFER_TIMEOUT, message="no answer")


def served(engine: EngineRef, role: Role = "Primary", *, settled: bool = True, standby: EngineRef = OLD32) -> Served:
    primary = engine if role == "Primary" else OLD
    return Served(
        engine=routed(engine),
        role=role,
        primary=routed(primary),
        fallback=routed(standby),
        epoch=7,
        settled=settled,
    )


def latched(engine: EngineRef, *, sentinel: bool, attempt: str = "a1") -> AliasState:
    latch = Latch(digest=engine.digest, attempt=attempt, reason="DEERExceeded", sentinel=sentinel, at=1.0)
    return AliasState(epoch=7, latches=(latch,))


def view(**changes: Any) -> ModelView:
    """A node that serves OLD with OLD32 as proven standby; all four engines are loaded and passed golden frames."""
    spec = {"name": "bokeh", "attempt": "a1", "primary": OLD, "fallback": OLD32, "oracle": OLD32, "golden": BUNDLE}
    spec |= changes.pop("spec", {})
    roles: tuple[Role, Role] = ("Primary", "Fallback")
    golden = {(e.digest, e.set, r): PASS for e in (OLD, OLD32, NEW, NEW32) for r in roles}
    golden |= changes.pop("golden", {})
    values: dict[str, Any] = {
        "now": NOW,
        "ready": frozenset(name(e) for e in (OLD, OLD32, NEW, NEW32)),
        "served": served(OLD),
        "served_ref": OLD,
        "swap_proven": True,
        "last_wanted": {name(e): NOW for e in (OLD, OLD32, NEW, NEW32)},
    }
    return ModelView(spec=NodeModel.model_validate(spec), golden=golden, **{**values, **changes})


PROOF: tuple[tuple[str, str, Role], ...] = ((OLD32.digest, "old", "Fallback"),)
CANDIDATE = {"candidate": NEW, "oracle": NEW32}
LIVE = PolicySpec(shadow_samples=20)


def without(*engines: EngineRef) -> frozenset[str]:
    return frozenset(name(e) for e in (OLD, OLD32, NEW, NEW32) if e not in engines)


def dropped(*keys: tuple[EngineRef, Role]) -> dict[tuple[str, str, Role], GoldenResult]:
    return {(e.digest, e.set, r): UNSURE for e, r in keys}


SERVING = [
    pytest.param({}, None, id="what serves is what is wished: nothing moves"),
    pytest.param({"spec": {"primary": NEW}}, (NEW, "Primary", "Serve"), id="another proven primary is served"),
    pytest.param({"spec": {"primary": NEW}, "ready": without(NEW)}, None, id="a primary that is not loaded waits"),
    pytest.param(
        {"spec": {"primary": NEW}, "golden": {(NEW.digest, "new", "Primary"): FAIL}},
        None,
        id="a primary that failed golden frames is never served while something else is",
    ),
    pytest.param({"served": None}, (OLD, "Primary", "Serve"), id="the first primary is served once it is proven"),
    pytest.param(
        {"served": None, "golden": {(OLD.digest, "old", "Primary"): FAIL}},
        (OLD32, "Fallback", "Serve"),
        id="nothing serves and the primary failed: the standby does",
    ),
    pytest.param(
        {"served": None, "journal": latched(OLD, sentinel=True)},
        (OLD32, "Fallback", "Serve"),
        id="nothing serves and the primary is latched: the standby does",
    ),
    pytest.param(
        {"served": None, "golden": {(OLD.digest, "old", "Primary"): FAIL, (OLD32.digest, "old", "Fallback"): FAIL}},
        None,
        id="nothing serves, primary and standby failed: nothing is better than wrong pictures",
    ),
    pytest.param(
        {"quarantined": frozenset({OLD.digest})},
        (OLD32, "Fallback", "Quarantine"),
        id="what serves is quarantined: the standby takes over",
    ),
    pytest.param(
        {"quarantined": frozenset({OLD.digest}), "spec": {"primary": NEW}},
        (NEW, "Primary", "Quarantine"),
        id="what serves is quarantined and another primary is proven: that one takes over",
    ),
    pytest.param(
        {"quarantined": frozenset({OLD.digest, OLD32.digest})},
        None,
        id="standby quarantined too: no swap into it",
    ),
    pytest.param(
        {"quarantined": frozenset({OLD.digest}), "golden": {(OLD32.digest, "old", "Fallback"): FAIL}},
        None,
        id="what serves is quarantined but the standby is rotten: no swap into it",
    ),
    pytest.param(
        {"quarantined": frozenset({NEW.digest}), "spec": {"primary": NEW}},
        None,
        id="the wish is quarantined while a sound engine serves: that one stays",
    ),
    pytest.param(
        {"journal": latched(OLD, sentinel=True), "served": served(OLD32, "Fallback")},
        None,
        id="a latch overrides the spec",
    ),
    pytest.param(
        {"journal": latched(OLD, sentinel=True, attempt="a0"), "served": served(OLD32, "Fallback")},
        (OLD, "Primary", "Serve"),
        id="another attempt clears the latch",
    ),
    pytest.param(
        {"journal": latched(OLD, sentinel=False), "served": served(OLD32, "Fallback"), "reproven": True},
        (OLD, "Primary", "Rearm"),
        id="a drift latch that was re-proven is lifted",
    ),
    pytest.param(
        {"journal": latched(OLD, sentinel=True), "served": served(OLD32, "Fallback"), "reproven": True},
        None,
        id="a sentinel latch is never re-proven",
    ),
    pytest.param(
        {"served": served(OLD32, "Fallback"), "spec": {"primary": OLD32}},
        (OLD32, "Primary", "Serve"),
        id="the standby becomes the primary: its role changes under a new epoch",
    ),
    pytest.param(
        {"spec": {"primary": NEW}, "problem": Problem(reason=Reason.POLICY_WITHOUT_LIMITS, message="x")},
        None,
        id="a spec that cannot be acted on moves nothing",
    ),
    pytest.param({"spec": {"primary": None}}, None, id="a wish without a primary leaves what serves"),
]


@pytest.mark.parametrize(("changes", "wanted"), SERVING)
def test_what_is_to_serve(changes: dict[str, Any], wanted: tuple[EngineRef, str, str] | None) -> None:
    found = choose_serving(view(**changes))
    if wanted is None:
        assert found is None
        return
    assert isinstance(found, Serve)
    engine, role, why = wanted
    assert (found.order.to, found.order.role, found.order.why) == (routed(engine), role, why)


CANDIDATES = [
    pytest.param({"quarantined": frozenset({NEW.digest})}, "Refused", "Quarantined", id="quarantined: refused by name"),
    pytest.param(
        {"problem": Problem(reason=Reason.UNKNOWN_CLASS, message="tpu")}, "Refused", "UnknownClass", id="bad spec"
    ),
    pytest.param(
        {"quarantined": frozenset({NEW.digest}), "problem": Problem(reason=Reason.UNKNOWN_CLASS, message="tpu")},
        "Refused",
        "Quarantined",
        id="quarantine is said before a bad spec",
    ),
    pytest.param({"journal": latched(NEW, sentinel=True)}, "Failed", "DEERExceeded", id="it tripped in this attempt"),
    pytest.param({"swap_proven": False}, "Refused", "SwapNotProven", id="flips are not proven here: no canary"),
    pytest.param({"ready": without(NEW)}, "Staging", "Staging", id="not loaded yet"),
    pytest.param(
        {"ready": without(NEW), "faults": {NEW.digest: Fault(reason=Reason.LOAD_FAILED, message="x", attempts=1)}},
        "Loading",
        "LoadFailed",
        id="a load failed and is tried again",
    ),
    pytest.param(
        {"ready": without(NEW), "faults": {NEW.digest: Fault(reason=Reason.LOAD_TIMEOUT, message="x", final=True)}},
        "Failed",
        "LoadTimeout",
        id="loads failed for good",
    ),
    pytest.param({"ready": without(NEW32)}, "Loading", "OracleUnavailable", id="its oracle is not loaded"),
    pytest.param({"spec": {"candidate": NEW, "oracle": None}}, "Refused", "OracleUnavailable", id="it has no oracle"),
    pytest.param(
        {"golden": {(NEW.digest, "new", "Primary"): FAIL}},
        "GoldenFailed",
        "MaxAbsErrorExceeded",
        id="golden frames fail while the oracle passes: the engine is to blame",
    ),
    pytest.param(
        {"golden": {(NEW.digest, "new", "Primary"): FAIL, (NEW32.digest, "new", "Fallback"): FAIL}},
        "GoldenFailed",
        "NodeSuspect",
        id="the oracle fails too: the node is suspect, not the engine",
    ),
    pytest.param(
        {"golden": {(NEW.digest, "new", "Primary"): UNSURE}}, "Golden", "InferTimeout", id="golden unsure: it waits"
    ),
    pytest.param(
        {"golden": {(NEW.digest, "new", "Primary"): replace(PASS, pictures_fit=False)}},
        "Refused",
        "ContractChanged",
        id="golden pictures miss their tensors: preprocessing, no engine to blame",
    ),
    pytest.param(
        {"golden": {(OLD32.digest, "old", "Fallback"): FAIL}},
        "GoldenPassed",
        "FallbackNotProven",
        id="a rotten standby blocks promotion",
    ),
    pytest.param({}, "Shadowing", "InsufficientSamples", id="no live frame yet: it is not promoted"),
    pytest.param({"served": None}, "Proven", "GoldenPassed", id="nothing serves, so there is nothing to shadow"),
    pytest.param({"spec": {"candidate": NEW32, "oracle": NEW32}}, "Proven", "GoldenPassed", id="it is its own oracle"),
    pytest.param(
        {"spec": {**CANDIDATE, "policy": PolicySpec(shadow_samples=0)}}, "Proven", "GoldenPassed", id="no shadow asked"
    ),
]


@pytest.mark.parametrize(("changes", "phase", "reason"), CANDIDATES)
def test_how_far_a_candidate_came(changes: dict[str, Any], phase: str, reason: str) -> None:
    found = judge_candidate(view(**{"spec": {**CANDIDATE, "policy": LIVE}, **changes}))
    assert found is not None
    assert (found.phase, found.reason) == (phase, reason)


def shadow(verdict: Verdict, *, attempt: str = "a1", digest: str = NEW.digest) -> ShadowResult:
    return ShadowResult(
        digest=digest,
        attempt=attempt,
        verdict=verdict,
        reason=Reason.WITHIN_LIMITS,
        message="",
        valid=20,
    )


@pytest.mark.parametrize(
    ("result", "phase"),
    [
        pytest.param(shadow("Pass"), "Proven", id="enough sound frames: proven"),
        pytest.param(shadow("Fail"), "Failed", id="a trip in shadow: failed"),
        pytest.param(shadow("Inconclusive"), "Shadowing", id="inconclusive: never promoted"),
        pytest.param(shadow("Pass", attempt="a0"), "Shadowing", id="a pass of another attempt does not count"),
        pytest.param(shadow("Pass", digest=OLD.digest), "Shadowing", id="a pass of another engine does not count"),
    ],
)
def test_shadow_verdicts(result: ShadowResult, phase: str) -> None:
    found = judge_candidate(view(spec={**CANDIDATE, "policy": LIVE}, shadow=result))
    assert found is not None
    assert found.phase == phase


def kinds(actions: tuple[object, ...]) -> list[str]:
    return [type(a).__name__ for a in actions]


def test_a_calm_node_does_nothing() -> None:
    assert decide(view()) == ()


def test_engines_are_loaded_in_order_of_need_the_candidate_last() -> None:
    found = decide(view(spec=CANDIDATE, ready=frozenset()))
    assert [a.ref for a in found if isinstance(a, Load)] == [OLD, OLD32, NEW32, NEW]


def test_the_standby_is_proven_before_a_candidate_is_loaded() -> None:
    stale = {(OLD32.digest, "old", "Fallback"): replace(PASS, at=NOW - 60)}
    assert kinds(decide(view(spec=CANDIDATE, ready=without(NEW), golden=stale))) == ["RunGolden", "Load"]


def test_an_unsure_proof_of_the_standby_is_asked_again_soon() -> None:
    unsure = replace(UNSURE, at=NOW - 2)
    assert kinds(decide(view(golden={(OLD32.digest, "old", "Fallback"): unsure}))) == ["Refresh", "RunGolden"]
    fresh = replace(UNSURE, at=NOW - 1)
    assert kinds(decide(view(golden={(OLD32.digest, "old", "Fallback"): fresh}))) == ["Refresh"]


def test_a_quarantined_engine_is_not_even_loaded() -> None:
    found = decide(view(spec=CANDIDATE, ready=without(NEW), quarantined=frozenset({NEW.digest})))
    assert not any(isinstance(a, Load) for a in found)


def test_a_failed_load_waits_for_its_time_and_a_final_one_for_ever() -> None:
    waits = Fault(reason=Reason.LOAD_FAILED, message="x", retry_at=NOW + 1)
    assert decide(view(spec=CANDIDATE, ready=without(NEW), faults={NEW.digest: waits})) == ()
    again = decide(view(spec=CANDIDATE, ready=without(NEW), faults={NEW.digest: replace(waits, retry_at=NOW)}))
    assert kinds(again) == ["Load"]
    assert decide(view(spec=CANDIDATE, ready=without(NEW), faults={NEW.digest: replace(waits, final=True)})) == ()


@pytest.mark.parametrize(
    ("engine", "reason", "loads"),
    [
        pytest.param(OLD, Reason.LOAD_TIMEOUT, True, id="what serves is tried for as long as it is wanted"),
        pytest.param(OLD32, Reason.LOAD_FAILED, True, id="so is the standby"),
        pytest.param(OLD32, Reason.DIGEST_MISMATCH, True, id="wrong bytes may be uploaded again"),
        pytest.param(OLD, Reason.RECORD_MISMATCH, False, id="a record that belongs to another engine helps nobody"),
        pytest.param(NEW, Reason.LOAD_FAILED, False, id="a candidate is given up"),
    ],
)
def test_only_a_candidate_is_given_up_after_a_few_failed_loads(engine: EngineRef, reason: Reason, loads: bool) -> None:
    last = Fault(reason=reason, message="x", attempts=3, retry_at=NOW, final=True)
    found = decide(view(spec=CANDIDATE, ready=without(engine), faults={engine.digest: last}))
    assert ([a.ref for a in found if isinstance(a, Load)] == [engine]) == loads
    waits = {engine.digest: replace(last, retry_at=NOW + 1)}
    assert not any(isinstance(a, Load) for a in decide(view(spec=CANDIDATE, ready=without(engine), faults=waits)))


def test_the_standby_is_proven_again_when_its_proof_is_old() -> None:
    old = {(OLD32.digest, "old", "Fallback"): replace(PASS, at=NOW - 60)}
    assert decide(view(golden=old)) == (RunGolden(ref=OLD32, role="Fallback"),)


def test_an_alias_that_is_behind_is_settled_when_its_time_has_come() -> None:
    behind = served(OLD, settled=False)
    assert kinds(decide(view(served=behind))) == ["Settle"]
    assert decide(view(served=behind, settle_at=NOW + 1)) == ()
    assert "Settle" not in kinds(decide(view(served=behind, ready=without(OLD))))
    assert isinstance(decide(view(served=behind))[0], Settle)


def test_flips_are_proven_once_something_serves() -> None:
    assert decide(view(swap_proven=None)) == (ProveFlip(engine=name(OLD)),)
    assert decide(view(swap_proven=None, served=served(OLD, settled=False), settle_at=NOW + 1)) == ()


def test_the_record_of_a_loaded_engine_is_fetched_beside_the_loop() -> None:
    assert decide(view(faceless=OLD)) == (FetchRecord(ref=OLD),)
    assert decide(view(faceless=OLD, face_at=NOW + 1)) == ()
    assert kinds(decide(view(faceless=OLD, ready=without(OLD)))) == ["Load"]


def test_a_standby_that_rots_is_taken_out_of_the_routing_file() -> None:
    found = decide(view(golden={(OLD32.digest, "old", "Fallback"): FAIL}))
    assert found == (Refresh(alias="bokeh", fallback=None),)


def test_the_gateways_hear_once_that_the_node_is_drained_and_once_that_it_is_not() -> None:
    drained = {"drained": True}
    assert decide(view(spec=drained)) == (Drain(alias="bokeh", drained=True),)
    assert decide(view(spec=drained, drained=True)) == ()
    assert decide(view(drained=True)) == (Drain(alias="bokeh", drained=False),)
    assert "Drain" not in kinds(decide(view(spec=drained, served=None)))


def test_an_engine_nobody_wants_is_unloaded_only_after_the_longest_request() -> None:
    last = {name(NEW): NOW - 29, name(NEW32): NOW - 31}
    assert decide(view(last_wanted=last, unload_after=30.0)) == (Unload(name=name(NEW32)),)


def test_an_engine_left_by_an_earlier_process_is_unloaded_after_the_same_wait() -> None:
    memory = ModelMemory()
    for now in (NOW, NOW + 29.9):
        seen = view(now=now, last_wanted=memory.last_wanted, golden={k: replace(PASS, at=now) for k in PROOF})
        assert not any(isinstance(a, Unload) for a in decide(seen))
        memory.want({name(OLD), name(OLD32)}, seen)
    late = view(now=NOW + 30, last_wanted=memory.last_wanted, golden={k: replace(PASS, at=NOW + 30) for k in PROOF})
    assert [a.name for a in decide(late) if isinstance(a, Unload)] == sorted([name(NEW), name(NEW32)])


@given(
    golden_old=st.sampled_from([PASS, FAIL, UNSURE]),
    golden_new=st.sampled_from([PASS, FAIL, UNSURE]),
    golden_standby=st.sampled_from([PASS, FAIL, UNSURE]),
    quarantined=st.sets(st.sampled_from([OLD.digest, OLD32.digest, NEW.digest])),
    latch=st.sampled_from([None, OLD, NEW]),
    reproven=st.booleans(),
    missing=st.sets(st.sampled_from([OLD, OLD32, NEW])),
    primary=st.sampled_from([OLD, NEW, OLD32]),
    serving=st.sampled_from([None, OLD, OLD32]),
)
def test_never_a_quarantined_engine_never_an_unproven_standby_never_an_unproven_primary(
    golden_old: GoldenResult,
    golden_new: GoldenResult,
    golden_standby: GoldenResult,
    quarantined: set[str],
    latch: EngineRef | None,
    reproven: bool,
    missing: set[EngineRef],
    primary: EngineRef,
    serving: EngineRef | None,
) -> None:
    now = view(
        spec={"primary": primary},
        golden={
            (OLD.digest, "old", "Primary"): golden_old,
            (NEW.digest, "new", "Primary"): golden_new,
            (OLD32.digest, "old", "Fallback"): golden_standby,
            (OLD32.digest, "old", "Primary"): golden_standby,
        },
        quarantined=frozenset(quarantined),
        journal=latched(latch, sentinel=False) if latch is not None else AliasState(),
        reproven=reproven,
        ready=without(*missing),
        served=None if serving is None else served(serving, "Fallback" if serving is OLD32 else "Primary"),
    )
    found = choose_serving(now)
    if found is None:
        return
    to = found.order.to
    assert to.digest not in quarantined
    assert to.engine in now.ready
    verdicts = {OLD.digest: golden_old, NEW.digest: golden_new, OLD32.digest: golden_standby}
    assert found.order.why == "Rearm" or verdicts[to.digest].verdict == "Pass"
    if latch is not None and to.digest == latch.digest:
        assert found.order.why == "Rearm"


def test_when_memory_runs_out_the_candidate_goes_first_and_what_serves_stays() -> None:
    assert decide(view(spec=CANDIDATE, memory_low=True)) == (Unload(name=name(NEW)),)
    assert decide(view(memory_low=True)) == ()
    assert decide(view(spec={"candidate": OLD32, "oracle": OLD32}, memory_low=True)) == ()


PROBLEM = Problem(reason=Reason.POLICY_WITHOUT_LIMITS, message="x")


def test_a_bad_spec_leaves_guard_and_standby_as_the_last_good_one_had_them() -> None:
    old = {(OLD32.digest, "old", "Fallback"): replace(PASS, at=NOW - 60)}
    held = view(problem=PROBLEM, last_good=True, golden=old)
    assert decide(held) == (RunGolden(ref=OLD32, role="Fallback"),)
    watched = watch_of(held, Remembered(), "jetson-orin")
    assert watched is not None
    assert watched.primary is not None
    assert watched.fallback is not None
    assert (watched.primary.digest, watched.fallback.digest) == (OLD.digest, OLD32.digest)
    assert watched.fallback_ready
    assert choose_serving(view(problem=PROBLEM, last_good=True, spec={"primary": NEW})) is None
    off = view(problem=PROBLEM, last_good=True, served=served(OLD32, "Fallback"), served_ref=OLD32, golden=old)
    assert not any(isinstance(a, Unload) for a in decide(replace(off, last_wanted={}, now=NOW)))
    assert OLD in wanted_engines(off)


def test_a_bad_spec_with_nothing_good_before_it_is_not_acted_on() -> None:
    lost = view(problem=PROBLEM)
    assert watch_of(lost, Remembered(), "jetson-orin") is None
    assert decide(lost) == ()


def test_a_candidate_waits_until_flips_were_tried() -> None:
    found = judge_candidate(view(spec={**CANDIDATE, "policy": PolicySpec(shadow_samples=0)}, swap_proven=None))
    assert found is not None
    assert (found.phase, found.reason) == ("GoldenPassed", "SwapNotProven")


def test_flips_that_failed_are_tried_again_later() -> None:
    assert kinds(decide(view(swap_proven=False, prove_at=NOW))) == ["ProveFlip"]
    assert decide(view(swap_proven=False, prove_at=NOW + 1)) == ()
