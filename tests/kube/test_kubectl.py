"""The real kubectl: what people of a namespace apply, wait for, look at and steer with nothing but their own rights."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from fleet_objects import EXAMPLES, Fleet
from operator_process import OperatorProcess
from people import token_of
from real_kubectl import Kubectl
from scripted_nodes import ScriptedNode

from blurfleet.identity import digest12
from blurfleet_cli.cluster.kubeapi import KubeApi
from blurfleet_cli.cluster.plane import ControlPlane

ROOT = Path(__file__).parents[2]
AGE = re.compile(r"^\d+[smh](\d+[sm])?$")


@pytest.fixture
def people(plane: ControlPlane, api: KubeApi, space: str, tmp_path: Path) -> dict[str, Kubectl]:
    """Who may edit in the namespace, and who may only look."""
    made = {}
    for role in ("edit", "view"):
        (tmp_path / role).mkdir()
        config = plane.write_kubeconfig(tmp_path / role / "config", token_of(api, space, role))
        made[role] = Kubectl(config, space)
    return made


def examples(folder: Path, space: str) -> Path:
    """Return a copy of `examples/` with its rollout over the nodes of this test, with soaks it has time for."""
    shutil.copytree(ROOT / "examples", folder, ignore=shutil.ignore_patterns("local"))
    path = folder / "rollout.yaml"
    body = yaml.safe_load(path.read_text(encoding="utf-8"))
    body["spec"]["selector"]["matchLabels"] = {"test": space}
    for wave in body["spec"]["waves"]:
        wave["soak"] = "1s"
    path.write_text(yaml.safe_dump(body), encoding="utf-8")
    return folder


def without_age(rows: dict[str, dict[str, str]]) -> list[dict[str, str]]:
    assert [r for r in rows.values() if not AGE.match(r["AGE"])] == []
    return [{k: v for k, v in row.items() if k not in ("NAME", "AGE")} for row in rows.values()]


def test_examples_are_applied_waited_for_looked_at_and_steered_by_people_of_the_namespace(
    fleet: Fleet,
    operator: OperatorProcess,
    join: Callable[..., ScriptedNode],
    people: dict[str, Kubectl],
    tmp_path: Path,
) -> None:
    edit, view = people["edit"], people["view"]
    nodes = {n: join(n, c) for n, c in (("a", "a100"), ("o", "jetson-orin"))}
    fleet.until(lambda: all(fleet.node(n) is not None for n in nodes), what="both nodes are registered")
    folder = examples(tmp_path / "examples", fleet.space)
    forbidden = view("apply", "-n", fleet.space, "-f", str(folder / "contract.yaml"))
    assert forbidden.returncode == 1
    assert "cannot create resource" in forbidden.stderr
    applied = edit("apply", "-n", fleet.space, "-f", str(folder))
    assert (applied.returncode, applied.stderr) == (0, "")
    assert applied.stdout.count(" created") == len(EXAMPLES)
    gate = "jsonpath={.status.conditions[?(@.type=='Ready')].reason}=WaitingForGate"
    assert view("wait", f"--for={gate}", "er/bokeh", "-n", fleet.space, "--timeout=60s").returncode == 0
    [held] = without_age(view.table("er"))
    assert (held["PHASE"], held["WAVE"], held["TRIPPED"]) == ("Holding", "half", "0")
    refused = view("blurfleet", "rollout", "promote", "bokeh", "-n", fleet.space)
    assert refused.returncode == 1
    assert "cannot patch resource" in refused.stderr
    assert edit("blurfleet", "rollout", "promote", "bokeh", "-n", fleet.space).returncode == 0
    promoted = view("wait", "--for=condition=Promoted", "er/bokeh", "-n", fleet.space, "--timeout=60s")
    assert (promoted.returncode, promoted.stdout) == (0, "enginerollout.blurfleet.dev/bokeh condition met\n")
    assert view("wait", "--for=condition=Stalled=false", "er/bokeh", "-n", fleet.space, "--timeout=60s").returncode == 0
    status = view("blurfleet", "rollout", "status", "bokeh", "-n", fleet.space)
    assert status.returncode == 0
    assert f"{fleet.space}/bokeh Promoted bokeh-mixed-2" in status.stdout
    before = fleet.get().meta.generation
    assert edit("apply", "-n", fleet.space, "-f", str(folder)).returncode == 0
    assert fleet.get().meta.generation == before
    differs = edit("diff", "-n", fleet.space, "-f", str(folder))
    assert (differs.returncode, differs.stdout) == (0, "")
    for kind in ("es", "ppc", "qp", "er"):
        ready = view("wait", "--for=condition=Ready", kind, "--all", "-n", fleet.space, "--timeout=60s")
        assert (ready.returncode, ready.stderr) == (0, "")


def test_every_column_says_what_it_is_named_for_to_who_may_only_look(
    fleet: Fleet, started: dict[str, ScriptedNode], people: dict[str, Kubectl]
) -> None:
    view, bad = people["view"], fleet.digest("next-a100")
    fleet.set("next", "next")
    fleet.change(engineSet="next")
    fleet.wait_promoted("bokeh", "next")
    started["a"].script.trips.add(bad)
    fleet.wait_serving("a", "good" if fleet.serving("a")[0] == "good" else "next", "Fallback")
    fleet.until(lambda: fleet.status().tripped == 1, what="the trip is counted")
    assert without_age(view.table("er")) == [
        {"PHASE": "Promoted", "SET": "next", "WAVE": "all", "NODES": "1/2", "TRIPPED": "1", "FALLBACK": "next"}
    ]
    rows = {n: r for n, r in view.table("ne").items() if n.startswith(fleet.space)}
    assert set(rows) == {f"{fleet.space}-a", f"{fleet.space}-b"}
    assert {(r["ACTIVE"], r["CONNECTED"]) for r in rows.values()} == {("next", "Yes")}
    sets = view.table("es")
    assert without_age(sets) == [{"MODEL": "bokeh", "VERIFIED": "True", "COMPATIBLE": "True"}] * 2
    fleet.until(lambda: any(r["STAGE"] == "Live" for r in view.table("qr").values()), what="the trip's run")
    runs = [(r["NODE"], r["STAGE"], r["VERDICT"], r["REASON"]) for r in view.table("qr").values()]
    assert (f"{fleet.space}-a", "Live", "Fail", "DEERExceeded") in runs
    assert (f"{fleet.space}-b", "Shadow", "Pass", "ShadowPassed") in runs
    valid = {(r["STAGE"], r["VALID"]) for r in view.table("qr").values()}
    assert {("Shadow", "20"), ("Golden", "0")} <= valid
    started["b"].script.trips.add(bad)
    fleet.wait_phase("RolledBack")
    [row] = [r for n, r in view.table("eq").items() if n.startswith(digest12(bad))]
    assert (row["DIGEST"], row["CLASS"], row["REASON"]) == (bad, "a100", "DEERExceeded")
    assert [r["VERIFIED"] for n, r in view.table("es").items() if n == "next"] == ["False"]
    [wide] = view.table("er", "-o", "wide").values()
    assert (wide["PHASE"], wide["REASON"]) == ("RolledBack", "Quarantined")
    failed = view("wait", "--for=condition=Stalled", "er/bokeh", "-n", fleet.space, "--timeout=60s")
    assert failed.returncode == 0
    described = view("describe", "er/bokeh", "-n", fleet.space)
    assert described.returncode == 0
    assert re.search(r"Warning\s+DEERExceeded|Warning\s+ClassReverted", described.stdout)
