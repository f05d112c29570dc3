"""The control plane's own life: started, killed, started again, found by another process, ended without a trace."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from click.testing import CliRunner
from kubernetes import client, config

from blurfleet.deadline import came_true
from blurfleet.errors import NodeError, StoreError
from blurfleet_cli.cluster import processes, programs
from blurfleet_cli.cluster.ground import established, install
from blurfleet_cli.cluster.in_force import questions, refuses
from blurfleet_cli.cluster.kubeapi import KubeApi
from blurfleet_cli.cluster.plane import ControlPlane
from blurfleet_cli.commands.cluster import cluster
from blurfleet_operator.definitions import apply_definitions

ROOT = Path(__file__).parents[2]
KINDS_ROOT = "/apis/blurfleet.dev/v1alpha1"


@pytest.mark.parametrize(
    ("status", "serves"),
    [
        (None, False),
        ({"conditions": None, "acceptedNames": {}, "storedVersions": ["v1alpha1"]}, False),
        ({"conditions": [{"type": "NamesAccepted", "status": "True"}]}, False),
        ({"conditions": [{"type": "Established", "status": "False"}]}, False),
        ({"conditions": [{"type": "Established", "status": "True"}]}, True),
    ],
)
def test_a_kind_is_served_when_its_definition_says_so_and_not_in_the_moment_it_is_made(
    status: dict[str, Any] | None, serves: bool
) -> None:
    assert established({"kind": "CustomResourceDefinition", "status": status}) is serves


def test_what_was_written_outlives_the_api_server(
    plane: ControlPlane, api: KubeApi, example: Callable[..., Any]
) -> None:
    body = api.create(example("EngineRollout"))
    plane.kill_apiserver()
    try:
        assert plane.running() == {"etcd": True, "kube-apiserver": False, "kube-controller-manager": True}
        with pytest.raises(StoreError, match="no answer"):
            api.get(body)
    finally:
        plane.start_apiserver()
    assert api.get(body)["metadata"]["uid"] == body["metadata"]["uid"]


def test_starting_and_installing_again_keeps_what_runs(plane: ControlPlane, api: KubeApi) -> None:
    before = {p.name: p.read_bytes() for p in plane.root.glob("*.pid")}
    other = ControlPlane(plane.root).start()
    with contextlib.closing(other.admin()) as admin:
        install(admin, ROOT)
    assert {p.name: p.read_bytes() for p in plane.root.glob("*.pid")} == before


def test_every_policy_of_the_ground_is_waited_for_by_what_it_refuses(api: KubeApi) -> None:
    bodies = yaml.safe_load_all((ROOT / "deploy/ground.yaml").read_text())
    policies = {b["metadata"]["name"] for b in bodies if b["kind"] == "ValidatingAdmissionPolicy"}
    with questions(api) as asked:
        assert set(asked) == policies
        assert [name for name, question in asked.items() if not refuses(name, question)] == []
        bindings = {name: api.get(binding(name)) for name in policies}
        for name in policies:
            api.delete(bindings[name])
        try:
            for name, question in asked.items():
                assert came_true(lambda n=name, q=question: not refuses(n, q), 10.0), name
        finally:
            for name in policies:
                meta = bindings[name]["metadata"]
                fresh = {"name": name, "labels": meta["labels"]}
                api.apply({**binding(name), "metadata": fresh, "spec": bindings[name]["spec"]})
        for name, question in asked.items():
            assert came_true(lambda n=name, q=question: refuses(n, q), 30.0), name
    for kind in ("NodeEngine", "EngineRollout", "EngineSet", "EngineQuarantine"):
        left = [i["metadata"]["name"] for i in api.call("GET", f"{KINDS_ROOT}/{kind.lower()}s")["items"]]
        assert not [name for name in left if name.startswith("blurfleet-probe")], kind


def binding(policy: str) -> dict[str, Any]:
    version, kind = "admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicyBinding"
    return {"apiVersion": version, "kind": kind, "metadata": {"name": policy}}


def test_kubeconfig_serves_the_official_client_and_the_upgrade_hook(plane: ControlPlane) -> None:
    with config.new_client_from_config(str(plane.kubeconfig)) as official:
        assert client.VersionApi(official).get_code().git_version.startswith("v1.")
        assert len(apply_definitions(official)) == 7


def test_files_that_hold_keys_are_the_owner_s_alone(plane: ControlPlane) -> None:
    for name in ("kubeconfig", "tokens.csv", "plane.json"):
        assert (plane.root / name).stat().st_mode & 0o077 == 0, name
    assert yaml.safe_load(plane.kubeconfig.read_text())["clusters"][0]["cluster"]["server"].startswith("https://127.")


def test_a_folder_without_control_plane_says_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(NodeError, match="no control plane was started here"):
        _ = ControlPlane(tmp_path / "none").url
    assert ControlPlane(tmp_path / "none").stop() is False


def test_a_process_is_stopped_by_its_pid_and_start_alone(tmp_path: Path) -> None:
    pid_file = tmp_path / "sleep.pid"
    processes.start(["sleep", "60"], pid_file=pid_file, log=tmp_path / "log")
    record = json.loads(pid_file.read_text())
    stolen = tmp_path / "stolen.pid"
    stolen.write_text(json.dumps({**record, "started": record["started"] - 100}))
    assert not processes.alive(stolen)
    assert processes.stop(stolen, grace_s=1) is False
    assert processes.alive(pid_file)
    assert processes.stop(pid_file, grace_s=5) is True
    assert not psutil.pid_exists(record["pid"])


def test_command_line_says_what_it_did_where_nothing_runs(tmp_path: Path) -> None:
    answer = CliRunner().invoke(cluster, ["down", "--folder", str(tmp_path / "none"), "--json"])
    assert (answer.exit_code, json.loads(answer.output)) == (0, {"stopped": False})


def test_no_registry_is_named_and_every_module_has_its_checksum() -> None:
    module = ROOT / "cli/src/blurfleet_cli/cluster/controlplane"
    sums = (module / "go.sum").read_text()
    text = (module / "go.mod").read_text()
    assert f"k8s.io/kubernetes v{programs.KUBERNETES}" in text
    assert f"go.etcd.io/etcd/server/v3 v{programs.ETCD}" in text
    assert text.count(" => ") == 33
    assert f"k8s.io/kubernetes v{programs.KUBERNETES} h1:" in sums
    assert "://" not in text + sums
