"""What is sent to an API server for a node: small, and parsed back to the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from blurfleet.api.contract import ContractSpec
from blurfleet.api.crd import definition
from blurfleet.api.kinds import KINDS, Resource
from blurfleet.api.meta import Condition, ObjectMeta
from blurfleet.api.nodeengine import ModelStatus, NodeEngineSpec, NodeEngineStatus, NodeModel, Serving
from blurfleet.api.policy import PolicySpec
from blurfleet.reasons import Reason
from blurfleet.store.kuberequests import applying, replacing, replacing_status
from blurfleet.store.port import Ref

EXAMPLES = [
    body
    for path in sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))
    for body in yaml.safe_load_all(path.read_text(encoding="utf-8"))
]
POLICIES = [PolicySpec.model_validate(b["spec"]) for b in EXAMPLES if b["kind"] == "QualityPolicy"]
CONTRACTS = [ContractSpec.model_validate(b["spec"]) for b in EXAMPLES if b["kind"] == "PreprocessContract"]
DIGEST = "sha256:" + "1" * 64


def node_spec(policy: PolicySpec) -> NodeEngineSpec:
    model = NodeModel(name="bokeh", attempt="uid/0", policy=policy, contract=CONTRACTS[0], contract_hash=DIGEST)
    return NodeEngineSpec(device_class="a100", models=(model,), quarantined=(DIGEST,))


def applied(spec: NodeEngineSpec) -> dict[str, Any]:
    node = Resource(kind="NodeEngine", meta=ObjectMeta(name="node-0"), spec=spec, status=NodeEngineStatus())
    body: dict[str, Any] = applying(node, "tests").body["spec"]
    return body


@pytest.mark.parametrize("policy", [*POLICIES, PolicySpec()], ids=str)
def test_what_is_applied_to_a_node_is_parsed_back_to_the_same_spec(policy: PolicySpec) -> None:
    spec = node_spec(policy)
    assert NodeEngineSpec.model_validate(json.loads(json.dumps(applied(spec)))) == spec


def test_what_a_node_reports_is_parsed_back_to_the_same_status() -> None:
    said = Condition(type="Ready", status="True", reason=Reason.GOLDEN_PASSED)
    serving = Serving(digest=DIGEST, engine="bokeh-1", role="Primary", precision="FP32", epoch=1)
    status = NodeEngineStatus(models=(ModelStatus(name="bokeh", serving=serving, conditions=(said,)),), armed="1/1")
    sent = replacing_status(Ref(kind="NodeEngine", name="node-0"), status, "tests").body[0]["value"]
    assert "facts" not in sent
    assert NodeEngineStatus.model_validate(json.loads(json.dumps(sent))) == status


def test_defaults_of_an_inlined_policy_are_not_sent() -> None:
    spec = node_spec(POLICIES[0])
    assert len(json.dumps(applied(spec))) < 0.7 * len(json.dumps(spec.wire()))


def test_the_server_fills_no_defaults_into_a_node() -> None:
    root = definition(KINDS["NodeEngine"])["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    assert '"default"' not in json.dumps(root)


def test_a_replaced_spec_keeps_what_a_newer_version_says_and_drops_what_is_no_longer_said() -> None:
    meta = {"name": "node-0", "resourceVersion": "7", "uid": "u", "managedFields": [{"manager": "someone"}]}
    spec = {"deviceClass": "a100", "quarantined": [DIGEST], "answerAfter": "4s", "later": {"depth": 1}}
    served = {
        "apiVersion": "blurfleet.dev/v1alpha1",
        "kind": "NodeEngine",
        "metadata": meta,
        "spec": spec,
        "status": {},
    }
    wished = Resource(
        kind="NodeEngine",
        meta=ObjectMeta(name="node-0"),
        spec=NodeEngineSpec(device_class="jetson-orin"),
        status=NodeEngineStatus(),
    )
    asked = replacing(served, wished, "tests")
    assert (asked.method, asked.path) == ("PATCH", "/apis/blurfleet.dev/v1alpha1/nodeengines/node-0")
    assert asked.body == [
        {"op": "remove", "path": "/spec/quarantined"},
        {"op": "remove", "path": "/spec/answerAfter"},
        {"op": "add", "path": "/spec/deviceClass", "value": "jetson-orin"},
    ], "what a newer version says is not touched"
