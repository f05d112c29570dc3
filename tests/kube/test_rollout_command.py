"""`blurfleet rollout` on a cluster and on a local fleet: what it says, what it changes, and its exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fleet_objects import Fleet
from operator_process import OperatorProcess
from people import token_of
from scripted_nodes import ScriptedNode

from blurfleet.api.kinds import parse_resource
from blurfleet.api.meta import timestamp
from blurfleet.api.rollout import KnownGood, RolloutStatus
from blurfleet.store.folder import FolderStore
from blurfleet.store.port import Ref
from blurfleet_cli.cluster.kubeapi import KubeApi
from blurfleet_cli.cluster.plane import ControlPlane

Ask = Callable[..., tuple[int, str, str]]


def ask(*words: str) -> tuple[int, str, str]:
    """Run the command line; returns exit code, output, errors."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("BLURFLEET_", "KUBECONFIG"))}
    done = subprocess.run(
        [sys.executable, "-m", "blurfleet_cli", "rollout", *words], env=env, capture_output=True, text=True, timeout=60
    )
    return done.returncode, done.stdout, done.stderr


def test_a_rollout_in_a_cluster_is_followed_promoted_undone_and_aborted(
    fleet: Fleet,
    operator: OperatorProcess,
    join: Callable[..., ScriptedNode],
    plane: ControlPlane,
    api: KubeApi,
    tmp_path: Path,
) -> None:
    may_edit, may_view = (
        ("bokeh", "-n", fleet.space, "--kubeconfig", str(plane.write_kubeconfig(tmp_path / role, token)))
        for role, token in ((r, token_of(api, fleet.space, r)) for r in ("edit", "view"))
    )
    where = may_edit
    join("a")
    fleet.ground()
    fleet.set("one", "one")
    fleet.set("two", "two")
    fleet.rollout("one")
    code, out, _ = ask("status", *may_view, "--watch")
    assert code == 0
    assert f"{fleet.space}/bokeh Promoted one" in out.splitlines()[-1]
    fleet.change(engineSet="two", waves=[{"name": "all", "percent": 100, "gate": "Manual"}])
    fleet.wait_phase("Holding", "WaitingForGate")
    code, out, _ = ask("diff", *may_view, "--json")
    told = json.loads(out)
    assert (told["from"], told["to"]) == ("one", "two")
    assert [v["target"].split()[0] for v in told["variants"]] == ["a100"]
    code, _, err = ask("promote", *may_view, "--token", "go")
    assert code == 1
    assert "cannot patch resource" in err
    assert ask("promote", *where, "--token", "go")[0] == 0
    fleet.wait_promoted("bokeh", "two")
    code, out, _ = ask("tree", *may_view)
    assert code == 0
    assert "a100 (1/1 serve what they are told)" in out
    assert f"{fleet.space}-a: two@" in out
    code, out, _ = ask("undo", *where, "--json")
    assert json.loads(out)["to"] == "one"
    assert fleet.get().spec.waves[0].gate == "Manual"
    assert ask("abort", *where)[0] == 0
    fleet.wait_phase("Aborted")
    code, out, _ = ask("status", *where, "--watch")
    assert code == 1
    assert "Aborted" in out


@pytest.fixture
def local(tmp_path: Path) -> FolderStore:
    """A local fleet's store with one promoted rollout."""
    store = FolderStore(tmp_path / "store")
    body: Any = {
        "apiVersion": "blurfleet.dev/v1alpha1",
        "kind": "EngineRollout",
        "metadata": {"name": "bokeh"},
        "spec": {"model": "bokeh", "engineSet": "two", "policyRef": "strict", "ops": {"retry": "r1"}},
    }
    store.apply(parse_resource(body))
    good = [KnownGood(device_class="a100", set=s, at=timestamp(t)) for s, t in (("two", 3.0), ("one", 2.0))]
    ref = Ref(kind="EngineRollout", name="bokeh", namespace="default")
    status = RolloutStatus(phase="Promoted", set="two", nodes="3/3", observed_generation=1, known_good=tuple(good))
    store.write_status(ref, status)
    return store


def test_a_local_fleet_is_steered_the_same_way(local: FolderStore, tmp_path: Path) -> None:
    where = ("bokeh", "--fleet", str(tmp_path))
    code, out, _ = ask("status", *where, "--json")
    assert code == 0
    assert json.loads(out)["phase"] == "Promoted"
    assert ask("abort", *where, "--token", "t1")[0] == 0
    ref = Ref(kind="EngineRollout", name="bokeh", namespace="default")
    spec = local.get(ref).spec
    assert (spec.ops.abort, spec.ops.retry) == ("t1", "r1")
    assert ask("undo", *where)[0] == 0
    assert local.get(ref).spec.engine_set == "one"


def test_a_rollout_that_does_not_exist_is_said_in_one_line(local: FolderStore, tmp_path: Path) -> None:
    code, out, err = ask("status", "none", "--fleet", str(tmp_path))
    assert (code, out) == (1, "")
    assert err.startswith("error: EngineRollout default/none does not exist")
    assert "Traceback" not in err


def test_undo_without_an_earlier_good_set_says_what_to_do(local: FolderStore, tmp_path: Path) -> None:
    ref = Ref(kind="EngineRollout", name="bokeh", namespace="default")
    local.write_status(ref, RolloutStatus())
    code, _, err = ask("undo", "bokeh", "--fleet", str(tmp_path))
    assert code == 1
    assert "point spec.engineSet at a set yourself" in err
