"""Sampling keeps to its budget of device time, and follows a stream in doubt frame by frame."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blurfleet.api.policy import MetricName
from blurfleet.quality.guard import begin, step
from blurfleet.quality.rules import BoundRule
from blurfleet.quality.state import Act, GuardPolicy, Sample
from blurfleet_agent.sampling import BURST_S, CALM_FRAMES, HOT_SHARE, MAX_STREAMS, Budget, choose, learn

DRIFT = BoundRule(
    order=0, metric=MetricName.MAX_ABS_ERROR, limit=0.0035, action="Swap", frames=None, window=1, for_s=120.0
)


def run(budget: Budget, times: list[float], *, cost: float, stream: str = "cam") -> tuple[Budget, int]:
    taken = 0
    for now in times:
        budget, take, _ = choose(budget, stream, now)
        if take:
            taken += 1
            budget = learn(budget, stream, now, took_s=cost, breached=False)
    return budget, taken


def test_ten_percent_of_device_time_at_fifty_milliseconds_a_sample_is_two_a_second() -> None:
    times = [i / 30 for i in range(30 * 60)]
    _, taken = run(Budget(share=0.1, hz=20.0, cost_s=0.05, saved_s=0.0), times, cost=0.05)
    assert abs(taken - 120) <= 2


def test_cheap_samples_stop_at_the_rate_limit() -> None:
    times = [i / 100 for i in range(100 * 10)]
    _, taken = run(Budget(share=0.5, hz=20.0, cost_s=0.001), times, cost=0.001)
    assert 190 <= taken <= 201


def test_after_a_breach_every_frame_of_that_stream_is_taken_and_of_no_other() -> None:
    budget, take, _ = choose(Budget(share=0.01, hz=20.0, cost_s=0.05, saved_s=0.05), "cam", 0.0)
    assert take
    budget = learn(budget, "cam", 0.0, took_s=0.05, breached=True)
    for i in range(1, CALM_FRAMES + 1):
        budget, take, period = choose(budget, "cam", i / 30)
        assert take
        assert period is None if i == 1 else abs((period or 0.0) - 1 / 30) < 1e-6
        budget, other, _ = choose(budget, "second", i / 30)
        assert not other
        budget = learn(budget, "cam", i / 30, took_s=0.05, breached=False)
    assert not choose(budget, "cam", 0.6)[1]


@given(st.lists(st.tuples(st.floats(0, 5), st.sampled_from(["a", "b", "c"]), st.booleans()), max_size=60))
def test_the_budget_stays_within_its_bounds(frames: list[tuple[float, str, bool]]) -> None:
    budget, now = Budget(share=0.2, hz=10.0), 0.0
    for gap, stream, breached in frames:
        now += gap
        budget, take, _ = choose(budget, stream, now)
        if take:
            budget = learn(budget, stream, now, took_s=0.05, breached=breached)
        assert -BURST_S <= budget.saved_s <= BURST_S


def test_the_number_of_streams_followed_is_bounded() -> None:
    budget = Budget(share=1.0, hz=1000.0, cost_s=0.0)
    for i in range(3 * MAX_STREAMS):
        budget, _, _ = choose(budget, f"stream-{i}", float(i))
    assert len(budget.streams) == MAX_STREAMS


def test_a_sample_dearer_than_the_whole_purse_slows_sampling_and_never_ends_it() -> None:
    budget = Budget(share=0.5, hz=20.0, cost_s=6 * BURST_S)
    taken = 0
    for second in range(60):
        budget, sampled, _ = choose(budget, "camera", float(second))
        taken += sampled
    assert 5 <= taken <= 20


def test_answers_that_take_seconds_on_a_busy_device_do_not_end_sampling() -> None:
    budget, _ = run(Budget(share=0.1, hz=20.0), [float(i) for i in range(60)], cost=8.0)
    assert budget.cost_s <= 0.5
    _, taken = run(budget, [60 + i / 10 for i in range(600)], cost=8.0)
    assert taken >= 11


def trips_at(gaps: list[float]) -> float | None:
    """Sample a stream whose every frame breaches and whose frames come `gaps` apart; return when `for: 2m` trips."""
    policy = GuardPolicy(rules=(DRIFT,))
    budget, state, now = Budget(share=1.0, hz=1e9, cost_s=0.0), begin("d", "1", 0.0), 0.0
    for frame, gap in enumerate([0.0, *gaps]):
        now += gap
        budget, _, period = choose(budget, "cam", now)
        figures = {MetricName.MAX_ABS_ERROR: 0.01}
        sample = Sample(stream="cam", frame=frame, digest="d", figures=figures, period_s=period)
        state, action = step(state, sample, policy, now, fallback_ready=True)
        budget = learn(budget, "cam", now, took_s=0.0, breached=True)
        if action.act is Act.SWAP:
            return now
    return None


@given(st.sampled_from([0.05, 0.2, 0.6]), st.integers(0, 10**6))
@settings(max_examples=8, deadline=None)
def test_a_breach_that_lasts_trips_however_its_frames_are_jittered(mean: float, seed: int) -> None:
    chance = random.Random(seed)
    count = int(130 / mean)
    found = trips_at([mean * chance.uniform(0.4, 1.6) for _ in range(2 * count)])
    assert found is not None
    assert 120.0 <= found <= 120.0 + 2 * 1.6 * mean


@pytest.mark.parametrize("mean", [0.05, 0.2, 0.5, 1.0, 3.0])
def test_a_breach_that_lasts_trips_when_frames_come_at_random(mean: float) -> None:
    for seed in range(3):
        chance = random.Random(seed)
        found = trips_at([chance.expovariate(1.0 / mean) for _ in range(int(400 / mean))])
        assert found is not None
        assert 120.0 <= found <= 120.0 + max(10.0, 40.0 * mean)


@pytest.mark.parametrize(
    "gaps",
    [
        pytest.param([0.05, 125.0], id="three frames, two of them in one moment"),
        pytest.param([0.05] * 400 + [125.0] + [0.05] * 400, id="a pause within a fast stream"),
        pytest.param([0.05, 125.0, 0.05, 250.0, 0.05, 125.0], id="pauses teach no period that would bridge the next"),
        pytest.param([3.0] * 20 + [61.0, 3.0], id="twenty periods are not two"),
    ],
)
def test_breaches_far_apart_are_no_breach_that_lasts(gaps: list[float]) -> None:
    assert trips_at(gaps) is None


def test_a_frame_that_could_not_be_judged_lengthens_the_period_rather_than_shortening_it() -> None:
    budget, periods = Budget(share=1.0, hz=1e9, cost_s=0.0), []
    for i in range(200):
        budget, _, period = choose(budget, "cam", float(i))
        periods.append(period)
        budget = learn(budget, "cam", float(i), took_s=0.0, breached=False, judged=i % 2 == 0)
    assert periods[-1] == pytest.approx(2.0)


def test_a_stream_that_breaches_for_ever_takes_nothing_from_the_others() -> None:
    cost, seconds = 0.05, 60
    budget, taken = Budget(share=0.1, hz=20.0, cost_s=cost, saved_s=0.0), {"broken": 0, "sound": 0}
    budget = learn(choose(budget, "broken", 0.0, urgent=True)[0], "broken", 0.0, took_s=cost, breached=True)
    for i in range(30 * seconds):
        for stream in taken:
            budget, take, _ = choose(budget, stream, i / 30)
            if take:
                taken[stream] += 1
                budget = learn(budget, stream, i / 30, took_s=cost, breached=stream == "broken")
    assert abs(taken["sound"] - 0.1 * seconds / cost) <= 3
    assert abs(taken["broken"] - (HOT_SHARE * seconds + BURST_S) / cost) <= 3


def test_streams_in_doubt_share_alike_and_the_device_keeps_the_rest() -> None:
    cost, seconds = 0.05, 120
    budget, taken = Budget(share=0.01, hz=20.0, cost_s=cost), {f"s{i}": 0 for i in range(8)}
    for i in range(30 * seconds):
        for n, stream in enumerate(taken):
            if n and i % 5:
                continue  # the first stream's frames come five times as often
            budget, take, _ = choose(budget, stream, i / 30, urgent=i == 0)
            if take:
                taken[stream] += 1
                budget = learn(budget, stream, i / 30, took_s=cost, breached=True)
    assert max(taken.values()) <= 1.1 * min(taken.values())
    assert sum(taken.values()) * cost <= HOT_SHARE * seconds + len(taken) * BURST_S + 1.0


def test_a_clock_set_back_does_not_stop_sampling() -> None:
    budget, taken = run(Budget(share=1.0, hz=20.0, cost_s=0.0), [1e6 + i for i in range(5)], cost=0.0)
    assert taken == 5
    _, taken = run(budget, [1e3 + i for i in range(5)], cost=0.0)
    assert taken == 5
