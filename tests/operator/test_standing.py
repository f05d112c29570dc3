"""Which of several operators acts."""

from __future__ import annotations

from typing import Any

import pytest

from blurfleet.api.meta import timestamp
from blurfleet.errors import StoreError
from blurfleet.reasons import Reason
from blurfleet_operator.decide.standing import peers, stand

NOW = 1_800_000_000.0


def entry(priority: int, seen_s_ago: float = 0.0, lifetime: int = 15) -> dict[str, Any]:
    return {"priority": priority, "lifetime": lifetime, "lastseen": timestamp(NOW - seen_s_ago)}


CASES: dict[str, tuple[dict[str, Any], str, bool, Reason]] = {
    "nobody else": ({}, "", True, Reason.ACTING),
    "itself is no peer": ({"me": entry(50)}, "me", True, Reason.ACTING),
    "a lower one waits": ({"b": entry(10)}, "", True, Reason.ACTING),
    "a higher one acts": ({"a": entry(100)}, "", False, Reason.STANDING_BY),
    "a higher one acts although this one still holds the lease": (
        {"a": entry(100)},
        "me",
        False,
        Reason.STANDING_BY,
    ),
    "a higher one was last heard from within its lifetime": ({"a": entry(100, 14.9)}, "", False, Reason.STANDING_BY),
    "a higher one is gone once its lifetime is over": ({"a": entry(100, 15.0)}, "", True, Reason.ACTING),
    "of two equal ones neither acts": ({"a": entry(50)}, "me", False, Reason.PRIORITY_SHARED),
    "a lower one still holds the lease": ({"b": entry(10)}, "b", False, Reason.HANDING_OVER),
    "a lost one's lease has not run out": ({}, "b", False, Reason.HANDING_OVER),
    "an entry without a time was seen now": ({"a": {"priority": 100}}, "", False, Reason.STANDING_BY),
}


@pytest.mark.parametrize(("status", "holder", "acts", "reason"), CASES.values(), ids=CASES)
def test_one_acts(status: dict[str, Any], holder: str, acts: bool, reason: Reason) -> None:
    standing = stand("me", 50, peers(status, NOW), holder, NOW)
    assert (standing.acts, standing.reason) == (acts, reason)


@pytest.mark.parametrize("bad", ["soon", {"priority": "high"}, {"lifetime": None}])
def test_an_entry_that_is_none_lets_nobody_act(bad: Any) -> None:
    with pytest.raises(StoreError, match="peering entry x cannot be read"):
        peers({"x": bad}, NOW)
