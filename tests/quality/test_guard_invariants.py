"""What holds for every stream of samples."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from blurfleet.api.policy import MetricName as M
from blurfleet.check import dumps
from blurfleet.quality.guard import begin, step, tick
from blurfleet.quality.rules import BoundRule
from blurfleet.quality.runs import REORDER_FRAMES
from blurfleet.quality.shadow import assess
from blurfleet.quality.state import Act, GuardPolicy, GuardState, Phase, Sample, state_from_json, state_to_json
from blurfleet.quality.verdict import Verdict

DIGEST = "sha256:" + "a" * 64
DEER = BoundRule(order=0, metric=M.DEER, limit=0.18, action="Swap", frames=3, window=3)
POLICY = GuardPolicy(rules=(DEER,), shadow_samples=1, stale_after_s=1e9)
MARKS = st.lists(st.sampled_from("bp-"), max_size=25)
VALUES = {"b": 0.2, "p": 0.1, "-": None, "n": math.nan}
HYPOTHESIS = settings(max_examples=150, deadline=None)


def sample(frame: int, mark: str, stream: str = "cam") -> Sample:
    return Sample(stream=stream, frame=frame, digest=DIGEST, figures={M.DEER: VALUES[mark]})


def fires(samples: list[Sample], policy: GuardPolicy = POLICY) -> int | None:
    state = begin(DIGEST, "", 0.0)
    for index, item in enumerate(samples):
        state, action = step(state, item, policy, float(index), fallback_ready=True)
        if action.act is Act.SWAP:
            return index
    return None


@given(MARKS, st.integers(1, 6), st.integers(0, 6))
@HYPOTHESIS
def test_k_of_n_agrees_with_counting_every_window_by_hand(marks: list[str], k: int, extra: int) -> None:
    n = k + extra
    valid = [(i, m) for i, m in enumerate(marks) if m != "-"]
    want = next(
        (i for at, (i, _) in enumerate(valid) if sum(m == "b" for _, m in valid[max(0, at + 1 - n) : at + 1]) >= k),
        None,
    )
    policy = replace(POLICY, rules=(replace(DEER, frames=k, window=n),))
    assert fires([sample(i, m) for i, m in enumerate(marks)], policy) == want


@given(MARKS, st.randoms(use_true_random=False))
@HYPOTHESIS
def test_what_trips_in_order_trips_in_any_order_within_the_buffer(marks: list[str], random: Random) -> None:
    samples = [sample(i, m) for i, m in enumerate(marks)]
    shuffled: list[Sample] = []
    for at in range(0, len(samples), REORDER_FRAMES):
        block = samples[at : at + REORDER_FRAMES]
        random.shuffle(block)
        shuffled += block
    if fires(samples) is not None:
        assert fires(shuffled) is not None


@given(MARKS, st.lists(st.integers(0, 24), max_size=10))
@HYPOTHESIS
def test_duplicates_never_matter(marks: list[str], again: list[int]) -> None:
    samples = [sample(i, m) for i, m in enumerate(marks)]
    doubled = []
    for i, item in enumerate(samples):
        doubled += [item] * (1 + again.count(i))
    plain, noisy = fires(samples), fires(doubled)
    assert (plain is None) == (noisy is None)
    if plain is not None and noisy is not None:
        assert doubled[noisy].frame == samples[plain].frame


@given(st.lists(st.sampled_from("bp-"), max_size=12), st.booleans())
@HYPOTHESIS
def test_nan_always_fails_at_once(marks: list[str], ready: bool) -> None:
    state = begin(DIGEST, "", 0.0)
    for index, mark in enumerate([*marks, "n"]):
        state, action = step(state, sample(index, mark), POLICY, float(index), fallback_ready=ready)
    assert assess(state, POLICY, float(len(marks))).verdict is Verdict.FAIL
    assert ready or action.act is Act.HOLD


@given(st.lists(st.sampled_from("bp-n"), max_size=30))
@HYPOTHESIS
def test_the_guard_never_swaps_to_an_unproven_fallback(marks: list[str]) -> None:
    state = begin(DIGEST, "", 0.0)
    for index, mark in enumerate(marks):
        state, action = step(state, sample(index, mark), POLICY, float(index), fallback_ready=False)
        assert action.act is not Act.SWAP
        state, action = tick(state, POLICY, float(index), fallback_ready=False)
        assert action.act is not Act.SWAP
        assert state.phase is not Phase.SWAPPED


@given(st.integers(0, 20), st.integers(1, 30))
@HYPOTHESIS
def test_missing_data_never_passes(invalid: int, required: int) -> None:
    state = begin(DIGEST, "", 0.0)
    for index in range(invalid):
        state, _ = step(state, sample(index, "-"), POLICY, float(index), fallback_ready=True)
    for index in range(required - 1):
        state, _ = step(state, sample(invalid + index, "p"), POLICY, float(index), fallback_ready=True)
    assert assess(state, POLICY, 0.0, required=required).verdict is Verdict.INCONCLUSIVE


def _size(state: GuardState) -> int:
    return len(dumps(state_to_json(state), indent=None))


@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 10_000), st.sampled_from("bp")), max_size=200))
@settings(max_examples=25, deadline=None)
def test_memory_is_bounded_however_many_streams_and_frames_come(arrivals: list[tuple[int, int, str]]) -> None:
    rule = replace(DEER, frames=20, window=20)
    policy = replace(POLICY, rules=(rule,), max_streams=8)
    state = begin(DIGEST, "", 0.0)
    for index, (stream, frame, mark) in enumerate(arrivals):
        state, _ = step(state, sample(frame, mark, f"s{stream}"), policy, float(index), fallback_ready=False)
        assert len(state.streams) <= 8
        assert all(len(s.entries) <= REORDER_FRAMES for s in state.streams)
        assert all(len(run.recent) < 20 for s in state.streams for run in s.runs)
    assert _size(state) < 20_000


@given(st.lists(st.tuples(st.integers(0, 30), st.sampled_from("bp-n")), max_size=30), st.booleans())
@HYPOTHESIS
def test_a_step_from_the_state_read_back_is_the_same_step(arrivals: list[tuple[int, str]], ready: bool) -> None:
    straight = restored = begin(DIGEST, "", 0.0)
    for index, (frame, mark) in enumerate(arrivals):
        item = sample(frame, mark)
        straight, first = step(straight, item, POLICY, float(index), fallback_ready=ready)
        restored = state_from_json(state_to_json(restored))
        restored, second = step(restored, item, POLICY, float(index), fallback_ready=ready)
        assert (first.act, first.reason, first.message) == (second.act, second.reason, second.message)
        assert dumps(state_to_json(straight)) == dumps(state_to_json(restored))


@given(st.lists(st.floats(0, 50), min_size=1, max_size=30), st.lists(st.booleans(), min_size=30, max_size=30))
@HYPOTHESIS
def test_a_run_over_time_agrees_with_following_it_by_hand(steps: list[float], breach: list[bool]) -> None:
    rule = BoundRule(order=0, metric=M.MAX_ABS_ERROR, limit=0.1, action="Swap", frames=None, for_s=60.0, max_gap_s=20.0)
    policy = replace(POLICY, rules=(rule,))
    now, first, last, want, got = 0.0, None, None, None, None
    state = begin(DIGEST, "", 0.0)
    for index, wait in enumerate(steps):
        now += wait
        figures = {M.MAX_ABS_ERROR: 0.2 if breach[index] else 0.0}
        item = Sample(stream="cam", frame=index, digest=DIGEST, figures=figures)
        if breach[index]:
            first = now if first is None or last is None or now - last > 20.0 + 1e-9 else first
            last = now
            want = index if want is None and now - first >= 60.0 - 1e-9 else want
        else:
            first = last = None
        state, action = step(state, item, policy, now, fallback_ready=True)
        got = index if got is None and action.act is Act.SWAP else got
    assert got == want
