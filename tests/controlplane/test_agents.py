"""Who may write what, with the chart's accounts and real bound tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from blurfleet.errors import AdmissionRefused, StoreError
from blurfleet_cli.cluster.identities import (
    AGENT,
    NAMESPACE,
    OPERATOR,
    ensure_node,
    node_token,
    service_account_token,
)
from blurfleet_cli.cluster.kubeapi import KubeApi

Make = Callable[..., Any]
ClientOf = Callable[[str], KubeApi]


def node_engine(name: str) -> dict[str, Any]:
    meta = {"name": name}
    return {
        "apiVersion": "blurfleet.dev/v1alpha1",
        "kind": "NodeEngine",
        "metadata": meta,
        "spec": {"deviceClass": "a100"},
    }


def lease(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"holderIdentity": name, "leaseDurationSeconds": 90},
    }


def beat(api: KubeApi, name: str) -> Any:
    status = {"status": {"heartbeat": "2026-01-01T00:00:00.000Z", "connected": "True"}}
    return api.merge(api.path(node_engine(name), "status"), status)


def refused(write: Callable[[], Any]) -> bool:
    """Tell whether the policy on a node's status refuses, which it does a moment after it was made."""
    try:
        write()
    except AdmissionRefused as refusal:
        return "in a NodeEngine's status is its agent's" in refusal.message
    return False


@pytest.fixture(scope="module")
def nodes(api: KubeApi) -> tuple[str, str]:
    for name in ("node-x", "node-y"):
        api.apply(node_engine(name))
    return "node-x", "node-y"


@pytest.fixture
def agent(api: KubeApi, nodes: tuple[str, str], client_of: ClientOf) -> KubeApi:
    return client_of(node_token(api, nodes[0]))


def test_an_agent_writes_the_status_of_its_own_node(agent: KubeApi) -> None:
    assert beat(agent, "node-x")["status"]["connected"] == "True"


def test_an_agent_cannot_write_the_status_of_another_node(agent: KubeApi) -> None:
    with pytest.raises(AdmissionRefused, match="the agent of node node-x may not write nodeengines node-y; only its"):
        beat(agent, "node-y")


def test_an_agent_cannot_write_any_spec(agent: KubeApi, nodes: tuple[str, str]) -> None:
    for name in nodes:
        with pytest.raises(AdmissionRefused, match="cannot patch resource"):
            agent.merge(agent.path(node_engine(name)), {"spec": {"deviceClass": "jetson-orin"}})


def test_the_policy_holds_where_a_role_was_made_too_wide(api: KubeApi, agent: KubeApi, nodes: tuple[str, str]) -> None:
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "too-wide"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "name": AGENT, "namespace": NAMESPACE}],
    }
    api.apply(binding)
    try:
        for call in (
            lambda: agent.merge(agent.path(node_engine("node-x")), {"spec": {"deviceClass": "jetson-orin"}}),
            lambda: agent.delete(node_engine("node-x")),
            lambda: agent.create(node_engine("node-new")),
        ):
            with pytest.raises(AdmissionRefused, match="writes only the status of its NodeEngine; the spec is the op"):
                call()
    finally:
        api.delete(binding)


def test_an_unknown_device_class_is_refused(api: KubeApi) -> None:
    body = {**node_engine("node-h100"), "spec": {"deviceClass": "h100"}}
    with pytest.raises(AdmissionRefused, match="unknown deviceClass; one of a100, jetson-orin"):
        api.create(body)


def test_an_agent_renews_its_own_lease_alone(agent: KubeApi) -> None:
    agent.create(lease("node-x"))
    agent.merge(agent.path(lease("node-x")), {"spec": {"renewTime": "2026-01-01T00:00:00.000000Z"}})
    with pytest.raises(AdmissionRefused, match="may not write leases node-y"):
        agent.create(lease("node-y"))


def test_an_agent_s_token_that_names_no_node_writes_nothing(
    api: KubeApi, nodes: tuple[str, str], client_of: ClientOf
) -> None:
    unbound = client_of(service_account_token(api, NAMESPACE, AGENT))
    with pytest.raises(AdmissionRefused, match="this token names no node"):
        beat(unbound, "node-x")


def test_a_token_ends_with_its_pod(api: KubeApi, nodes: tuple[str, str], client_of: ClientOf, until: Make) -> None:
    client = client_of(node_token(api, "node-y"))
    beat(client, "node-y")
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"{AGENT}-node-y", "namespace": NAMESPACE}}
    api.call("DELETE", api.path(pod), {"gracePeriodSeconds": 0})

    def refused() -> bool:
        try:
            beat(client, "node-y")
        except StoreError as error:
            return "401" in error.message
        return False

    until(refused)


def test_the_operator_writes_what_it_decides_and_no_wish_of_a_person(
    api: KubeApi, client_of: ClientOf, example: Make, until: Make
) -> None:
    operator = client_of(service_account_token(api, NAMESPACE, OPERATOR))
    rollout = api.create(example("EngineRollout"))
    operator.merge(operator.path(rollout, "status"), {"status": {"phase": "Progressing"}})
    with pytest.raises(AdmissionRefused, match="cannot patch resource"):
        operator.merge(operator.path(rollout), {"spec": {"paused": True}})
    operator.apply(node_engine("node-z"))
    until(lambda: refused(lambda: beat(operator, "node-z")), what="a node speaks for itself")
    # Of a silent node it says that nothing is known.
    unknown = operator.merge(operator.path(node_engine("node-z"), "status"), {"status": {"connected": "Unknown"}})
    assert unknown["status"]["connected"] == "Unknown"
    tombstone = {
        "apiVersion": "blurfleet.dev/v1alpha1",
        "kind": "EngineQuarantine",
        "metadata": {"name": "by-operator"},
        "spec": {"digest": "sha256:" + "c" * 64, "reason": "GoldenFailed"},
    }
    operator.create(tombstone)
    operator.merge(operator.path(tombstone, "status"), {"status": {"engineSets": ["default/x"]}})
    operator.delete(tombstone)


def test_an_operator_s_token_bound_to_a_node_is_not_taken_for_an_agent(api: KubeApi, client_of: ClientOf) -> None:
    operator = client_of(node_token(api, "node-x", account=OPERATOR))
    operator.apply(node_engine("node-other"))
    api.delete(node_engine("node-other"))


def test_view_edit_and_admin_know_our_kinds(api: KubeApi, until: Make) -> None:
    def verbs(role: str, resource: str) -> set[str]:
        rules = api.call("GET", f"/apis/rbac.authorization.k8s.io/v1/clusterroles/{role}")["rules"] or []
        ours = [r for r in rules if "blurfleet.dev" in r.get("apiGroups", ())]
        return {v for r in ours if {resource, "*"} & set(r["resources"]) for v in r["verbs"]}

    until(lambda: "create" in verbs("edit", "enginerollouts") and "delete" in verbs("admin", "enginequarantines"))
    assert verbs("view", "enginerollouts") == {"get", "list", "watch"}
    assert "delete" not in verbs("edit", "enginequarantines")
    assert "create" not in verbs("admin", "nodeengines")


def test_a_node_engine_goes_with_its_node(api: KubeApi, until: Make) -> None:
    node = ensure_node(api, "node-gone")
    owner = {"apiVersion": "v1", "kind": "Node", "name": "node-gone", "uid": node["metadata"]["uid"]}
    body = node_engine("node-gone")
    body["metadata"]["ownerReferences"] = [owner]
    api.create(body)
    api.delete({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-gone"}})

    def gone() -> bool:
        try:
            api.get(body)
        except StoreError:
            return True
        return False

    until(gone)
