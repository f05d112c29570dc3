"""People of one namespace: accounts that hold Kubernetes' own `edit` and `view`, and what they act with."""

from __future__ import annotations

from blurfleet.deadline import came_true
from blurfleet_cli.cluster.identities import service_account_token
from blurfleet_cli.cluster.kubeapi import KubeApi

RBAC = "rbac.authorization.k8s.io"


def token_of(api: KubeApi, space: str, role: str) -> str:
    """Return the token of who holds `role` in `space` and may read the whole cluster, made by the administrator `api`.

    `role` is `view`, `edit` or `admin`: the ClusterRoles that the server joins the chart's rules into.
    """
    who = {"kind": "ServiceAccount", "name": role, "namespace": space}
    api.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": role, "namespace": space}})
    for kind, given in (("RoleBinding", role), ("ClusterRoleBinding", "view")):
        meta = {"name": f"{space}-{role}", **({"namespace": space} if kind == "RoleBinding" else {})}
        about = {"apiGroup": RBAC, "kind": "ClusterRole", "name": given}
        api.apply({"apiVersion": f"{RBAC}/v1", "kind": kind, "metadata": meta, "roleRef": about, "subjects": [who]})
    token = service_account_token(api, space, role)
    user = f"system:serviceaccount:{space}:{role}"
    verb = "list" if role == "view" else "create"
    assert came_true(lambda: _may(api, user, verb, space), 90.0), "the server has not joined the chart's rules yet"
    return token


def _may(api: KubeApi, user: str, verb: str, space: str) -> bool:
    about = {"group": "blurfleet.dev", "resource": "enginerollouts", "verb": verb, "namespace": space}
    asked = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview"}
    body = {**asked, "spec": {"user": user, "resourceAttributes": about}}
    return bool(api.call("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", body)["status"]["allowed"])
