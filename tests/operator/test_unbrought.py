"""What a listing finds and no watch brings shows a watch that is dead."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import kopf
import pytest

from blurfleet.store.kubemirror import Mirror
from blurfleet_operator.handlers.lifecycle import fresh
from blurfleet_operator.unbrought import Key, Unbrought

KEY = ("default", "bokeh")
BODY = {"metadata": {"namespace": "default", "name": "bokeh", "resourceVersion": "7"}}


def stands(_kind: str, _key: Key) -> bool:
    return True


def found(**versions: int) -> Unbrought:
    made = Unbrought(within_s=120.0)
    made.found("EngineRollout", {("default", name): v for name, v in versions.items()}, now=1000.0)
    return made


@pytest.mark.parametrize(("now", "late"), [(1000.0, {}), (1120.0, {}), (1120.1, {"EngineRollout": 2})])
def test_a_watch_has_its_time_to_bring_what_a_listing_found(now: float, late: dict[str, int]) -> None:
    assert found(bokeh=7, depth=8).overdue(now, stands) == late


def test_what_the_watch_brings_is_due_no_more_and_the_rest_is() -> None:
    noted = found(bokeh=7, depth=8)
    noted.brought("EngineRollout", BODY)
    assert noted.overdue(2000.0, stands) == {"EngineRollout": 1}
    noted.brought("EngineSet", {"metadata": {"namespace": "default", "name": "depth"}})
    assert noted.overdue(2000.0, stands) == {"EngineRollout": 1}


def test_found_again_it_is_due_since_the_first_time() -> None:
    noted = found(bokeh=7)
    noted.found("EngineRollout", {KEY: 9}, now=1300.0)
    assert noted.overdue(1121.0, stands) == {"EngineRollout": 1}


def test_what_was_deleted_meanwhile_and_what_is_from_before_a_standby_is_not_due() -> None:
    noted = found(bokeh=7)
    assert noted.overdue(2000.0, lambda _kind, _key: False) == {}
    assert noted.overdue(2000.0, stands) == {}
    other = found(bokeh=7)
    other.forget()
    assert other.overdue(2000.0, stands) == {}


def body(name: str, version: int) -> Mapping[str, object]:
    return {"metadata": {"namespace": "default", "name": name, "uid": name, "resourceVersion": str(version)}}


def test_a_listing_tells_what_it_found_newer_and_nothing_that_a_watch_or_a_write_brought_before() -> None:
    mirror = Mirror(dict, lambda: None)
    mirror.take("ADDED", body("same", 3))
    mirror.take("ADDED", body("moved", 4))
    mirror.take("MODIFIED", body("ahead", 12))
    listing: list[Mapping[str, Any]] = [body("same", 3), body("moved", 6), body("ahead", 5), body("new", 7)]
    assert mirror.replace(listing, 10) == {("default", "moved"): 6, ("default", "new"): 7}
    assert mirror.replace(listing, 10) == {}
    assert (mirror.version(("default", "moved")), mirror.version(("default", "x"))) == (6, None)


def alive(*, stale: bool, blind: dict[str, int]) -> bool:
    """Ask the liveness probe of a loop in that state."""
    probe: Any = fresh
    return bool(asyncio.run(probe(memo=SimpleNamespace(loop=SimpleNamespace(stale=stale, blind=blind)))))


def test_the_probe_fails_where_the_loop_stands_still_or_a_watch_brings_nothing() -> None:
    assert alive(stale=False, blind={})
    with pytest.raises(kopf.PermanentError, match="stale"):
        alive(stale=True, blind={})
    with pytest.raises(kopf.PermanentError, match="'EngineRollout': 2"):
        alive(stale=False, blind={"EngineRollout": 2})
