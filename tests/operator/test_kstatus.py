"""How our objects read to Flux, `kubectl wait` and Argo CD: kstatus by its published rules, and the real Lua script."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from lupa.lua51 import LuaRuntime
from simulated_fleet import Fleet, digest, policy_spec, resource

from blurfleet.api.meta import condition, timestamp
from blurfleet.api.policy import PolicySpec
from blurfleet.api.rollout import Phase
from blurfleet.reasons import Reason
from blurfleet.store.port import Ref
from blurfleet_operator.decide.kstatus import rollout_state

GITOPS = Path(__file__).parents[2] / "docs/gitops.md"
Story = Callable[[Fleet], None]


def kstatus(body: Mapping[str, Any]) -> str:
    """Judge an object as cli-utils documents it: generation first, then the abnormal-true conditions, then Ready."""
    if body["metadata"].get("deletionTimestamp"):
        return "Terminating"
    status = body.get("status", {})
    observed = status.get("observedGeneration")
    if observed is not None and observed != body["metadata"].get("generation", 0):
        return "InProgress"
    said = {c["type"]: c["status"] for c in status.get("conditions", ())}
    if said.get("Reconciling") == "True":
        return "InProgress"
    if said.get("Stalled") == "True":
        return "Failed"
    return "Current" if said.get("Ready", "True") == "True" else "InProgress"


@pytest.fixture(scope="module")
def argo() -> Callable[[Mapping[str, Any]], tuple[str, str]]:
    """The health scripts of docs/gitops.md, run by a real Lua 5.1, as Argo CD's is, over the object as `obj`."""
    text = GITOPS.read_text(encoding="utf-8")
    [block] = [b for b in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if "resource.customizations" in b]
    scripts = {k.rsplit("_", 1)[1]: v for k, v in yaml.safe_load(block)["data"].items() if ".health." in k}

    def judge(body: Mapping[str, Any]) -> tuple[str, str]:
        lua = LuaRuntime(unpack_returned_tuples=True)
        lua.globals().obj = lua.table_from(body, recursive=True)
        answer = lua.execute(scripts[body["kind"]])
        return answer["status"], answer["message"]

    return judge


def body_of(fleet: Fleet, kind: str = "EngineRollout", name: str = "bokeh") -> Mapping[str, Any]:
    found = fleet.store.get(Ref(kind=kind, name=name, namespace="default"))
    assert found is not None
    return found.wire()


def under_way(fleet: Fleet) -> None:
    fleet.set("mixed", precision="Mixed")
    fleet.rollout("mixed")
    fleet.tick(2)


def promoted(fleet: Fleet) -> None:
    fleet.set("good", precision="Mixed")
    fleet.promote("good")


def gated(fleet: Fleet) -> None:
    promoted(fleet)
    fleet.set("next", precision="Mixed")
    fleet.change(engine_set="next", waves=[{"name": "all", "percent": 100, "gate": "Manual"}])
    fleet.until(lambda: fleet.said("Ready")[1] == "WaitingForGate")


def without_data(fleet: Fleet) -> None:
    promoted(fleet)
    fleet.set("next", precision="Mixed")
    fleet.script = replace(fleet.script, shadow={("*", digest("next-a100")): "no data"})
    fleet.change(engine_set="next")
    fleet.until(lambda: fleet.said("Ready")[1] == "HoldNoData")


def stuck(fleet: Fleet) -> None:
    without_data(fleet)
    fleet.until(lambda: fleet.said("Ready")[1] == "ProgressDeadlineExceeded", ticks=700)


def going_back(fleet: Fleet) -> None:
    promoted(fleet)
    fleet.set("bad", precision="Mixed")
    fleet.promote("bad")
    fleet.script = replace(fleet.script, live={("*", digest("bad-jetson-orin")): "DEERExceeded"})
    fleet.until(lambda: fleet.status().phase == "RollingBack")


def gone_back(fleet: Fleet) -> None:
    going_back(fleet)
    fleet.until(lambda: fleet.status().phase == "RolledBack")


def aborted(fleet: Fleet) -> None:
    gated(fleet)
    fleet.ops(abort="stop")
    fleet.until(lambda: fleet.status().phase == "Aborted")


def tripped_later(fleet: Fleet) -> None:
    promoted(fleet)
    fleet.script = replace(fleet.script, live={("orin-0", digest("good-jetson-orin")): "DEERExceeded"})
    fleet.until(lambda: fleet.said("Ready")[1] == "HoldTripped")


def silent_later(fleet: Fleet) -> None:
    promoted(fleet)
    fleet.script = replace(fleet.script, silent=frozenset({"orin-0"}))
    fleet.until(lambda: fleet.said("Ready")[1] == "PartialFleet", ticks=200)


def paused(fleet: Fleet) -> None:
    promoted(fleet)
    fleet.set("next", precision="Mixed")
    fleet.change(engine_set="next", paused=True)
    fleet.until(lambda: fleet.said("Ready")[1] == "Paused")


def arriving(fleet: Fleet) -> None:
    fleet.rollout("late")
    fleet.tick(2)


def never_arrived(fleet: Fleet) -> None:
    fleet.rollout("late")
    fleet.tick(32)


def vanished_mid_way(fleet: Fleet) -> None:
    gated(fleet)
    fleet.tick(5, seconds=60.0)
    fleet.change(engine_set="late")
    fleet.tick(2)


def owned(fleet: Fleet) -> None:
    promoted(fleet)
    fleet.rollout("good", name="zz-second")
    fleet.tick(2)


def unselected(fleet: Fleet) -> None:
    fleet.set("good", precision="Mixed")
    fleet.rollout("good", selector={"nodes": ["nobody"]})
    fleet.tick(2)


def without_variant(fleet: Fleet) -> None:
    fleet.set("narrow", precision="Mixed", classes=("a100",))
    fleet.rollout("narrow")
    fleet.tick(3)


def refused_again(fleet: Fleet) -> None:
    gone_back(fleet)
    fleet.change(engine_set="bad", paused=False)
    fleet.tick(3)


TABLE: list[tuple[Story, str, str, str, str, str]] = [
    (under_way, "Progressing", "WaveInProgress", "InProgress", "False", "Progressing"),
    (promoted, "Promoted", "Promoted", "Current", "True", "Healthy"),
    (gated, "Holding", "WaitingForGate", "InProgress", "False", "Suspended"),
    (paused, "Holding", "Paused", "InProgress", "False", "Suspended"),
    (without_data, "Holding", "HoldNoData", "InProgress", "False", "Suspended"),
    (stuck, "Stalled", "ProgressDeadlineExceeded", "Failed", "False", "Degraded"),
    (going_back, "RollingBack", "Quarantined", "InProgress", "False", "Progressing"),
    (gone_back, "RolledBack", "Quarantined", "Failed", "False", "Degraded"),
    (refused_again, "RolledBack", "Quarantined", "Failed", "False", "Degraded"),
    (aborted, "Aborted", "Aborted", "Failed", "False", "Degraded"),
    (tripped_later, "Promoted", "HoldTripped", "Failed", "False", "Degraded"),
    (silent_later, "Promoted", "PartialFleet", "InProgress", "Unknown", "Progressing"),
    (arriving, "Stalled", "UnknownEngineSet", "InProgress", "False", "Progressing"),
    (never_arrived, "Stalled", "UnknownEngineSet", "Failed", "False", "Degraded"),
    (vanished_mid_way, "Stalled", "UnknownEngineSet", "InProgress", "False", "Progressing"),
    (unselected, "Pending", "NoNodesSelected", "InProgress", "False", "Progressing"),
    (without_variant, "Stalled", "NoVariantForNode", "Failed", "False", "Degraded"),
]


@pytest.mark.parametrize(
    ("story", "phase", "reason", "state", "ready", "health"), TABLE, ids=lambda v: getattr(v, "__name__", v)
)
def test_a_rollout_reads_the_same_to_flux_and_to_argo_cd(
    story: Story, phase: str, reason: str, state: str, ready: str, health: str, argo: Callable[..., tuple[str, str]]
) -> None:
    fleet = Fleet()
    story(fleet)
    status = fleet.status()
    shown = condition(status.conditions, "Ready")
    assert (status.phase, fleet.said("Ready")) == (phase, (ready, reason))
    body = body_of(fleet)
    assert kstatus(body) == state
    assert argo(body)[0] == health
    statuses = {k: fleet.said(k)[0] for k in ("Ready", "Reconciling", "Stalled")}
    assert list(statuses.values()).count("True") == 1
    if state == "Failed":
        assert shown is not None
        assert argo(body)[1] == f"{reason}: {shown.message}"


def test_the_second_rollout_of_a_model_reads_failed_and_the_first_current(argo: Callable[..., tuple[str, str]]) -> None:
    fleet = Fleet()
    owned(fleet)
    second = body_of(fleet, name="zz-second")
    assert (kstatus(second), argo(second)[0]) == ("Failed", "Degraded")
    assert (kstatus(body_of(fleet)), argo(body_of(fleet))[0]) == ("Current", "Healthy")


@pytest.mark.parametrize("phase", get_args(Phase))
def test_each_phase_has_one_reading_and_only_a_ready_one_is_current(phase: Phase) -> None:
    failed = {"Stalled", "RolledBack", "Aborted"}
    said = {rollout_state(phase, r, ready=False, arriving=False) for r in Reason if r is not Reason.HOLD_TRIPPED}
    assert said == {"Failed" if phase in failed else "InProgress"}
    assert rollout_state(phase, Reason.PROMOTED, ready=True, arriving=False) == "Current"


def test_an_unseen_commit_is_in_progress_whatever_the_one_before_it_was(argo: Callable[..., tuple[str, str]]) -> None:
    fleet = Fleet()
    gone_back(fleet)
    fleet.change(engine_set="good")
    body = body_of(fleet)
    assert (kstatus(body), argo(body)[0]) == ("InProgress", "Progressing")
    fleet.until(lambda: fleet.status().phase == "Promoted")
    assert (kstatus(body_of(fleet)), argo(body_of(fleet))[0]) == ("Current", "Healthy")


def test_a_set_that_arrives_late_is_never_failed_on_the_way() -> None:
    fleet = Fleet()
    arriving(fleet)
    assert kstatus(body_of(fleet)) == "InProgress"
    fleet.set("late", precision="Mixed")
    fleet.until(lambda: fleet.status().phase == "Promoted")
    assert kstatus(body_of(fleet)) == "Current"
    assert fleet.said("ReferencesFound") == ("True", "Accepted")


def test_a_rollout_that_no_rule_foresaw_is_failed_at_its_own_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet()
    promoted(fleet)
    fleet.change(paused=True)

    def broken(*_: object) -> None:
        raise KeyError("unforeseen")

    monkeypatch.setattr("blurfleet_operator.reconcile.decide", broken)
    fleet.tick()
    body = body_of(fleet)
    assert body["status"]["observedGeneration"] == body["metadata"]["generation"]
    assert (kstatus(body), fleet.said("Stalled")) == ("Failed", ("True", "CheckFailed"))


def test_sets_read_current_in_progress_until_their_contract_comes_and_failed_when_quarantined(
    argo: Callable[..., tuple[str, str]],
) -> None:
    fleet = Fleet()
    fleet.set("mixed", precision="Mixed")
    fleet.set("early", contract="later")
    fleet.tick()

    def judged(name: str) -> tuple[str, str]:
        body = body_of(fleet, "EngineSet", name)
        return kstatus(body), argo(body)[0]

    assert (judged("mixed"), judged("early")) == (("Current", "Healthy"), ("InProgress", "Progressing"))
    fleet.tick(35)
    assert judged("early") == ("Failed", "Degraded")
    fleet.quarantine(digest("mixed-a100"), "a100")
    fleet.tick()
    assert judged("mixed") == ("Failed", "Degraded")


def test_policies_contracts_and_quarantines_are_current_once_seen_and_a_policy_nobody_can_judge_by_failed() -> None:
    fleet = Fleet()
    fleet.quarantine(digest("x"), expiry=timestamp(fleet.now + 1e6))
    fleet.store.apply(resource("QualityPolicy", "bare", PolicySpec()))
    fleet.tick()
    [quarantine] = fleet.store.objects("EngineQuarantine")
    assert kstatus(quarantine.wire()) == "Current"
    assert {c.type: c.status for c in quarantine.status.conditions} == {
        "Ready": "True",
        "Reconciling": "False",
        "Stalled": "False",
    }
    assert kstatus(body_of(fleet, "PreprocessContract", "rgb")) == "Current"
    assert kstatus(body_of(fleet, "QualityPolicy", "strict")) == "Current"
    assert kstatus(body_of(fleet, "QualityPolicy", "bare")) == "Failed"
    fleet.store.apply(resource("QualityPolicy", "bare", policy_spec()))
    assert kstatus(body_of(fleet, "QualityPolicy", "bare")) == "InProgress"
    fleet.tick()
    assert kstatus(body_of(fleet, "QualityPolicy", "bare")) == "Current"
