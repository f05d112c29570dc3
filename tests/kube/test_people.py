"""What people may do by the roles joined into Kubernetes' own view, edit and admin, asked of the real server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import pytest

from blurfleet.errors import AdmissionRefused
from blurfleet_cli.cluster.identities import NAMESPACE
from blurfleet_cli.cluster.kubeapi import KubeApi
from blurfleet_cli.cluster.plane import ControlPlane

RBAC = "rbac.authorization.k8s.io"
READ = ("get", "list", "watch")
WRITE = ("create", "update", "patch", "delete", "deletecollection")
WISHES = ("enginesets", "preprocesscontracts", "qualitypolicies", "enginerollouts")
VERDICTS = ("enginequarantines", "qualityruns")
KINDS = (*WISHES, *VERDICTS, "nodeengines")
WRITABLE = {
    "view": frozenset[str](),
    "edit": frozenset(WISHES),
    "admin": frozenset(WISHES + VERDICTS),
    "blurfleet-view": frozenset[str](),
    "blurfleet-edit": frozenset(WISHES),
    "blurfleet-admin": frozenset(VERDICTS),
    "forge": frozenset[str](),
}
READERS = {"view", "edit", "admin", "blurfleet-view"}


@pytest.fixture(scope="module")
def people_api(plane: ControlPlane) -> Iterator[KubeApi]:
    """The administrator, for the whole table."""
    admin = plane.admin()
    yield admin
    admin.close()


@pytest.fixture(scope="module")
def bound(people_api: KubeApi, until: Callable[..., None]) -> None:
    """One user for each role, bound cluster-wide under the role's name, once the server has joined the roles."""
    for role in WRITABLE.keys() - {"forge"}:
        binding = {
            "apiVersion": f"{RBAC}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": f"test-people-{role}"},
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": RBAC, "kind": "User", "name": role}],
        }
        people_api.apply(binding)
    until(lambda: may(people_api, "admin", "delete", "enginequarantines"), what="roles are joined")
    until(lambda: may(people_api, "edit", "create", "enginerollouts"), what="roles are joined")
    until(lambda: may(people_api, "view", "list", "nodeengines"), what="roles are joined")


def may(api: KubeApi, who: str, verb: str, resource: str, group: str = "blurfleet.dev") -> bool:
    """Ask the server whether `who` may `verb` a resource in the namespace of the chart."""
    # The forge's pod has no account of its own: it would be the namespace's default, did it hold a token at all.
    user = f"system:serviceaccount:{NAMESPACE}:default" if who == "forge" else who
    plural, _, subresource = resource.partition("/")
    about = {"group": group, "resource": plural, "subresource": subresource, "verb": verb, "namespace": NAMESPACE}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": user, "groups": ["system:authenticated"], "resourceAttributes": about},
    }
    return bool(api.call("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)["status"]["allowed"])


@pytest.mark.usefixtures("bound")
@pytest.mark.parametrize("who", WRITABLE)
def test_each_verb_on_each_kind_is_allowed_to_whom_it_belongs(who: str, people_api: KubeApi) -> None:
    said = {(v, k): may(people_api, who, v, k) for v, k in product((*READ, *WRITE), KINDS)}
    right = dict.fromkeys(product(READ, KINDS), who in READERS)
    right |= {(v, k): k in WRITABLE[who] for v, k in product(WRITE, KINDS)}
    assert {pair for pair in said if said[pair] != right[pair]} == set()


@pytest.mark.usefixtures("bound")
@pytest.mark.parametrize("who", WRITABLE)
def test_nobody_writes_what_was_observed(who: str, people_api: KubeApi) -> None:
    pairs = product(("create", "update", "patch", "delete"), (f"{kind}/status" for kind in KINDS))
    assert [pair for pair in pairs if may(people_api, who, *pair)] == []


@pytest.mark.usefixtures("bound")
@pytest.mark.parametrize("who", ["view", "blurfleet-view", "blurfleet-edit", "blurfleet-admin", "forge"])
def test_our_roles_open_no_secret_no_pod_and_no_role(who: str, people_api: KubeApi) -> None:
    foreign = (("secrets", ""), ("serviceaccounts/token", ""), ("pods/exec", ""), ("clusterroles", RBAC))
    asked = product((*READ, *WRITE), foreign)
    assert [(v, r) for v, (r, group) in asked if may(people_api, who, v, r, group)] == []


@pytest.mark.usefixtures("bound")
def test_a_quarantine_is_lifted_by_an_admin_and_by_nobody_less(people_api: KubeApi) -> None:
    body = {
        "apiVersion": "blurfleet.dev/v1alpha1",
        "kind": "EngineQuarantine",
        "metadata": {"name": "test-people"},
        "spec": {"digest": "sha256:" + "e" * 64, "reason": "DEERExceeded"},
    }
    path = people_api.path(people_api.apply(body))
    for who in ("view", "edit"):
        with pytest.raises(AdmissionRefused, match=f'User "{who}" cannot delete'):
            people_api.call("DELETE", path, headers={"Impersonate-User": who})
    assert people_api.get(body)["spec"]["reason"] == "DEERExceeded"
    people_api.call("DELETE", path, headers={"Impersonate-User": "admin"})
    assert path not in {people_api.path(q) for q in _quarantines(people_api)}


def _quarantines(api: KubeApi) -> list[dict[str, object]]:
    listed = api.call("GET", "/apis/blurfleet.dev/v1alpha1/enginequarantines")
    return [{"apiVersion": listed["apiVersion"], "kind": "EngineQuarantine", **q} for q in listed["items"]]
