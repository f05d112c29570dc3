"""The rendered chart against the server's own schemas and admission."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from helm_python import Chart

from blurfleet_cli.cluster.identities import NAMESPACE
from blurfleet_cli.cluster.kubeapi import KubeApi

ROOT = Path(__file__).parents[2]
VALUES: dict[str, dict[str, Any]] = {
    "as shipped": {},
    "everything on": {
        "forge": {"enabled": True, "class": "a100", "output": "s3://engines"},
        "policies": {"rolloutNamespaces": ["blur"]},
        "operator": {"standby": {"enabled": True}},
        "gateway": {
            "internalTrafficPolicy": "Cluster",
            "allowFrom": [{"namespaceSelector": {"matchLabels": {"blur": "yes"}}}],
        },
        "images": {"pullSecrets": [{"name": "mirror"}]},
        "triton": {"keySecret": "ours"},
    },
}


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES.keys())
def test_server_accepts_every_manifest_of_the_chart(values: dict[str, Any], api: KubeApi) -> None:
    parts = Chart.load(ROOT / "charts/blurfleet").render(values, name="blurfleet", namespace=NAMESPACE)
    bodies = [b for name, text in parts.items() if name.endswith(".yaml") for b in yaml.safe_load_all(text) if b]
    assert len(bodies) > 25
    for body in bodies:
        path = api.path(body)
        query = {"fieldManager": "chart", "force": "true", "dryRun": "All", "fieldValidation": "Strict"}
        answer = api.call("PATCH", path, body, content="application/apply-patch+yaml", **query)
        assert answer["metadata"]["name"] == body["metadata"]["name"]


def test_the_policies_expressions_have_no_type_errors(api: KubeApi, until: Any) -> None:
    path = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"

    def ours() -> list[Any]:
        return [p for p in api.call("GET", path)["items"] if p["metadata"]["name"].startswith("blurfleet")]

    until(lambda: all(p.get("status", {}).get("observedGeneration") for p in ours()))
    ground = yaml.safe_load_all((ROOT / "deploy/ground.yaml").read_text())
    names = {body["metadata"]["name"] for body in ground if body["kind"] == "ValidatingAdmissionPolicy"}
    assert {p["metadata"]["name"] for p in ours()} == names
    warnings = {p["metadata"]["name"]: p["status"].get("typeChecking", {}).get("expressionWarnings") for p in ours()}
    assert all(not found for found in warnings.values()), warnings
