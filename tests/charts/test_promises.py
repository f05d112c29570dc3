"""The chart's promises in what Helm renders: what restarts Triton, who is root, what stays, who gets in."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import helm_python
import pytest
import yaml
from helm_python import Chart
from tests.charts.rendering import CHART, ROOT, Body, containers, installed, named, of, render, templates

SHIPPED: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
EVERYTHING: dict[str, Any] = {
    "forge": {"enabled": True, "class": "jetson-orin", "output": "s3://engines/bokeh"},
    "monitoring": {"podMonitor": True, "prometheusRule": True},
    "policies": {"rolloutNamespaces": ["blur", "lab"]},
    "operator": {"standby": {"enabled": True}},
}
# Containers that run as root, each with its reason; nothing else may.
ROOT_CONTAINERS = {"prepare-folder": "a hostPath folder belongs to root until it is given to the unprivileged user"}


CLASSES = [c["name"] for c in SHIPPED["nodeClasses"]]
OTHER: dict[str, Body] = {
    "another agent and gateway": {
        "images": {i: {**SHIPPED["images"][i], "tag": "9.9.9"} for i in ("agent", "gateway")}
    },
    "another operator": {"images": {"operator": {**SHIPPED["images"]["operator"], "tag": "9.9.9"}}},
    "more memory and another door for the gateway": {
        "gateway": {"port": 9000, "resources": {"limits": {"memory": "2Gi"}}}
    },
    "credentials for artifacts": {"agent": {"credentialsSecret": "reader"}, **EVERYTHING},
}


@pytest.mark.parametrize("values", OTHER.values(), ids=OTHER.keys())
@pytest.mark.parametrize("name", CLASSES)
def test_nothing_but_triton_s_own_values_changes_triton_s_manifest(name: str, values: Body) -> None:
    before, after = (named(render(v), "DaemonSet", f"blurfleet-triton-{name}") for v in ({}, values))
    assert json.dumps(before) == json.dumps(after)


@pytest.mark.parametrize("name", CLASSES)
def test_another_version_of_the_chart_leaves_triton_s_pods_as_they_are(name: str) -> None:
    # Its labels on the object may move; what is in the template would come at the next restart of the pod.
    template = named(render(), "DaemonSet", f"blurfleet-triton-{name}")["spec"]["template"]
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    assert str(version) not in json.dumps(template)
    assert "helm.sh/chart" not in json.dumps(template)


@pytest.mark.parametrize("given", SHIPPED["nodeClasses"], ids=CLASSES)
def test_triton_waits_for_a_person_and_outlives_the_chart(given: Body) -> None:
    body = named(render(), "DaemonSet", f"blurfleet-triton-{given['name']}")
    assert body["spec"]["updateStrategy"] == {"type": "OnDelete"}
    assert body["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    pod = body["spec"]["template"]["spec"]
    volumes = {v["name"]: v for v in pod["volumes"]}
    assert volumes["node"]["hostPath"] == {"path": "/var/lib/blurfleet", "type": "DirectoryOrCreate"}
    assert volumes["shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": given["triton"]["sharedMemory"]}
    [triton] = pod["containers"]
    assert {"name": "shm", "mountPath": "/dev/shm"} in triton["volumeMounts"]
    assert pod["nodeSelector"] == given["nodeSelector"]
    assert pod.get("runtimeClassName", "") == given["triton"]["runtimeClassName"]


def test_each_class_has_the_triton_build_of_its_gpu_and_takes_a_digest() -> None:
    images = {n: t["spec"]["containers"][0]["image"] for n, t in templates(render()) if "triton" in n}
    assert images["DaemonSet/blurfleet-triton-a100"] == "nvidia/tritonserver:25.10-py3"
    assert images["DaemonSet/blurfleet-triton-jetson-orin"] == "nvidia/tritonserver:25.10-py3-igpu"
    classes = copy.deepcopy(SHIPPED["nodeClasses"])
    for one in classes:
        one["triton"]["image"] |= {"registry": "mirror.example", "digest": "sha256:" + "a" * 64}
    pinned = [t["spec"] for n, t in templates(render({"nodeClasses": classes})) if "triton" in n]
    wanted = "mirror.example/nvidia/tritonserver@sha256:" + "a" * 64
    assert {c["image"] for pod in pinned for c in containers(pod)} == {wanted}


def test_every_container_of_every_pod_is_held_down() -> None:
    seen = set()
    for where, template in templates(render(EVERYTHING)):
        pod = template["spec"]
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys(), where
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, where
        for container in containers(pod):
            at, context = f"{where}/{container['name']}", container["securityContext"]
            seen.add(at)
            assert "privileged" not in context, at
            assert context["allowPrivilegeEscalation"] is False, at
            assert context["readOnlyRootFilesystem"] is True, at
            assert context["capabilities"]["drop"] == ["ALL"], at
            assert container["resources"]["limits"]["memory"], at
            user = {**pod["securityContext"], **context}
            if container["name"] in ROOT_CONTAINERS:
                assert context["capabilities"]["add"] == ["CHOWN", "FOWNER", "DAC_OVERRIDE"], at
            else:
                assert "add" not in context["capabilities"], at
                assert user["runAsNonRoot"] is True, at
                assert user["runAsUser"] > 0, at
    assert {f"Deployment/blurfleet-{n}/operator" for n in ("operator", "operator-standby")} <= seen
    assert {"Job/blurfleet-crds/apply", "Job/blurfleet-forge-jetson-orin-1/forge"} <= seen
    assert {f"DaemonSet/blurfleet-agent-{n}/{c}" for n in CLASSES for c in ("agent", "gateway")} <= seen


def test_only_the_node_folder_is_a_path_of_the_host() -> None:
    paths = {
        (v["hostPath"]["path"], where.split("/")[0])
        for where, template in templates(render(EVERYTHING))
        for v in template["spec"].get("volumes", ())
        if "hostPath" in v
    }
    assert paths == {("/var/lib/blurfleet", "DaemonSet")}


def test_switches_are_off_until_asked_for() -> None:
    off = {(b["kind"], b["metadata"]["name"]) for b in installed(render())}
    on = {(b["kind"], b["metadata"]["name"]) for b in installed(render(EVERYTHING))}
    assert off <= on
    assert {kind for kind, _ in on - off} >= {"PodMonitor", "PrometheusRule", "Job", "ValidatingAdmissionPolicy"}
    assert not {kind for kind, _ in off} & {"PodMonitor", "ServiceMonitor", "PrometheusRule", "Job", "CronJob"}


def test_rollouts_are_made_only_in_the_namespaces_listed() -> None:
    policy = named(render(EVERYTHING), "ValidatingAdmissionPolicy", "blurfleet-rollout-namespaces")
    [condition] = policy["spec"]["matchConditions"]
    assert condition["expression"] == "!(request.namespace in ['blur','lab'])"
    [matched] = policy["spec"]["matchConstraints"]["resourceRules"]
    assert matched["operations"] == ["CREATE", "UPDATE"]
    binding = named(render(EVERYTHING), "ValidatingAdmissionPolicyBinding", "blurfleet-rollout-namespaces")
    assert (binding["spec"]["policyName"], binding["spec"]["validationActions"]) == (
        policy["metadata"]["name"],
        ["Deny"],
    )
    assert policy["spec"]["failurePolicy"] == "Fail"


def test_the_door_s_reach_is_a_choice_and_triton_s_is_not() -> None:
    for policy in ("Local", "Cluster"):
        bodies = render({"gateway": {"internalTrafficPolicy": policy}})
        assert named(bodies, "Service", "blurfleet")["spec"]["internalTrafficPolicy"] == policy
        assert named(bodies, "Service", "blurfleet-triton")["spec"]["internalTrafficPolicy"] == "Local"
    assert named(render(), "Service", "blurfleet")["spec"]["internalTrafficPolicy"] == "Local"


def test_triton_is_reached_by_agents_alone_save_its_figures() -> None:
    bodies = render({"gateway": {"allowFrom": [{"namespaceSelector": {"matchLabels": {"blur": "yes"}}}]}})
    calls, figures = named(bodies, "NetworkPolicy", "blurfleet-triton")["spec"]["ingress"]
    [peer] = calls["from"]
    assert peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "agent"
    assert calls["ports"] == [{"port": "grpc"}]
    assert figures == {"ports": [{"port": "metrics"}]}
    door = named(bodies, "NetworkPolicy", "blurfleet-gateway")["spec"]["ingress"][0]
    assert door["from"] == [{"namespaceSelector": {"matchLabels": {"blur": "yes"}}}]


@pytest.mark.parametrize("component", ["triton", "agent", "operator", "operator-standby"])
def test_a_network_policy_stands_before_every_component(component: str) -> None:
    bodies = render(EVERYTHING)
    labels = [t["metadata"]["labels"] for _, t in templates(bodies)]
    mine = [known for known in labels if known["app.kubernetes.io/component"] == component]
    rules = [b["spec"]["podSelector"]["matchLabels"] for b in of("NetworkPolicy", bodies)]
    assert mine
    assert all(any(rule.items() <= known.items() for rule in rules) for known in mine)


def test_the_repository_api_is_closed_to_who_lacks_the_secret() -> None:
    bodies = render({"triton": {"keySecret": "ours"}})
    assert not of("Secret", bodies)
    for where, template in templates(bodies):
        texts = [json.dumps(c) for c in containers(template["spec"]) if "ours" in json.dumps(c)]
        mounted = [v for v in template["spec"].get("volumes", ()) if v.get("secret", {}).get("secretName") == "ours"]
        assert bool(texts) == ("triton" in where), where
        assert bool(mounted) == ("agent" in where), where
        for container in template["spec"]["containers"]:
            held = [m for m in container.get("volumeMounts", ()) if m["name"] == "triton-key"]
            assert bool(held) == (container["name"] == "agent"), container["name"]
    secret = named(render(), "Secret", "blurfleet-triton-key")
    assert secret["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


def test_what_renders_at_every_sync_changes_nothing_where_the_key_is_one_s_own_and_is_refused_where_not() -> None:
    ours: Body = {"triton": {"keySecret": "ours"}}
    assert render(ours) == render(ours)
    first, second = (named(render(), "Secret", "blurfleet-triton-key") for _ in range(2))
    assert first["data"] != second["data"]
    assert first["immutable"] is True


LEFT = {
    "DaemonSet": {f"blurfleet-{what}-{name}" for what in ("triton", "agent") for name in CLASSES},
    "Service": {"blurfleet", "blurfleet-triton"},
    "Secret": {"blurfleet-triton-key"},
    "ServiceAccount": {"blurfleet-agent", "blurfleet-triton"},
    "ClusterRole": {"blurfleet-agent"},
    "ClusterRoleBinding": {"blurfleet-agent"},
    "Role": {"blurfleet-agent"},
    "RoleBinding": {"blurfleet-agent"},
    "NetworkPolicy": {"blurfleet-triton", "blurfleet-gateway"},
    "ValidatingAdmissionPolicy": {"blurfleet-agents"},
    "ValidatingAdmissionPolicyBinding": {"blurfleet-agents"},
    "FlowSchema": {"blurfleet-agents"},
    "PriorityLevelConfiguration": {"blurfleet-agents"},
}


def left() -> list[Body]:
    keep = "helm.sh/resource-policy"
    return [b for b in render() if b["metadata"].get("annotations", {}).get(keep) == "keep"]


def test_an_uninstall_leaves_what_serves_with_what_guards_it() -> None:
    found: dict[str, set[str]] = {}
    for body in left():
        found.setdefault(body["kind"], set()).add(body["metadata"]["name"])
    assert found == LEFT


def test_what_is_left_leans_on_nothing_that_is_gone() -> None:
    bodies = left()
    accounts = {t["spec"]["serviceAccountName"] for _, t in templates(bodies)}
    secrets = {v["secret"]["secretName"] for _, t in templates(bodies) for v in t["spec"]["volumes"] if "secret" in v}
    keys = [
        e["valueFrom"]["secretKeyRef"]["name"] for e in _environment(bodies) if "secretKeyRef" in e.get("valueFrom", {})
    ]
    assert accounts == LEFT["ServiceAccount"]
    assert secrets | set(keys) == LEFT["Secret"]
    maps = {s["configMap"]["name"] for _, t in templates(bodies) for s in _sources(t["spec"]) if "configMap" in s}
    assert maps == {"kube-root-ca.crt"}  # the cluster's own
    for body in bodies:
        if body["kind"].endswith("RoleBinding"):
            assert body["roleRef"]["name"] in LEFT[body["roleRef"]["kind"]]
            assert {s["name"] for s in body["subjects"]} <= LEFT["ServiceAccount"]


def _environment(bodies: list[Body]) -> Iterator[Body]:
    for _, template in templates(bodies):
        for container in containers(template["spec"]):
            yield from container.get("env", ())


def _sources(pod: Body) -> Iterator[Body]:
    for volume in pod["volumes"]:
        yield from volume.get("projected", {}).get("sources", ())


def test_the_forge_s_pod_has_no_account_and_no_token() -> None:
    [pod] = [t["spec"] for n, t in templates(render(EVERYTHING)) if n.startswith("Job/blurfleet-forge")]
    assert pod["automountServiceAccountToken"] is False
    assert "serviceAccountName" not in pod
    assert not list(_sources(pod))
    bodies = installed(render(EVERYTHING))
    subjects = [s for b in bodies if b["kind"].endswith("RoleBinding") for s in b["subjects"]]
    assert {s["name"] for s in subjects} == {"blurfleet-operator", "blurfleet-agent"}
    lock = (ROOT / "images/locks/forge.txt").read_text()
    assert "kubernetes==" not in lock  # it could not speak to an API server if it wanted to


def paths(values: Body, at: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield each mapping of the values that the schema closes; labels, selectors and resources are Kubernetes' own."""
    yield at
    for key, value in values.items():
        if isinstance(value, dict) and key not in {"nodeSelector", "resources", "labels"}:
            yield from paths(value, (*at, key))


@pytest.mark.parametrize("at", list(paths(SHIPPED)), ids=lambda p: ".".join(p) or "top")
def test_a_misspelt_key_is_refused_at_every_level(at: tuple[str, ...]) -> None:
    wrong = copy.deepcopy(SHIPPED)
    Chart.load(CHART).validate_schema(wrong)
    place = wrong
    for key in at:
        place = place[key]
    place["tpyo"] = 1
    with pytest.raises(helm_python.HelmError, match="tpyo"):
        Chart.load(CHART).validate_schema(wrong)


@pytest.mark.parametrize("at", [(), ("triton",), ("triton", "image")], ids=lambda p: ".".join(p) or "class")
def test_a_misspelt_key_of_a_node_class_is_refused(at: tuple[str, ...]) -> None:
    wrong = copy.deepcopy(SHIPPED)
    place = wrong["nodeClasses"][0]
    for key in at:
        place = place[key]
    place["tpyo"] = 1
    with pytest.raises(helm_python.HelmError, match="tpyo"):
        Chart.load(CHART).validate_schema(wrong)
