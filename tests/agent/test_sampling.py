"""Sampling keeps to its budget of device time, and follows a stream in doubt frame by frame."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from blurfleet_agent.sampling import BURST_S, CALM_FRAMES, MAX_STREAMS, Budget, choose, learn


def run(budget: Budget, times: list[float], *, cost: float, stream: str = "cam") -> tuple[Budget, int]:
    taken = 0
    for now in times:
        budget, take, _ = choose(budget, stream, now)
        if take:
            taken += 1
            budget = learn(budget, stream, took_s=cost, breached=False)
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
    budget = learn(budget, "cam", took_s=0.05, breached=True)
    for i in range(1, CALM_FRAMES + 1):
        budget, take, period = choose(budget, "cam", i / 30)
        assert take
        assert period is not None
        assert abs(period - 1 / 30) < 1e-6
        budget, other, _ = choose(budget, "second", i / 30)
        assert not other
        budget = learn(budget, "cam", took_s=0.05, breached=False)
    assert not choose(budget, "cam", 0.6)[1]


@given(st.lists(st.tuples(st.floats(0, 5), st.sampled_from(["a", "b", "c"]), st.booleans()), max_size=60))
def test_the_budget_stays_within_its_bounds(frames: list[tuple[float, str, bool]]) -> None:
    budget, now = Budget(share=0.2, hz=10.0), 0.0
    for gap, stream, breached in frames:
        now += gap
        budget, take, _ = choose(budget, stream, now)
        if take:
            budget = learn(budget, stream, took_s=0.05, breached=breached)
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
