"""How many verdicts of a rollout are kept."""

from __future__ import annotations

from dataclasses import replace

import pytest
from simulated_fleet import NOW, Fleet, Script, digest

from blurfleet.api.kinds import Resource
from blurfleet.api.meta import timestamp
from blurfleet_operator.decide.verdicts import outdated
from blurfleet_operator.reconcile import reconcile


@pytest.fixture
def run() -> Resource:
    """One verdict as the operator writes it."""
    fleet = Fleet()
    fleet.set("fp32")
    fleet.promote("fp32")
    fleet.set("naive", precision="FP16")
    fleet.script = Script(golden={("*", digest("naive-a100")): "oracle passes"})
    fleet.change(engine_set="naive")
    fleet.until(lambda: bool(fleet.store.objects("QualityRun")))
    found: Resource = fleet.store.objects("QualityRun")[0]
    return found


def aged(run: Resource, number: int, rollout: str = "bokeh") -> Resource:
    spec = run.spec.model_copy(update={"at": timestamp(NOW - number), "rollout": rollout})
    return replace(run, spec=spec, meta=run.meta.model_copy(update={"name": f"{rollout}-{number}"}))


@pytest.mark.parametrize(("limit", "gone"), [(1, [1, 2, 3]), (3, [3]), (4, [])])
def test_the_newest_of_each_rollout_stay_up_to_the_limit(run: Resource, limit: int, gone: list[int]) -> None:
    runs = [aged(run, n, rollout) for n in range(4) for rollout in ("bokeh", "other")]
    found = outdated(runs, frozenset(), NOW, limit)
    assert sorted(r.meta.name for r in found) == [f"{r}-{n}" for r in ("bokeh", "other") for n in gone]


def test_a_hundred_are_kept_where_nothing_is_set_and_one_still_reported_does_not_count(run: Resource) -> None:
    runs = [aged(run, n) for n in range(102)]
    assert [r.meta.name for r in outdated(runs, frozenset(), NOW)] == ["bokeh-100", "bokeh-101"]
    assert [r.meta.name for r in outdated(runs, frozenset({runs[0].key}), NOW)] == ["bokeh-101"]


def test_the_limit_that_an_operator_is_started_with_holds_in_its_passes(run: Resource) -> None:
    fleet = Fleet()
    for number in range(5):
        fleet.store.apply(aged(run, number))
    reconcile(fleet.store, fleet.now, history_limit=2)
    assert [r.meta.name for r in fleet.store.objects("QualityRun")] == ["bokeh-0", "bokeh-1"]
