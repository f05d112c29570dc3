"""Applies the CustomResourceDefinitions of this version: what the chart's upgrade hook runs.

`python -m blurfleet_operator.definitions`, in a pod whose account may patch them, or by hand with `KUBECONFIG`.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import yaml
from kubernetes import client, config, dynamic

from blurfleet.api.crd import definition
from blurfleet.api.kinds import KINDS

MANAGER = "blurfleet-definitions"


def apply_definitions(api: client.ApiClient) -> list[str]:
    """Apply every kind's definition on the server's side and return their names. Raises the client's ApiException."""
    connect: Any = dynamic.DynamicClient
    kinds = connect(api).resources.get(api_version="apiextensions.k8s.io/v1", kind="CustomResourceDefinition")
    names = []
    for kind in KINDS.values():
        body = definition(kind)
        kinds.server_side_apply(body=body, name=body["metadata"]["name"], field_manager=MANAGER, force_conflicts=True)
        names.append(body["metadata"]["name"])
    return names


def main() -> int:
    """Apply them with the account of `KUBECONFIG` where that is set, else with the pod's own."""
    account: Any = config
    if os.environ.get("KUBECONFIG"):
        account.load_kube_config()
    else:
        account.load_incluster_config()
    with client.ApiClient() as api:
        sys.stdout.write(yaml.safe_dump({"applied": apply_definitions(api)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
