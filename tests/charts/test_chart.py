"""The chart renders, lints and says what it promises, offline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import helm_python
import kubernetes_validate
import pytest
import yaml
from helm_python import Chart
from tests.charts.rendering import CHART, ROOT, of, pods, render

from blurfleet.api.nodeengine import DEVICE_CLASSES
from blurfleet_agent.settings import AgentSettings
from blurfleet_agent.tritoncommand import Ports, TritonSettings, server_command
from blurfleet_agent.tritonenv import TritonEnvironment
from blurfleet_cli.cluster.ground import render_ground
from blurfleet_cli.commands.forge import build
from blurfleet_cli.main import COMMANDS
from blurfleet_operator.settings import OperatorSettings
from blurfleet_preprocess.settings import GatewaySettings

FORGE = {"forge": {"enabled": True, "class": "jetson-orin", "output": "s3://engines/bokeh"}}
MONITORED = {"monitoring": {"podMonitor": True, "prometheusRule": True, "labels": {"release": "prometheus"}}}
TRACED = {"tracing": {"url": "http://collector.observability:4318/v1/traces", "share": 0.25}}
ALL: dict[str, Any] = {**FORGE, **MONITORED, **TRACED, "policies": {"rolloutNamespaces": ["blur"]}}


def test_chart_lints_strictly() -> None:
    report = helm_python.lint(CHART, strict=True, namespace="blurfleet-system")
    assert [m for m in report["messages"] if m["severity"] > 1] == []  # 1 is advice, such as an icon


@pytest.mark.parametrize("values", [{}, ALL], ids=["as shipped", "everything on"])
def test_manifests_are_valid(values: dict[str, Any]) -> None:
    bodies = [b for b in render(values) if b["apiVersion"] != "monitoring.coreos.com/v1"]
    assert len(bodies) > 25
    for body in bodies:
        kubernetes_validate.validate(body, "1.37", strict=True)


def test_ground_without_helm_is_the_chart_s() -> None:
    assert (ROOT / "deploy/ground.yaml").read_text() == render_ground(CHART)


def test_each_class_has_triton_alone_that_only_a_person_restarts_and_an_agent_beside_a_gateway() -> None:
    sets = {b["metadata"]["name"]: b for b in of("DaemonSet", render())}
    assert sorted(sets) == [
        "blurfleet-agent-a100",
        "blurfleet-agent-jetson-orin",
        "blurfleet-triton-a100",
        "blurfleet-triton-jetson-orin",
    ]
    for name, body in sets.items():
        names = [c["name"] for c in body["spec"]["template"]["spec"]["containers"]]
        assert names == (["triton"] if "triton" in name else ["agent", "gateway"])
        assert body["spec"]["updateStrategy"]["type"] == ("OnDelete" if "triton" in name else "RollingUpdate")


def test_the_folder_s_preparation_can_be_turned_off() -> None:
    off = pods(render({"nodeFolder": {"prepare": False}}))
    assert {c["name"] for _, pod in off for c in pod.get("initContainers", ())} == {"name-runtime"}


def test_only_who_speaks_to_the_api_server_holds_a_token() -> None:
    automatic = {name for name, pod in pods(render(ALL)) if pod["automountServiceAccountToken"]}
    assert automatic == {"blurfleet-operator", "blurfleet-crds"}
    agent = dict(pods(render()))["blurfleet-agent-a100"]
    holders = [c["name"] for c in agent["containers"] if any(m["name"] == "token" for m in c["volumeMounts"])]
    assert holders == ["agent"]


def test_triton_reads_the_node_folder_and_its_repository_api_needs_the_key() -> None:
    for name, pod in pods(render()):
        if "triton" in name:
            container = pod["containers"][0]
            assert {"name": "node", "mountPath": "/node", "readOnly": True} in container["volumeMounts"]
            assert any("grpc-restricted-protocol=model-repository" in a for a in container["args"])
            assert any("http-restricted-api=model-repository" in a for a in container["args"])
            assert container["env"][0]["valueFrom"]["secretKeyRef"]["name"] == "blurfleet-triton-key"


def test_engines_are_built_on_a_node_of_their_class() -> None:
    [job] = [b for b in of("Job", render(FORGE)) if "forge" in b["metadata"]["name"]]
    orin = next(c for c in yaml.safe_load((CHART / "values.yaml").read_text())["nodeClasses"] if "orin" in c["name"])
    assert job["spec"]["template"]["spec"]["nodeSelector"] == orin["nodeSelector"]
    assert job["spec"]["template"]["spec"]["runtimeClassName"] == "nvidia"


def test_the_forge_pushes_where_the_agents_read_with_credentials_of_their_own() -> None:
    values = {"forge": {**FORGE["forge"], "credentialsSecret": "writer"}, "agent": {"credentialsSecret": "reader"}}
    found = dict(pods(render(values)))
    forge = next(pod["containers"][0] for name, pod in found.items() if "forge" in name)
    agent, gateway = found["blurfleet-agent-a100"]["containers"]
    for container, secret in ((forge, "writer"), (agent, "reader")):
        assert {"name": "BLURFLEET_ARTIFACTS", "value": "s3://engines/bokeh"} in container["env"]
        assert container["envFrom"] == [{"secretRef": {"name": secret}}]
    assert "envFrom" not in gateway
    assert "envFrom" not in dict(pods(render()))["blurfleet-agent-a100"]["containers"][0]
    push = next(option for option in build.params if option.name == "push")
    assert push.envvar == "BLURFLEET_ARTIFACTS"


def test_agents_and_gateways_are_started_with_settings_they_know() -> None:
    agent, gateway = dict(pods(render()))["blurfleet-agent-a100"]["containers"]
    for container, model in ((agent, AgentSettings), (gateway, GatewaySettings)):
        ours = (e["name"] for e in container["env"] if not e["name"].startswith("NVIDIA_"))
        given = {name.removeprefix("BLURFLEET_").lower() for name in ours}
        assert given <= model.model_fields.keys()
    hosts = {e["name"]: e for c in (agent, gateway) for e in c["env"] if e["name"].endswith("_HOST")}
    assert hosts["BLURFLEET_METRICS_HOST"]["valueFrom"] == {"fieldRef": {"fieldPath": "status.podIP"}}
    assert hosts["BLURFLEET_GATEWAY_HOST"]["value"] == "0.0.0.0"


def test_spans_go_to_one_collector_from_all_three_and_nowhere_until_it_is_named() -> None:
    url, found = TRACED["tracing"]["url"], dict(pods(render(TRACED)))
    agent, gateway = found["blurfleet-agent-a100"]["containers"]
    assert {"name": "BLURFLEET_TRACE_URL", "value": url} in agent["env"]
    assert {"name": "BLURFLEET_TRACE_URL", "value": url} in gateway["env"]
    assert {"name": "BLURFLEET_TRACE_SHARE", "value": "0.25"} in gateway["env"]
    for container, model in ((agent, AgentSettings), (gateway, GatewaySettings)):
        ours = {e["name"].removeprefix("BLURFLEET_").lower() for e in container["env"] if "BLURFLEET" in e["name"]}
        assert ours <= model.model_fields.keys()
    [triton] = found["blurfleet-triton-a100"]["containers"]
    here = Path("/here")
    environment = TritonEnvironment(
        root=here, python=here, server_bin=here, backend_dir=here, caches_dir=here, lib_path=here
    )
    settings = TritonSettings(
        model_repository=here, key="k", ports=Ports(http=1, grpc=2, metrics=3), shm_prefix="s_", trace_url=url,
        node="$(BLURFLEET_NODE)",
    )  # fmt: skip
    local = [a for a in server_command(environment, settings)[0] if "trace-config" in a]
    assert [a for a in triton["args"] if "trace-config" in a] == local  # the one that tests run on the real server
    assert "BLURFLEET_NODE" in {e["name"] for e in triton["env"]}
    untraced = [c for _, pod in pods(render()) for c in pod["containers"]]
    assert not [a for c in untraced for a in c.get("args", ()) if "--trace" in a]
    assert not [e for c in untraced for e in c.get("env", ()) if "TRACE" in e["name"]]


def test_monitoring_is_off_until_asked_for() -> None:
    assert not [b for b in render() if b["apiVersion"].startswith("monitoring")]
    [rule] = of("PrometheusRule", render(MONITORED))
    assert rule["metadata"]["labels"]["release"] == "prometheus"
    alerts = {r["alert"] for g in rule["spec"]["groups"] for r in g["rules"]}
    assert {"BlurfleetTripped", "BlurfleetFallbackNotReady", "BlurfleetNoSamples"} <= alerts


def test_an_image_is_named_by_digest_where_one_is_given() -> None:
    digest = "sha256:" + "d" * 64
    values = {"images": {"operator": {"registry": "mirror.example", "repository": "b/operator", "digest": digest}}}
    operator = dict(pods(render(values)))["blurfleet-operator"]
    assert operator["containers"][0]["image"] == f"mirror.example/b/operator@{digest}"


def test_roles_of_components_name_what_they_may_do() -> None:
    roles = [b for kind in ("ClusterRole", "Role") for b in of(kind, render())]
    components = {"blurfleet-operator", "blurfleet-agent", "blurfleet-crds"}
    rules = [(b["metadata"]["name"], r) for b in roles if b["metadata"]["name"] in components for r in b["rules"]]
    assert {name for name, _ in rules} == components
    for name, rule in rules:
        assert "*" not in rule["verbs"] + rule["resources"] + rule["apiGroups"], name
        assert not {"secrets", "pods", "serviceaccounts/token"} & set(rule["resources"]), name
    writing = {"create", "patch", "update", "delete"}
    wishes = {"enginesets", "preprocesscontracts", "qualitypolicies", "enginerollouts"}
    assert not [n for n, r in rules if wishes & set(r["resources"]) and writing & set(r["verbs"])]
    agents = {(x, v) for n, r in rules if n == "blurfleet-agent" for x in r["resources"] for v in r["verbs"]}
    assert {x for x, v in agents if v in writing} == {"nodeengines/status", "events", "leases"}


def test_the_operator_is_started_as_it_can_be() -> None:
    container = dict(pods(render()))["blurfleet-operator"]["containers"][0]
    name, command = container["command"]
    assert (name, COMMANDS[command][0]) == ("blurfleet", "blurfleet_cli.commands.operator")
    given = {e["name"].removeprefix("BLURFLEET_").lower() for e in container["env"]}
    assert given <= OperatorSettings.model_fields.keys()


def test_the_chart_s_classes_are_the_operator_s() -> None:
    classes = yaml.safe_load((CHART / "values.yaml").read_text())["nodeClasses"]
    assert {c["name"] for c in classes} == set(DEVICE_CLASSES)
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert schema["properties"]["nodeClasses"]["items"]["properties"]["name"]["enum"] == list(DEVICE_CLASSES)


WRONG: dict[str, dict[str, Any]] = {
    "an unknown key": {"gatway": {}},
    "a digest that is none": {"images": {"agent": {"repository": "a", "digest": "latest"}}},
    "a relative node folder": {"nodeFolder": {"path": "var/lib"}},
    "the root user": {"user": 0},
    "artifacts over plain http": {"forge": {"output": "http://somewhere"}},
    "no node class": {"nodeClasses": []},
    "a collector that is no address": {"tracing": {"url": "collector:4318"}},
    "more than all traces": {"tracing": {"share": 2}},
}


@pytest.mark.parametrize("values", WRONG.values(), ids=WRONG.keys())
def test_wrong_values_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(helm_python.HelmError):
        Chart.load(CHART).validate_schema(values)
    json.loads((CHART / "values.schema.json").read_text())
