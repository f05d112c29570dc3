"""Who is heard, and by which clock: heartbeats are compared with themselves, never with another machine's time."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from simulated_fleet import NOW

from blurfleet.api.meta import timestamp
from blurfleet_operator.decide.hearing import Hearing, hear

AWAY = 30.0
START = 1000.0
STEP = 10.0


def listen(
    beats: Iterable[str | None], hearing: Hearing | None = None, *, began: float = START, step: float = STEP
) -> Hearing:
    """Hear node n say each of `beats` in turn, `step` seconds apart; None says nothing new."""
    found, text, now = hearing or Hearing(), "", began
    if hearing is not None:
        text = hearing.nodes["n"].text
    for beat in beats:
        text = beat if beat is not None else text
        found = hear(found, {"n": text}, now, wall=NOW + now, away=AWAY)
        now += step
    return found


def clock(off: float, at: float) -> str:
    """What a node writes at the listener's time `at` whose clock is `off` seconds ahead."""
    return timestamp(NOW + at + off)


def alive(off: float, *, beats: int, began: float = START) -> list[str | None]:
    """A node that renews every 30 s while it is listened to every 10 s."""
    return [clock(off, began + STEP * i) if i % 3 == 0 else None for i in range(beats)]


@pytest.mark.parametrize("off", [0.0, -120.0, -86400.0, 60.0, 6 * 3600.0])
def test_a_node_that_speaks_is_heard_whatever_its_clock_says(off: float) -> None:
    found = listen(alive(off, beats=60))
    assert (found.hears("n"), found.silent) == (True, frozenset())
    assert found.since("n") <= 30.0


@pytest.mark.parametrize("off", [0.0, -120.0, 60.0, 6 * 3600.0])
def test_a_node_that_is_dead_is_silent_after_the_limit_whatever_its_clock_said(off: float) -> None:
    speaking = listen(alive(off, beats=13))
    last = START + 120.0
    quiet = listen([None] * 9, speaking, began=last + STEP)
    assert (quiet.hears("n"), quiet.silent) == (True, frozenset())
    dead = listen([None] * 2, quiet, began=last + 100.0)
    assert not dead.hears("n")
    assert dead.silent == {"n"}


@pytest.mark.parametrize(
    ("age", "heard"),
    [
        pytest.param(5.0, True, id="it looks recent"),
        pytest.param(-5.0, True, id="its clock is a little ahead"),
        pytest.param(120.0, False, id="it looks old"),
        pytest.param(-3600.0, False, id="it is from the future"),
    ],
)
def test_what_was_there_at_the_start_is_heard_if_recent_and_never_silent_before_the_limit(
    age: float, heard: bool
) -> None:
    found = listen([clock(-age, START)])
    assert (found.hears("n"), found.silent) == (heard, frozenset())
    later = listen([None] * 8, found, began=START + STEP)
    assert later.silent == frozenset()
    assert listen([None] * 2, later, began=START + 90.0).silent == {"n"}


def test_its_age_at_the_start_counts_where_it_can_be_told() -> None:
    found = listen([clock(-60.0, START)])
    assert found.since("n") == pytest.approx(60.0)
    assert listen([None] * 4, found, began=START + STEP).silent == {"n"}


def test_after_an_outage_nobody_is_silent_at_once_and_who_looks_old_is_heard_only_when_it_speaks() -> None:
    speaking = listen(alive(0.0, beats=13))
    back = START + 120.0 + 300.0
    found = listen([None], speaking, began=back)
    assert (found.hears("n"), found.silent) == (False, frozenset())
    spoke = listen([None, clock(0.0, back + 20.0)], found, began=back + STEP)
    assert spoke.hears("n")
    assert listen([None] * 10, found, began=back + STEP).silent == {"n"}


def test_what_was_said_during_an_outage_is_heard_only_if_it_looks_recent() -> None:
    speaking = listen(alive(0.0, beats=13))
    back = START + 7200.0
    assert listen([clock(0.0, back - 20.0)], speaking, began=back).hears("n")
    assert not listen([clock(0.0, back - 3600.0)], speaking, began=back).hears("n")


def test_a_node_that_was_silent_before_an_outage_stays_so_until_it_speaks() -> None:
    dead = listen([None] * 12, listen(alive(0.0, beats=1)), began=START + STEP)
    assert dead.silent == {"n"}
    after = listen([None], dead, began=START + 5000.0)
    assert after.silent == {"n"}
    assert listen([clock(0.0, START + 5010.0)], after, began=START + 5010.0).hears("n")


def test_a_node_that_never_spoke_is_neither_heard_nor_silent_and_one_that_went_is_forgotten() -> None:
    found = listen([""] * 20)
    assert (found.hears("n"), found.silent) == (False, frozenset())
    assert found.hears("other") is False
    gone = hear(found, {}, START + 201.0, wall=NOW, away=AWAY)
    assert (dict(gone.nodes), gone.behind("n"), gone.since("n")) == ({}, 0.0, 0.0)


@pytest.mark.parametrize(
    ("off", "behind"),
    [
        pytest.param(0.0, 0.0, id="a right clock"),
        pytest.param(-9.0, 0.0, id="within what delivery takes"),
        pytest.param(-300.0, 300.0, id="five minutes behind"),
        pytest.param(3600.0, -3600.0, id="an hour ahead"),
    ],
)
def test_how_wrong_a_clock_is_shows_when_the_node_speaks(off: float, behind: float) -> None:
    assert listen([clock(off, START), None, clock(off, START + 20.0)]).behind("n") == pytest.approx(behind)
    assert listen([clock(off, START)]).behind("n") == 0.0


def test_a_clock_that_was_put_right_is_right() -> None:
    wrong = listen([clock(-300.0, START), clock(-300.0, START + STEP)])
    assert wrong.behind("n") == pytest.approx(300.0)
    assert listen([clock(0.0, START + 20.0)], wrong, began=START + 20.0).behind("n") == 0.0


def test_the_newest_of_a_lease_and_a_status_tells_and_a_change_of_either_is_heard() -> None:
    old = clock(-3600.0, START)
    first = listen([f"{clock(0.0, START)} {old}"])
    assert first.hears("n")
    lost = listen([None] * 12, first, began=START + STEP)
    assert lost.silent == {"n"}
    assert listen([f"{clock(0.0, START)} {clock(0.0, START + 130.0)}"], lost, began=START + 130.0).hears("n")


def test_the_limit_may_be_another() -> None:
    short = hear(Hearing(limit=12.0), {"n": clock(0.0, START)}, START, wall=NOW + START, away=AWAY)
    assert listen([None] * 1, short, began=START + 12.0).silent == frozenset()
    assert listen([None] * 1, short, began=START + 12.1).silent == {"n"}
