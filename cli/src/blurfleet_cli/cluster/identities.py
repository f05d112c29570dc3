"""Who acts on the control plane: ServiceAccounts of the chart, and agents bound to their node."""

from __future__ import annotations

from typing import Any

from blurfleet.errors import StoreConflict
from blurfleet_cli.cluster.kubeapi import KubeApi

NAMESPACE = "blurfleet-system"
AGENT = "blurfleet-agent"
OPERATOR = "blurfleet-operator"


def service_account_token(api: KubeApi, namespace: str, name: str, *, seconds: int = 3600, bound: Any = None) -> str:
    """Return a token of a ServiceAccount, optionally bound to an object (`kind`, `name`, `uid`). Raises StoreError."""
    spec = {"expirationSeconds": seconds, "audiences": [], **({"boundObjectRef": bound} if bound else {})}
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
    return str(api.call("POST", path, body)["status"]["token"])


def ensure_node(api: KubeApi, node: str, labels: dict[str, str] | None = None) -> Any:
    """Return the Node object `node`, created if absent: there is no kubelet that would. Raises StoreError."""
    return _ensure(api, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node, "labels": labels or {}}})


def node_token(api: KubeApi, node: str, *, namespace: str = NAMESPACE, account: str = AGENT) -> str:
    """Return the token that the agent's pod on `node` would hold: bound to that pod, so it names the node.

    Creates the Node and Pod objects if absent. Raises StoreError.
    """
    ensure_node(api, node)
    pod = _ensure(
        api,
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"{account}-{node}", "namespace": namespace},
            "spec": {
                "serviceAccountName": account,
                "nodeName": node,
                "containers": [{"name": "agent", "image": "blurfleet-agent"}],
            },
        },
    )
    bound = {"apiVersion": "v1", "kind": "Pod", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
    return service_account_token(api, namespace, account, bound=bound)


def _ensure(api: KubeApi, body: dict[str, Any]) -> Any:
    try:
        return api.create(body)
    except StoreConflict:
        return api.get(body)
