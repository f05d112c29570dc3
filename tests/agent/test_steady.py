"""A clock for timers that nobody can set."""

from __future__ import annotations

from blurfleet_agent.steady import steady_clock


def test_a_steady_clock_starts_at_the_wall_and_follows_only_what_passed() -> None:
    wall, ticks = [1_800_000_000.0], [5.0]
    clock = steady_clock(lambda: wall[0], lambda: ticks[0])
    assert clock() == 1_800_000_000.0
    wall[0], ticks[0] = 0.0, 65.0
    assert clock() == 1_800_000_060.0
