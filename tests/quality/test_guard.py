"""The guard's decisions, one sentence a case."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from blurfleet.api.policy import MetricName as M
from blurfleet.check import dumps
from blurfleet.quality.guard import begin, step, tick
from blurfleet.quality.rules import BoundRule
from blurfleet.quality.shadow import assess
from blurfleet.quality.state import (
    Act,
    GuardAction,
    GuardPolicy,
    GuardState,
    LatchKind,
    Phase,
    Sample,
    sentinels_only,
    state_from_json,
    state_to_json,
)
from blurfleet.quality.verdict import Verdict
from blurfleet.reasons import Reason

DIGEST = "sha256:" + "a" * 64
NAN = BoundRule(order=0, metric=M.NON_FINITE, limit=0.0, action="Swap")
COLLAPSED = BoundRule(order=1, metric=M.COLLAPSED, limit=0.0, action="Swap")
DEER = BoundRule(order=2, metric=M.DEER, limit=0.18, action="Swap", frames=3, window=3)
DRIFT = BoundRule(order=3, metric=M.MAX_ABS_ERROR, limit=0.0035, action="Swap", frames=None, for_s=120.0)
POLICY = GuardPolicy(rules=(NAN, COLLAPSED, DEER, DRIFT), sampling_period_s=10.0, stale_after_s=60.0)


def sample(frame: int, deer: float | None = 0.01, drift: float | None = 0.0, **changes: Any) -> Sample:
    figures = {M.DEER: deer, M.MAX_ABS_ERROR: drift, M.NON_FINITE: 0.0, M.COLLAPSED: 0.0}
    made = Sample(stream="cam", frame=frame, digest=DIGEST, figures=figures)
    return replace(made, **changes)


def feed(
    samples: list[Sample], policy: GuardPolicy = POLICY, *, ready: bool = True, every: float = 1.0
) -> tuple[GuardState, list[GuardAction]]:
    state, actions = begin(DIGEST, "1", 0.0), []
    for index, item in enumerate(samples):
        state, action = step(state, item, policy, index * every, fallback_ready=ready)
        actions.append(action)
    return state, actions


def deers(*values: float | None) -> list[Sample]:
    return [sample(i, deer=v, drift=None if v is None else 0.0) for i, v in enumerate(values)]


def tripped(policy: GuardPolicy = POLICY) -> GuardState:
    return feed(deers(0.2, 0.2, 0.2), policy)[0]


def only(rule: BoundRule, **changes: Any) -> GuardPolicy:
    return replace(POLICY, rules=(rule,), **changes)


@pytest.mark.parametrize(
    ("samples", "acts", "phase"),
    [
        pytest.param(deers(0.1, 0.1), [Act.NONE, Act.NONE], Phase.MONITOR, id="sound samples do nothing"),
        pytest.param(deers(0.1, 0.2), [Act.NONE, Act.ALERT], Phase.ALERT, id="the first breach alerts"),
        pytest.param(
            deers(0.2, 0.2, 0.1), [Act.ALERT, Act.NONE, Act.NONE], Phase.MONITOR, id="a pass ends a run"
        ),
        pytest.param(
            deers(0.2, 0.2, 0.2), [Act.ALERT, Act.NONE, Act.SWAP], Phase.SWAPPED, id="three in a row swap"
        ),
        pytest.param(
            deers(0.2, 0.2, None, 0.2), [Act.ALERT, Act.NONE, Act.NONE, Act.SWAP], Phase.SWAPPED,
            id="an invalid sample neither breaks nor lengthens a run",
        ),
        pytest.param(
            deers(math.inf, math.inf), [Act.ALERT, Act.NONE], Phase.ALERT, id="two infinite rates are two breaches"
        ),
        pytest.param(deers(math.nan), [Act.SWAP], Phase.SWAPPED, id="one NaN swaps at once"),
        pytest.param([sample(0, drift=math.inf)], [Act.SWAP], Phase.SWAPPED, id="an infinite error swaps at once"),
        pytest.param([sample(0, drift=-math.inf)], [Act.SWAP], Phase.SWAPPED, id="so does a negative infinite one"),
        pytest.param(
            [sample(0, figures={M.NON_FINITE: 2.0})], [Act.SWAP], Phase.SWAPPED, id="the gateway's sentinel alone swaps"
        ),
        pytest.param(
            [sample(0, figures={M.NON_FINITE: 2.0}, valid=False)], [Act.SWAP], Phase.SWAPPED,
            id="a counted NaN swaps even where the oracle gave no answer",
        ),
        pytest.param(
            [sample(0, deer=math.nan, drift=math.nan, valid=False)], [Act.NONE], Phase.IDLE,
            id="a NaN that is only the oracle's counts for nothing",
        ),
        pytest.param(
            [sample(0), sample(1, figures={M.COLLAPSED: 1.0, M.MAX_ABS_ERROR: 0.9})], [Act.NONE, Act.SWAP],
            Phase.SWAPPED, id="a confirmed collapse swaps on one frame",
        ),
        pytest.param(
            [sample(1, 0.2), sample(4, 0.1), sample(2, 0.2), sample(3, 0.2)],
            [Act.ALERT, Act.NONE, Act.NONE, Act.SWAP], Phase.SWAPPED, id="late frames take their place by frame id",
        ),
        pytest.param(
            [sample(7, 0.2)] * 5, [Act.ALERT] + [Act.NONE] * 4, Phase.ALERT, id="a frame sent five times is one breach"
        ),
        pytest.param(
            [sample(i, 0.2, stream=f"s{i}") for i in range(3)], [Act.ALERT, Act.NONE, Act.NONE], Phase.ALERT,
            id="breaches of three streams are no run",
        ),
        pytest.param(
            [sample(i, 0.2, digest="sha256:" + "b" * 64) for i in range(4)], [Act.NONE] * 4, Phase.IDLE,
            id="another engine's samples do not count",
        ),
    ],
)  # fmt: skip
def test_one_sample_after_the_other(samples: list[Sample], acts: list[Act], phase: Phase) -> None:
    state, actions = feed(samples)
    assert [a.act for a in actions] == acts
    assert state.phase is phase


@pytest.mark.parametrize(
    ("k", "n", "marks", "fires"),
    [
        pytest.param(2, 3, "bpb", 2, id="2 of 3 with a pass between"),
        pytest.param(2, 3, "bppb", None, id="2 of 4 is not 2 of 3"),
        pytest.param(1, 1, "pb", 1, id="1 of 1"),
        pytest.param(3, 5, "bpbpb", 4, id="3 of 5 spread wide"),
        pytest.param(3, 5, "bpppbb", None, id="3 of 6 is not 3 of 5"),
        pytest.param(2, 9, "bpppppppb", 8, id="a window longer than the reorder buffer"),
        pytest.param(2, 20, "b" + "p" * 18 + "b", 19, id="2 of 20 at both ends"),
        pytest.param(2, 20, "b" + "p" * 19 + "b", None, id="2 of 21 is not 2 of 20"),
    ],
)
def test_k_of_n(k: int, n: int, marks: str, fires: int | None) -> None:
    rule = replace(DEER, frames=k, window=n)
    _, actions = feed(deers(*(0.2 if m == "b" else 0.1 for m in marks)), only(rule))
    assert next((i for i, a in enumerate(actions) if a.act is Act.SWAP), None) == fires


@pytest.mark.parametrize(
    ("times", "values", "fires"),
    [
        pytest.param(range(0, 121, 10), [0.004] * 13, 12, id="exactly two minutes fire"),
        pytest.param(range(0, 111, 10), [0.004] * 12, None, id="110 s do not"),
        pytest.param(range(0, 141, 10), [0.0035] * 15, None, id="the exact limit is no breach of a strict rule"),
        pytest.param(range(0, 141, 10), [*[0.004] * 5, 0.001, *[0.004] * 9], None, id="one pass starts the run again"),
        pytest.param([*range(0, 101, 10), 120, 130], [0.004] * 13, 11, id="a gap of two periods is bridged"),
        pytest.param([*range(0, 101, 10), 121, 131, 141], [0.004] * 14, None, id="a longer gap is not"),
        pytest.param(range(0, 131, 10), [*[0.004] * 5, None, *[0.004] * 8], 12, id="an invalid sample is no pass"),
        pytest.param(
            range(0, 151, 10), [*[0.004] * 5, None, None, *[0.004] * 9], None, id="two invalid ones open a long gap"
        ),
    ],
)
def test_breaches_over_a_time(times: Any, values: list[float | None], fires: int | None) -> None:
    state, fired = begin(DIGEST, "1", 0.0), []
    for index, (now, value) in enumerate(zip(times, values, strict=True)):
        state, action = step(state, sample(index, 0.01, value), only(DRIFT), now, fallback_ready=True)
        fired += [index] if action.act is Act.SWAP else []
    assert fired == ([] if fires is None else [fires])
    if fires is None and values[-1] == 0.004:
        found = assess(state, only(DRIFT), float(list(times)[-1]), required=1)
        assert (found.verdict, found.reason) == (Verdict.INCONCLUSIVE, Reason.BREACH_PENDING)


@pytest.mark.parametrize(
    ("paces", "fires"),
    [
        pytest.param([(0, None), (9, 5.0), *[(t, 0.05) for t in range(10, 22)]], 20, id="from slow to fast"),
        pytest.param([(0, None), (9, 0.05), *[(t, 9.0) for t in range(10, 29)]], None, id="from fast to slow"),
    ],
)
def test_a_gap_is_judged_once_by_the_pace_before_it(paces: list[tuple[int, float | None]], fires: int | None) -> None:
    policy = only(replace(DRIFT, for_s=20.0), sampling_period_s=1.0)
    state, fired = begin(DIGEST, "1", 0.0), []
    for frame, (now, period) in enumerate(paces):
        arrived = sample(frame, 0.01, 0.01, period_s=period)
        state, action = step(state, arrived, policy, float(now), fallback_ready=True)
        fired += [now] if action.act is Act.SWAP else []
    assert fired == ([] if fires is None else [fires])


def test_data_of_a_time_that_is_not_yet_is_no_fresh_data() -> None:
    state, _ = feed(deers(0.1, 0.1), every=50.0)
    state, action = tick(state, POLICY, -3600.0, fallback_ready=True)
    assert (action.act, action.reason, state.stale) == (Act.HOLD, Reason.STREAM_STOPPED, True)


def test_several_breaches_are_recorded_and_the_first_rule_is_the_reason() -> None:
    both = replace(DRIFT, for_s=None, frames=3, window=3)
    for rules, reason in (((DEER, both), Reason.DEER_EXCEEDED), ((both, DEER), Reason.MAX_ABS_ERROR_EXCEEDED)):
        ordered = tuple(replace(r, order=i) for i, r in enumerate(rules))
        _, actions = feed([sample(i, 0.3, 0.3) for i in range(3)], replace(POLICY, rules=ordered))
        assert actions[-1].reason is reason
        assert {b.metric for b in actions[-1].breaches} == {M.DEER, M.MAX_ABS_ERROR}


def test_a_trip_says_how_many_frames_it_took() -> None:
    _, actions = feed(deers(0.1, 0.2, 0.2, 0.2))
    trip = actions[-1].trip
    assert trip is not None
    assert (trip.frames_to_detect, trip.frame, trip.value, trip.limit) == (3, 3, 0.2, 0.18)
    assert actions[-1].page


def test_a_trip_never_swaps_to_an_unproven_fallback_and_is_acted_on_once_there_is_one() -> None:
    state, actions = feed(deers(0.2, 0.2, 0.2, 0.2), ready=False)
    assert [a.act for a in actions] == [Act.ALERT, Act.NONE, Act.HOLD, Act.HOLD]
    assert [a.page for a in actions] == [False, False, True, False]
    assert actions[2].reason is Reason.FALLBACK_NOT_PROVEN
    assert assess(state, POLICY, 4.0).verdict is Verdict.FAIL
    state, action = tick(state, POLICY, 5.0, fallback_ready=False)
    assert action.act is Act.NONE
    state, action = tick(state, POLICY, 6.0, fallback_ready=True)
    assert (action.act, action.reason) == (Act.SWAP, Reason.DEER_EXCEEDED)


def test_of_two_held_trips_the_sentinel_decides_how_the_engine_is_latched() -> None:
    state, _ = feed([*deers(0.2, 0.2, 0.2), sample(3, math.nan)], ready=False)
    state, action = tick(state, POLICY, 5.0, fallback_ready=True)
    assert (action.act, action.reason, action.latch) == (Act.SWAP, Reason.NON_FINITE_OUTPUT, LatchKind.SENTINEL)


def test_a_stream_whose_client_is_gone_is_forgotten_with_its_open_run() -> None:
    state, _ = feed(deers(0.1, 0.2))
    assert len(tick(state, POLICY, 601.0, fallback_ready=True)[0].streams) == 1
    assert tick(state, POLICY, 602.0, fallback_ready=True)[0].streams == ()


def test_a_rule_that_holds_holds_once_until_it_passes_again() -> None:
    rule = replace(DEER, action="Hold", frames=1, window=1)
    state, actions = feed(deers(0.2, 0.2), only(rule))
    assert [a.act for a in actions] == [Act.HOLD, Act.NONE]
    assert assess(state, only(rule), 2.0, required=1).reason is Reason.DEER_EXCEEDED
    state, _ = step(state, sample(2, 0.1), only(rule), 2.0, fallback_ready=True)
    assert assess(state, only(rule), 2.0, required=1).verdict is Verdict.PASS


def test_a_rule_that_warns_neither_swaps_nor_spoils_the_verdict() -> None:
    rule = replace(DEER, action="Warn")
    state, actions = feed(deers(0.2, 0.2, 0.2, 0.2), only(rule))
    assert [a.act for a in actions] == [Act.NONE, Act.NONE, Act.WARN, Act.NONE]
    assert assess(state, only(rule), 4.0, required=4).verdict is Verdict.PASS


def test_too_few_valid_samples_never_trip() -> None:
    _, actions = feed(deers(0.2, 0.2, 0.2, 0.2, 0.2), only(replace(DEER, min_valid=5)))
    assert [i for i, a in enumerate(actions) if a.act is Act.SWAP] == [4]


def test_a_frame_sent_again_is_one_valid_sample_and_may_bring_what_was_missing() -> None:
    state, _ = feed([sample(0)] * 5)
    assert (state.counters.valid, state.counters.duplicate) == (1, 4)
    sentinel_first = sample(0, figures={M.NON_FINITE: 0.0})
    state, _ = feed([sentinel_first, sample(0), sample(0), sentinel_first])
    assert (state.counters.valid, state.counters.sentinel, state.counters.duplicate) == (1, 1, 2)
    assert state.valid_by_rule == (1, 1, 1, 1)


def test_the_longest_silent_stream_without_an_open_run_makes_room() -> None:
    policy = replace(POLICY, max_streams=3)
    order = [("open", 0.2), ("old", 0.1), ("young", 0.1), ("new", 0.1)]
    state, _ = feed([sample(0, deer, stream=name) for name, deer in order], policy)
    assert {s.name for s in state.streams} == {"open", "young", "new"}
    assert state.counters.evicted == 1


def test_a_renumbered_stream_is_followed_again_after_eight_late_frames() -> None:
    state, _ = feed([sample(1000 + i) for i in range(9)])
    acts = []
    for frame in range(12):
        state, action = step(state, sample(frame, 0.2), POLICY, 20.0 + frame, fallback_ready=True)
        acts.append(action.act)
    assert state.counters.late == 7
    assert acts.index(Act.SWAP) == 9


def test_silence_holds_once_and_never_trips_or_promotes() -> None:
    state, _ = feed(deers(0.1, 0.1, 0.2, 0.2))
    state, action = tick(state, POLICY, 64.0, fallback_ready=True)
    assert (action.act, action.reason) == (Act.HOLD, Reason.STREAM_STOPPED)
    state, action = tick(state, POLICY, 65.0, fallback_ready=True)
    assert action.act is Act.NONE
    state, action = tick(begin(DIGEST, "1", 0.0), POLICY, 61.0, fallback_ready=True)
    assert (action.act, action.reason) == (Act.HOLD, Reason.NO_DATA)


def test_a_drift_trip_is_reproven_in_probation_and_backs_off_twice_as_long_after_each_failure() -> None:
    policy = replace(POLICY, probation_samples=3, back_off_s=100.0, max_back_off_s=300.0)
    state = tripped(policy)
    waits = []
    for _ in range(4):
        assert state.latch is not None
        assert state.latch.probation_at is not None
        due = state.latch.probation_at
        waits.append(due - state.latch.at)
        early, _ = tick(state, policy, due - 1, fallback_ready=True)
        assert early.phase is Phase.SWAPPED
        state, action = tick(state, policy, due, fallback_ready=True)
        assert (state.phase, action.reason) == (Phase.PROBATION, Reason.PROBATION)
        for frame in range(3):
            state, action = step(state, sample(frame, 0.2), policy, due + frame, fallback_ready=True)
        assert (action.act, state.phase) == (Act.ALERT, Phase.SWAPPED)
    assert waits == [100.0, 200.0, 300.0, 300.0]
    assert len(state.swaps_at) == 1


def test_probation_serves_again_only_after_enough_sound_samples_with_no_run_open() -> None:
    policy = replace(POLICY, probation_samples=3)
    state = tripped(policy)
    state, _ = tick(state, policy, 100.0, fallback_ready=True)
    acts = []
    for frame, deer in enumerate((0.1, 0.1, 0.2, 0.1)):
        state, action = step(state, sample(frame, deer), policy, 100.0 + frame, fallback_ready=True)
        acts.append(action.act)
    assert acts == [Act.NONE, Act.NONE, Act.NONE, Act.REARM]
    assert (state.phase, state.latch) == (Phase.MONITOR, None)


def test_probation_waits_for_an_open_run_even_with_enough_sound_samples() -> None:
    policy = only(replace(DEER, frames=2, window=3), probation_samples=3)
    state, _ = tick(feed(deers(0.2, 0.2), policy)[0], policy, 100.0, fallback_ready=True)
    acts = []
    for frame, deer in enumerate((0.1, 0.1, 0.2, 0.1, 0.1)):
        state, action = step(state, sample(frame, deer), policy, 100.0 + frame, fallback_ready=True)
        acts.append(action.act)
    assert acts == [Act.NONE] * 4 + [Act.REARM]


@pytest.mark.parametrize(
    ("samples", "kind"),
    [
        pytest.param(deers(math.nan), LatchKind.SENTINEL, id="a NaN"),
        pytest.param([sample(0, figures={M.COLLAPSED: 1.0})], LatchKind.SENTINEL, id="a collapse"),
        pytest.param(deers(0.2, 0.2, 0.2), LatchKind.DRIFT, id="drift"),
    ],
)
def test_only_drift_may_be_reproven(samples: list[Sample], kind: LatchKind) -> None:
    state, actions = feed(samples)
    assert actions[-1].latch is kind
    state, _ = tick(state, POLICY, 1e6, fallback_ready=True)
    assert state.phase is (Phase.PROBATION if kind is LatchKind.DRIFT else Phase.SWAPPED)


def test_more_than_n_swaps_within_an_hour_latch_on_the_fallback() -> None:
    policy = replace(POLICY, probation_samples=1, max_swaps_per_hour=2, back_off_s=1.0, max_back_off_s=1.0)
    state, now, kinds = begin(DIGEST, "1", 0.0), 0.0, []
    for _ in range(3):
        for frame in range(3):
            state, action = step(state, sample(frame, 0.2), policy, now, fallback_ready=True)
        kinds.append(action.latch)
        state, _ = tick(state, policy, now + 2, fallback_ready=True)
        state, _ = step(state, sample(9, 0.1), policy, now + 3, fallback_ready=True)
        now += 10
    assert kinds == [LatchKind.DRIFT, LatchKind.DRIFT, LatchKind.FLAPPING]
    assert tick(state, policy, 1e9, fallback_ready=True)[0].phase is Phase.SWAPPED


@pytest.mark.parametrize(
    ("digest", "attempt", "phase"),
    [
        pytest.param(DIGEST, "1", Phase.SWAPPED, id="the same digest and attempt stay latched"),
        pytest.param(DIGEST, "2", Phase.IDLE, id="a new attempt clears the latch"),
        pytest.param("sha256:" + "b" * 64, "1", Phase.IDLE, id="another digest clears the latch"),
    ],
)
def test_what_clears_a_latch(digest: str, attempt: str, phase: Phase) -> None:
    state = begin(digest, attempt, 10.0, tripped())
    assert state.phase is phase
    assert len(state.swaps_at) == 1


@pytest.mark.parametrize(
    ("samples", "now", "verdict", "reason"),
    [
        pytest.param(deers(*[0.1] * 5), 5.0, Verdict.PASS, Reason.WITHIN_LIMITS, id="enough sound samples pass"),
        pytest.param(deers(*[0.1] * 4), 5.0, Verdict.INCONCLUSIVE, Reason.INSUFFICIENT_SAMPLES, id="four of five"),
        pytest.param([], 5.0, Verdict.INCONCLUSIVE, Reason.NO_DATA, id="nothing came"),
        pytest.param(deers(None, None), 5.0, Verdict.INCONCLUSIVE, Reason.INSUFFICIENT_SAMPLES, id="nothing valid"),
        pytest.param(deers(*[0.1] * 5), 65.0, Verdict.INCONCLUSIVE, Reason.STREAM_STOPPED, id="the samples are old"),
        pytest.param(deers(*[0.1] * 5, 0.2), 6.0, Verdict.INCONCLUSIVE, Reason.BREACH_PENDING, id="a run is open"),
        pytest.param(deers(0.2, 0.2, 0.2), 3.0, Verdict.FAIL, Reason.DEER_EXCEEDED, id="a trip fails"),
        pytest.param(
            [sample(i, figures={M.NON_FINITE: 0.0}) for i in range(9)], 9.0, Verdict.INCONCLUSIVE,
            Reason.INSUFFICIENT_SAMPLES, id="sentinels alone prove no candidate",
        ),
        pytest.param(
            [sample(i, None, 0.0) for i in range(9)], 9.0, Verdict.INCONCLUSIVE, Reason.INSUFFICIENT_SAMPLES,
            id="a rule that was never measurable proves no candidate",
        ),
    ],
)  # fmt: skip
def test_the_assessment_of_a_candidate(samples: list[Sample], now: float, verdict: Verdict, reason: Reason) -> None:
    policy = replace(POLICY, shadow_samples=5)
    found = assess(feed(samples, policy)[0], policy, now)
    assert (found.verdict, found.reason) == (verdict, reason)


def test_the_state_survives_json_in_every_phase() -> None:
    for samples in (deers(), deers(0.1, 0.2), deers(0.2, 0.2, 0.2), deers(math.nan), [sample(0, drift=math.inf)]):
        state, _ = feed(samples)
        again = state_from_json(json.loads(dumps(state_to_json(state))))
        assert dumps(state_to_json(again)) == dumps(state_to_json(state))
        assert replace(again, last_trip=None) == replace(state, last_trip=None)


def test_an_engine_that_is_its_own_oracle_lives_on_sentinels_alone() -> None:
    policy = sentinels_only(replace(POLICY, shadow_samples=3))
    state, _ = feed([sample(i, figures={M.NON_FINITE: 0.0}) for i in range(3)], policy)
    assert tick(state, policy, 50.0, fallback_ready=True)[1].act is Act.NONE
    assert state.counters.valid == 3
    state, action = step(state, sample(4, figures={M.COLLAPSED: 1.0}), policy, 51.0, fallback_ready=True)
    assert action.reason is Reason.COLLAPSED_OUTPUT


def test_the_stability_score_is_the_share_of_the_last_hundred_samples() -> None:
    warn = only(replace(DEER, action="Warn"))
    assert begin(DIGEST, "1", 0.0).stability is None
    state, _ = feed(deers(*[0.2] * 50, *[0.1] * 75), warn)
    assert state.stability == 0.75
