"""Agents and operators of other versions on one API server: what they can is negotiated, and nothing is lost."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fleet_objects import Fleet
from scripted_nodes import ScriptedNode
from test_rollout_command import ask

from blurfleet.errors import StoreError
from blurfleet_cli.cluster.kubeapi import KubeApi
from blurfleet_cli.cluster.plane import ControlPlane
from blurfleet_cli.simulated_nodes import CAPABLE

Nodes = dict[str, ScriptedNode]
ANYTHING = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
CHANGED = {"NodeEngine": "nodeengines", "EngineRollout": "enginerollouts"}
LATER = {"depth": {"of": "field"}}


def knows_later(fleet: Fleet, kind: str) -> bool | None:
    """Tell whether the server serves the newer definition of a kind: an older one drops what it does not know.

    None in the moment in which it serves neither.
    """
    meta = {"name": f"{fleet.space}-asked", **({} if kind == "NodeEngine" else {"namespace": fleet.space})}
    spec = {"deviceClass": "a100"} if kind == "NodeEngine" else fleet.example(kind)["spec"]
    body = {"apiVersion": "blurfleet.dev/v1alpha1", "kind": kind, "metadata": meta, "spec": {**spec, "later": LATER}}
    try:
        return "later" in fleet.api.create(body, dry_run=True)["spec"]
    except StoreError:
        return None


@pytest.fixture
def newer_kinds(api: KubeApi, fleet: Fleet) -> Iterator[None]:
    """The kinds as the next version has them: they come before its operator and its agents."""
    paths = [f"{DEFINITIONS}/{plural}.blurfleet.dev" for plural in CHANGED.values()]
    before = {path: api.call("GET", path)["spec"]["versions"] for path in paths}
    for path, versions in before.items():
        newer = copy.deepcopy(versions)
        parts = newer[0]["schema"]["openAPIV3Schema"]["properties"]
        for part in ("spec", "status"):
            parts[part]["properties"]["later"] = ANYTHING
        api.merge(path, {"spec": {"versions": newer}})
    fleet.until(lambda: all(knows_later(fleet, k) is True for k in CHANGED), what="the newer definitions are served")
    yield
    for path, versions in before.items():
        api.merge(path, {"spec": {"versions": versions}})
    fleet.until(lambda: all(knows_later(fleet, k) is False for k in CHANGED), what="the older definitions are served")


def at(api: KubeApi, path: str, *fields: str) -> Any:
    found = api.call("GET", path)
    for field in fields:
        found = found.get(field, {})
    return found


def test_an_older_agent_that_cannot_judge_by_the_policy_keeps_what_it_has_until_it_is_newer(
    fleet: Fleet, started: Nodes
) -> None:
    # It has no Lease either, and says its heartbeat in its status.
    fleet.api.call("DELETE", f"/apis/coordination.k8s.io/v1/namespaces/blurfleet-system/leases/{fleet.space}-b")
    started["b"].script.capabilities = ()
    fleet.until(lambda: fleet.node("b").status.facts.capabilities == ())
    before = fleet.node("b")
    fleet.set("next", "next")
    fleet.change(engineSet="next")
    fleet.wait_phase("Holding", "AgentTooOld")
    fleet.wait_serving("a", "next")
    assert fleet.node("b").meta.generation == before.meta.generation
    assert fleet.node("b").spec == before.spec
    assert fleet.serving("b") == ("good", "Primary", "Mixed")
    said = [words for reason, words in fleet.said() if reason == "AgentTooOld"]
    assert len(said) == 1
    assert said[0].startswith(
        f"{fleet.space}-b keeps what it has: its agent scripted cannot judge by rules with a role"
    )
    assert said[0].endswith("that needs 0.1.0 or newer")
    started["b"].script.capabilities = CAPABLE
    fleet.wait_promoted("bokeh", "next")
    fleet.wait_serving("b", "next")


def test_an_older_agent_is_told_to_leave_out_what_it_may(fleet: Fleet, started: Nodes) -> None:
    started["b"].script.capabilities = tuple(c for c in CAPABLE if c != "Probation")
    fleet.until(lambda: "Probation" not in fleet.node("b").status.facts.capabilities)
    fleet.set("next", "next")
    fleet.change(engineSet="next")
    fleet.wait_promoted("bokeh", "next")
    told = {n: fleet.node(n).spec.models[0].policy.probation.enabled for n in started}
    assert told == {"a": True, "b": False}


def test_a_newer_agent_is_led_through_the_same_rollout_and_what_it_says_stays(
    fleet: Fleet, started: Nodes, newer_kinds: None, until: Callable[..., None]
) -> None:
    cooled = {"type": "Cooled", "status": "False", "reason": "FanStopped", "message": "a reason of tomorrow"}
    node = started["a"]
    node.newer = {"later": LATER, "conditions": [cooled]}
    node.script.capabilities = (*CAPABLE, "Teleport")
    path = f"/apis/blurfleet.dev/v1alpha1/nodeengines/{fleet.space}-a"
    until(lambda: at(fleet.api, path, "status", "later") == LATER, what="the newer agent's status is kept")
    fleet.set("next", "next")
    fleet.change(engineSet="next")
    fleet.wait_promoted("bokeh", "next")
    fleet.wait_serving("a", "next")
    status = at(fleet.api, path, "status")
    assert (status["later"], status["conditions"]) == (LATER, [cooled])
    assert "Teleport" in status["facts"]["capabilities"]
    assert node.errors == []


def test_what_a_newer_version_added_to_a_spec_survives_an_older_operator_and_its_commands(
    fleet: Fleet, started: Nodes, newer_kinds: None, until: Callable[..., None], plane: ControlPlane
) -> None:
    node = f"/apis/blurfleet.dev/v1alpha1/nodeengines/{fleet.space}-a"
    rollout = f"/apis/blurfleet.dev/v1alpha1/namespaces/{fleet.space}/enginerollouts/bokeh"

    def kept(path: str) -> bool:
        fleet.api.merge(path, {"spec": {"later": LATER}})
        return bool(at(fleet.api, path, "spec", "later") == LATER)

    for path in (node, rollout):
        until(lambda p=path: kept(p), what="the server knows the newer kind")
    fleet.set("next", "next")
    fleet.change(engineSet="next", waves=[{"name": "all", "percent": 100, "gate": "Manual"}])
    fleet.wait_phase("Holding", "WaitingForGate")
    where = ("bokeh", "-n", fleet.space, "--kubeconfig", str(plane.kubeconfig))
    assert ask("promote", *where, "--token", "go")[0] == 0
    fleet.wait_promoted("bokeh", "next")
    fleet.wait_serving("a", "next")
    assert at(fleet.api, node, "spec", "later") == LATER
    assert at(fleet.api, rollout, "spec", "later") == LATER
