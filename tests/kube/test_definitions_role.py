"""The chart's upgrade hook: what its Job runs, by the Job's own account, and the role beside what was asked."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from helm_python import Chart
from test_roles import Right, forbidden, rights, used

from blurfleet.api.kinds import KINDS
from blurfleet_cli.cluster.identities import NAMESPACE, service_account_token
from blurfleet_cli.cluster.kubeapi import KubeApi
from blurfleet_cli.cluster.plane import ControlPlane

ROOT = Path(__file__).parents[2]
ACCOUNT = "blurfleet-crds"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


@pytest.fixture(scope="module")
def hook() -> dict[str, dict[str, Any]]:
    """The hook's manifests by kind, as an upgrade renders them."""
    parts = Chart.load(ROOT / "charts/blurfleet").render({}, name="blurfleet", namespace=NAMESPACE, is_upgrade=True)
    bodies = yaml.safe_load_all(parts["blurfleet/templates/crd-upgrade.yaml"])
    return {body["kind"]: body for body in bodies if body}


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A server that knows none of our kinds: the hook must be able to make them too."""
    with ControlPlane(tmp_path_factory.mktemp("bare"), audit=True) as started:
        yield started


@pytest.fixture(scope="module")
def ran(
    bare: ControlPlane, hook: dict[str, dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[KubeApi]:
    """The Job's command twice, by the token of the Job's account: nothing was there, then everything was."""
    api = bare.admin()
    api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    for kind in ("ServiceAccount", "ClusterRole", "ClusterRoleBinding"):
        api.apply(hook[kind])
    pod = hook["Job"]["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == ACCOUNT
    folder = tmp_path_factory.mktemp("job")
    token = service_account_token(api, NAMESPACE, ACCOUNT)
    config = bare.write_kubeconfig(folder / "kubeconfig", token)
    [container] = pod["containers"]
    python, *arguments = container["command"]
    assert python == "python"
    env = {**os.environ, "KUBECONFIG": str(config), "TMPDIR": str(folder)}
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, *arguments], env=env, capture_output=True, text=True, timeout=60.0, check=False
        )
        assert done.returncode == 0, done.stderr
        assert len(yaml.safe_load(done.stdout)["applied"]) == len(KINDS)
    yield api
    api.close()


def test_the_hook_makes_and_renews_every_kind(ran: KubeApi) -> None:
    names = {body["metadata"]["name"] for body in ran.call("GET", DEFINITIONS)["items"]}
    assert len(names) == len(KINDS)
    assert all(name.endswith(".blurfleet.dev") for name in names)


@pytest.mark.usefixtures("ran")
def test_its_role_grants_what_it_asks_for_and_no_more(bare: ControlPlane, hook: dict[str, dict[str, Any]]) -> None:
    group, resource = "apiextensions.k8s.io", "customresourcedefinitions"
    assert forbidden(bare, ACCOUNT, "") == set()
    assert used(bare, ACCOUNT) == {Right(group, resource, verb) for verb in ("patch", "create")}
    assert rights(hook["ClusterRole"]["rules"]) == used(bare, ACCOUNT)


def test_it_may_patch_the_chart_s_own_kinds_alone(hook: dict[str, dict[str, Any]], ran: KubeApi) -> None:
    patch, create = hook["ClusterRole"]["rules"]
    assert (patch["verbs"], create["verbs"]) == (["patch"], ["create"])
    assert set(patch["resourceNames"]) == {b["metadata"]["name"] for b in ran.call("GET", DEFINITIONS)["items"]}
