"""What each component's roles grant, compared with what the server's audit log says it asked for."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, NamedTuple

import pytest
from fleet_objects import Fleet
from operator_process import OperatorProcess
from scripted_nodes import ScriptedNode
from tests.whole_lines import whole_lines

from blurfleet.api.meta import timestamp
from blurfleet.deadline import came_true
from blurfleet.reasons import Reason
from blurfleet.store.port import Event, Ref
from blurfleet_cli.cluster.identities import AGENT, NAMESPACE, OPERATOR
from blurfleet_cli.cluster.kubeapi import KubeApi
from blurfleet_cli.cluster.plane import ControlPlane

ROLES = "/apis/rbac.authorization.k8s.io/v1"


class Right(NamedTuple):
    """One verb on one resource; a subresource is written `nodeengines/status`."""

    group: str
    resource: str
    verb: str


# Granted, and not seen in the flows below, each with its reason.
UNSEEN: dict[str, dict[Right, str]] = {
    OPERATOR: {
        Right("", "events", "patch"): "an event said again counts up; the operator says each transition once",
    },
    AGENT: {
        Right("", "events", "patch"): "an event said again counts up; a healthy node says each once",
    },
}


def granted(api: KubeApi, account: str) -> set[Right]:
    """Return what the ClusterRole and the Role of `account` grant."""
    paths = (f"{ROLES}/clusterroles/{account}", f"{ROLES}/namespaces/{NAMESPACE}/roles/{account}")
    return rights([rule for path in paths for rule in api.call("GET", path)["rules"]])


def rights(rules: list[dict[str, Any]]) -> set[Right]:
    """Return what a role's rules grant, names of objects left aside."""
    return {Right(*one) for rule in rules for one in product(rule["apiGroups"], rule["resources"], rule["verbs"])}


def requests(plane: ControlPlane, account: str) -> Iterator[Any]:
    """Yield what the log holds of `account`, about resources."""
    user = f"system:serviceaccount:{NAMESPACE}:{account}"
    for line in whole_lines(plane.audit_log):
        entry = json.loads(line)
        if entry["user"]["username"] == user and "resource" in entry.get("objectRef", {}):
            yield entry


def used(plane: ControlPlane, account: str) -> set[Right]:
    """Return the rights that were asked for; applying what was not there is a creation as well."""
    found = set()
    for entry in requests(plane, account):
        about = entry["objectRef"]
        resource = "/".join(filter(None, (about["resource"], about.get("subresource", ""))))
        found.add(Right(about.get("apiGroup", ""), resource, entry["verb"]))
        if entry["verb"] == "patch" and entry.get("responseStatus", {}).get("code") == 201:
            found.add(Right(about.get("apiGroup", ""), resource, "create"))
    return found


def forbidden(plane: ControlPlane, account: str, since: str) -> set[str]:
    """Return the requests that no role allowed, from `since` (RFC 3339) on.

    A server that was killed and comes back forbids everything until it knows its roles again: earlier tests do that.
    """
    return {
        f"{entry['verb']} {entry['requestURI']}"
        for entry in requests(plane, account)
        if entry["requestReceivedTimestamp"] >= since
        and entry.get("annotations", {}).get("authorization.k8s.io/decision") == "forbid"
    }


@pytest.fixture
def exercised(
    fleet: Fleet, keen: OperatorProcess, join: Callable[..., ScriptedNode], until: Callable[..., None]
) -> str:
    """All that operator and agents ever do: join, promote, fail golden, quarantine, expire, forget, say.

    Returns when it began, RFC 3339.
    """
    began = timestamp(time.time())
    node = join("a")
    fleet.ground()
    fleet.set("good", "good")
    fleet.rollout("good")
    fleet.wait_promoted("bokeh", "good")
    bad = fleet.digest("naive-a100")
    node.script.golden_fails.add(bad)
    fleet.set("naive", "naive")
    fleet.change(engineSet="naive")
    fleet.wait_phase("RolledBack")
    until(lambda: bad in fleet.quarantines(), what="quarantined")
    old = {
        "apiVersion": "blurfleet.dev/v1alpha1",
        "kind": "EngineQuarantine",
        "metadata": {"name": f"{fleet.space}-old"},
    }
    spec = {"digest": fleet.digest("old"), "reason": "DEERExceeded", "expiry": "2020-01-01T00:00:00Z"}
    fleet.api.apply({**old, "spec": spec})
    until(lambda: fleet.store.get(Ref(kind="EngineQuarantine", name=f"{fleet.space}-old")) is None, what="expired")
    run = next(r for r in fleet.store.objects("QualityRun") if r.meta.namespace == fleet.space)
    past = run.wire()
    past["metadata"] = {"name": "long-ago", "namespace": fleet.space}
    past["spec"] |= {"at": timestamp(time.time() - 90 * 86400), "node": "gone"}
    past.pop("status", None)
    fleet.api.apply(past)
    gone = Ref(kind="QualityRun", name="long-ago", namespace=fleet.space)
    until(lambda: fleet.store.get(gone) is None, within_s=60.0, what="an old run deleted")
    node.script.silent = True
    me = Ref(kind="NodeEngine", name=node.name)
    until(lambda: fleet.node("a").status.connected == "Unknown", within_s=60.0, what="doubted")
    node.store.record(
        Event(involved=me, reason=Reason.SWAPPED, message="swapped", type="Warning", at=time.time(), source="agent")
    )
    assert node.errors == []
    return began


def test_nothing_is_denied_and_nothing_is_granted_that_is_not_used(
    exercised: str, plane: ControlPlane, api: KubeApi
) -> None:
    for account, unseen in UNSEEN.items():
        may = granted(api, account)
        # The log has a request only once it was answered.
        came_true(lambda a=account, m=may, u=unseen: not m - used(plane, a) - u.keys(), 30.0, poll_s=1.0)
        did = used(plane, account)
        assert forbidden(plane, account, exercised) == set()
        assert did - may == set()
        spare = ", ".join(sorted(map("/".join, may - did - unseen.keys())))
        assert not spare, f"{account}: {spare}"
        assert unseen.keys() <= may
