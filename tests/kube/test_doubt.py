"""What the operator may say in a NodeEngine's status, as the real API server judges it under the chart's account."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fleet_objects import Fleet
from operator_process import OperatorProcess
from scripted_nodes import ScriptedNode

from blurfleet.api.meta import timestamp
from blurfleet.errors import AdmissionRefused, InvalidSpec
from blurfleet.store.kube import KubeStore
from blurfleet.store.kubeclient import Access, KubeClient
from blurfleet.store.port import Ref
from blurfleet_cli.cluster.identities import NAMESPACE, OPERATOR, service_account_token
from blurfleet_cli.cluster.kubeapi import KubeApi
from blurfleet_cli.cluster.plane import ControlPlane
from blurfleet_operator.decide.silence import doubted

SENTENCE = "all else in a NodeEngine's status is its agent's"
UNKNOWN = {"status": "Unknown", "reason": "StaleHeartbeat", "message": "not heard from"}


@pytest.fixture
def as_operator(plane: ControlPlane, api: KubeApi, tmp_path: Path) -> Iterator[KubeStore]:
    config = plane.write_kubeconfig(tmp_path / "operator", service_account_token(api, NAMESPACE, OPERATOR))
    with KubeStore(KubeClient(Access(kubeconfig=config)), manager="blurfleet-operator") as store:
        yield store


@pytest.fixture
def node(fleet: Fleet, started: dict[str, ScriptedNode], as_operator: KubeStore) -> Any:
    """A node that serves, says so in three conditions, and is not written any more."""
    for one in started.values():
        one.stop()
    fleet.until(lambda: not any(one._thread.is_alive() for one in started.values()), what="no node writes any more")
    fine = [{"type": t, "status": "True", "reason": "Serving", "message": ""} for t in ("Ready", "Armed")]
    path = f"/apis/blurfleet.dev/v1alpha1/nodeengines/{fleet.space}-a/status"
    models = [{**fleet.api.call("GET", path)["status"]["models"][0], "conditions": fine}]
    said = {"models": models, "conditions": fine[:1], "armed": "Yes", "connected": "Yes", "simulated": True}
    fleet.api.merge(path, {"status": said})
    fleet.until(lambda: refused(as_operator, found(fleet), {"/status/active": "probe"}), what="the policy judges")
    return found(fleet)


@pytest.fixture
def alone(fleet: Fleet, node: Any, operator: OperatorProcess) -> Any:
    """The same node, which no operator writes either: what is refused here is refused for what it says."""
    operator.stop()
    return found(fleet)


def found(fleet: Fleet) -> Any:
    return fleet.store.get(Ref(kind="NodeEngine", name=f"{fleet.space}-a"))


def refused(store: KubeStore, node: Any, changes: dict[str, Any]) -> bool:
    try:
        store.amend_status(node, changes)
    except AdmissionRefused as refusal:
        return SENTENCE in refusal.message
    except InvalidSpec:
        return False  # somebody wrote it meanwhile
    return False


def conditions(count: int, **said: str) -> dict[str, Any]:
    return {f"/status/models/0/conditions/{i}/{name}": value for i in range(count) for name, value in said.items()}


FORBIDDEN: dict[str, dict[str, Any]] = {
    "what it serves": {"/status/active": "other@abc"},
    "its heartbeat": {"/status/heartbeat": "2026-01-01T00:00:00.000Z"},
    "its facts": {"/status/facts": {}},
    "its generation": {"/status/observedGeneration": 99},
    "that it is real": {"/status/simulated": False},
    "that it is connected": {"/status/connected": "No"},
    "that it is armed": {"/status/armed": "No"},
    "no model any more": {"/status/models": []},
    "a model's engine": {"/status/models/0/serving/epoch": 99},
    "a model's trips": {"/status/models/0/trips": 7},
    "a model's name": {"/status/models/0/name": "other"},
    "a condition that is False": conditions(1, status="False"),
    "another reason": conditions(1, status="Unknown", reason="NoData"),
    "another type": conditions(1, type="Other", **UNKNOWN),
    "one condition for both": conditions(2, type="Ready", **UNKNOWN),
    "no conditions any more": {"/status/models/0/conditions": []},
    "a condition of the node": {"/status/conditions/0/status": "False"},
    "no status at all": {"/status": {}},
}


def test_it_says_that_nothing_is_known_and_no_word_more(fleet: Fleet, alone: Any, as_operator: KubeStore) -> None:
    assert [name for name, changes in FORBIDDEN.items() if not refused(as_operator, alone, changes)] == []
    later = time.time() + 1000.0
    changes = doubted(alone, later, since=later - 100.0)
    assert changes is not None
    as_operator.amend_status(alone, changes)
    after = found(fleet).status
    assert len(after.models[0].conditions) == 2
    assert {(c.type, c.status) for c in after.conditions} == {("Ready", "Unknown")}
    assert {(c.status, c.reason.value) for c in after.models[0].conditions} == {("Unknown", "StaleHeartbeat")}
    assert {c.last_transition_time for c in after.models[0].conditions} == {timestamp(later)}
    assert (after.connected, after.armed, after.fallback) == ("Unknown", "Unknown", "Unknown")
    assert after.models[0].serving == alone.status.models[0].serving
    assert (after.facts, after.active) == (alone.status.facts, alone.status.active)


def test_of_a_node_that_becomes_another_it_says_so_before_the_next_agent_comes(
    fleet: Fleet, node: Any, operator: OperatorProcess
) -> None:
    body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node.meta.name}}
    labels = {"nvidia.com/gpu.product": "Orin", "nvidia.com/gpu.compute.major": "8"}
    fleet.api.merge(fleet.api.path(body), {"metadata": {"labels": labels}})
    fleet.until(lambda: found(fleet).spec.device_class == "jetson-orin", what="it is another")
    after = found(fleet).status
    assert {(c.type, c.status, c.reason) for c in after.models[0].conditions} == {
        ("Ready", "Unknown", "ClassChanged"),
        ("Armed", "Unknown", "ClassChanged"),
    }
    assert (after.armed, after.fallback, after.connected) == ("Unknown", "Unknown", "Yes")
    assert after.models[0].serving == node.status.models[0].serving


def test_it_doubts_nothing_that_was_written_since_it_looked(fleet: Fleet, alone: Any, as_operator: KubeStore) -> None:
    fleet.api.merge(f"/apis/blurfleet.dev/v1alpha1/nodeengines/{alone.meta.name}/status", {"status": {"armed": "No"}})
    changes = doubted(alone, time.time() + 1000.0, since=time.time())
    assert changes is not None
    with pytest.raises(InvalidSpec):
        as_operator.amend_status(alone, changes)
    assert found(fleet).status.connected == alone.status.connected
