"""The operator's alarm rings once for each bad news, and for nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from blurfleet_operator.alarm import Alarm, bad_news


def body(name: str = "orin-0", **model: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "status": {"models": [{"name": "bokeh", **model}]}}


TRIP = {"digest": "sha256:a", "at": "2026-01-01T00:00:00.000Z"}
LATER = {**TRIP, "at": "2026-01-01T00:00:09.000Z"}


def failed(phase: str) -> dict[str, Any]:
    return {"phase": phase, "digest": "sha256:b", "attempt": "u/1/"}


@pytest.mark.parametrize(
    ("what", "news", "rings"),
    [
        ("a trip", body(lastTrip=TRIP), True),
        ("a candidate that fails golden frames", body(candidate=failed("GoldenFailed")), True),
        ("a candidate that fails in shadow", body(candidate=failed("Failed")), True),
        ("a candidate that is proven", body(candidate=failed("Proven")), False),
        ("a node that serves", body(serving={"digest": "sha256:a"}), False),
        ("a node that says nothing yet", {"metadata": {"name": "orin-0"}}, False),
    ],
)
def test_what_rings(what: str, news: dict[str, Any], rings: bool) -> None:
    alarm = Alarm()
    alarm.heard(body())
    alarm.heard(news)
    assert alarm.rings() is rings, what


def test_the_same_trip_rings_once_however_often_it_is_reported_a_later_one_again() -> None:
    alarm, rang = Alarm(), []
    for trip in (TRIP, TRIP, LATER, LATER):
        alarm.heard(body(lastTrip=trip))
        rang.append(alarm.rings())
        alarm.hush()
    assert rang == [True, False, True, False]


def test_another_nodes_trip_on_the_same_engine_rings() -> None:
    alarm = Alarm()
    alarm.heard(body(lastTrip=TRIP))
    alarm.hush()
    alarm.heard(body("orin-1", lastTrip=TRIP))
    assert alarm.rings()


def test_a_status_of_a_newer_version_is_read_as_far_as_it_is_known() -> None:
    assert bad_news({"metadata": {"name": "x"}, "status": {"models": [{"lastTrip": None, "candidate": {}}]}}) == set()
    assert bad_news({"metadata": {"name": "x"}, "status": None}) == set()
