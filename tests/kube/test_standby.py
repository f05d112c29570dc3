"""Two operators of distinct priorities on the real API server: one acts, the other takes over and gives back."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import yaml
from fleet_objects import Fleet
from helm_python import Chart
from operator_process import OperatorProcess
from scripted_nodes import ScriptedNode
from tests.whole_lines import whole_lines

from blurfleet_cli.cluster.ground import install
from blurfleet_cli.cluster.identities import NAMESPACE, OPERATOR, service_account_token
from blurfleet_cli.cluster.kubeapi import KubeApi
from blurfleet_cli.cluster.plane import ControlPlane

Until = Callable[..., None]
ROOT = Path(__file__).parents[2]
LIFETIME_S = 12
# The entry of a lost operator lives on for its lifetime; then the standby looks within two seconds, and passes: on a
# machine with much else to do that takes seconds more.
TAKES_OVER_WITHIN_S = LIFETIME_S + 20.0
KEY = "authentication.kubernetes.io/credential-id"
WRITES = ("create", "patch", "update", "delete")


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane of its own, with what the chart adds where a standby is wanted."""
    with ControlPlane(tmp_path_factory.mktemp("plane"), audit=True) as started:
        admin = started.admin()
        install(admin, ROOT)
        values = {"operator": {"standby": {"enabled": True}}}
        parts = Chart.load(ROOT / "charts/blurfleet").render(values, name="blurfleet", namespace=NAMESPACE)
        for name in ("rbac-operator", "operator"):
            for body in yaml.safe_load_all(parts[f"blurfleet/templates/{name}.yaml"]):
                if body and body["kind"] != "Deployment":
                    admin.apply(body)
        admin.close()
        yield started


@pytest.fixture(scope="module")
def the_operator(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> OperatorProcess:
    """No third one acts here: it is never started. The shared one belongs to another control plane."""
    return OperatorProcess(plane.kubeconfig, tmp_path_factory.mktemp("operator"))


class Ranked:
    """An operator process of one priority with a token of its own, by which the audit log tells it apart."""

    def __init__(self, plane: ControlPlane, api: KubeApi, folder: Path, name: str, priority: int) -> None:
        token = service_account_token(api, NAMESPACE, OPERATOR)
        body = token.split(".")[1]
        self.name, self.jti = name, json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))["jti"]
        folder.mkdir()
        self.process = OperatorProcess(
            plane.write_kubeconfig(folder / "kubeconfig", token),
            folder,
            BLURFLEET_IDENTITY=name,
            BLURFLEET_PRIORITY=str(priority),
            BLURFLEET_PEERING_LIFETIME_S=str(LIFETIME_S),
        )

    def said(self) -> list[tuple[bool, str]]:
        """Return when it acted and when not, with the reason, as its log says."""
        found = [json.loads(line) for line in whole_lines(self.process.log) if line.startswith("{")]
        return [(e["acts"], e["reason"]) for e in found if "acts" in e]


@pytest.fixture
def ranked(plane: ControlPlane, api: KubeApi, tmp_path: Path) -> Iterator[Callable[[str, int], Ranked]]:
    made: list[Ranked] = []

    def make(name: str, priority: int) -> Ranked:
        made.append(Ranked(plane, api, tmp_path / name, name, priority))
        return made[-1]

    yield make
    for one in made:
        one.process.stop()


@pytest.fixture
def pair(ranked: Callable[[str, int], Ranked]) -> tuple[Ranked, Ranked]:
    return ranked("first", 100), ranked("second", 50)


def entries(plane: ControlPlane, *who: Ranked) -> list[tuple[str, Any]]:
    """Return what the audit log holds of each operator's token, in order of time."""
    names = {f"JTI={w.jti}": w.name for w in who}
    found: list[Any] = [json.loads(line) for line in whole_lines(plane.audit_log)]
    found.sort(key=lambda e: e["requestReceivedTimestamp"])
    keyed = ((names.get(key), e) for e in found for key in e["user"].get("extra", {}).get(KEY, []))
    return [(name, e) for name, e in keyed if name is not None]


def writers(plane: ControlPlane, *who: Ranked) -> list[str]:
    """Return who wrote objects of the fleet, in order of time, each span of one writer once."""
    own = ("clusterkopfpeerings", "leases")
    found = (n for n, e in entries(plane, *who) if e["verb"] in WRITES and e["objectRef"]["resource"] not in own)
    return [name for name, _ in groupby(found)]


def test_the_standby_takes_over_a_rollout_under_way_gives_it_back_and_the_two_never_write_in_turns(
    plane: ControlPlane,
    fleet: Fleet,
    pair: tuple[Ranked, Ranked],
    join: Callable[..., ScriptedNode],
    until: Until,
) -> None:
    first, second = pair
    first.process.start()
    until(lambda: (True, "Acting") in first.said(), what="the first acts")
    second.process.start()
    nodes = {n: join(n) for n in ("a", "b")}
    until(lambda: all(fleet.node(n) is not None for n in nodes), what="both nodes are registered")
    fleet.ground()
    for name in ("good", "next", "last"):
        fleet.set(name, name)
    fleet.rollout("good")
    fleet.wait_promoted("bokeh", "good")
    # It may see the first's Lease before kopf has put the first's entry into the peering object: HandingOver, then.
    until(lambda: second.said()[-1:] == [(False, "StandingBy")], what="the second stands by")
    assert not any(acts for acts, _ in second.said())
    waves = [{"name": "one", "nodes": [f"{fleet.space}-a"], "gate": "Manual"}, {"name": "all", "percent": 100}]
    fleet.change(engineSet="next", waves=waves)
    fleet.wait_phase("Holding", "WaitingForGate")
    assert writers(plane, first, second) == ["first"]
    assert second.process.alive()

    first.process.kill()
    killed = time.monotonic()
    fleet.change(ops={"promote": "go"})
    fleet.wait_promoted("bokeh", "next", within_s=TAKES_OVER_WITHIN_S)
    took_over = time.monotonic() - killed
    assert took_over < TAKES_OVER_WITHIN_S
    assert writers(plane, first, second) == ["first", "second"]

    first.process.start()
    until(lambda: first.said()[-1] == (True, "Acting") and len(first.said()) > 1, what="the first takes back")
    fleet.change(engineSet="last", waves=[{"name": "all", "percent": 100, "soak": "0s"}])
    fleet.wait_promoted("bokeh", "last")
    until(lambda: second.said()[-1] == (False, "StandingBy"), what="the second stands by again")
    assert writers(plane, first, second) == ["first", "second", "first"]

    for name, node in nodes.items():
        fleet.wait_serving(name, "last")
        assert node.served[-3:] == [fleet.digest(f"{n}-a100") for n in ("good", "next", "last")]
        assert len(node.served) == len(set(node.served))
    assert len(fleet.said()) == len(set(fleet.said()))
    assert fleet.reasons().count("Promoted") == 3

    # In order, nothing has to run out: the next one acts as soon as it looks.
    assert first.process.stop() == 0
    until(lambda: second.said()[-1] == (True, "Acting"), within_s=0.75 * LIFETIME_S, what="the second acts at once")
    refused = [e["requestURI"] for _, e in entries(plane, first, second) if e["responseStatus"]["code"] == 403]
    assert refused == []


def test_of_two_equal_ones_neither_acts_until_one_goes(ranked: Callable[[str, int], Ranked], until: Until) -> None:
    twins = ranked("castor", 70), ranked("pollux", 70)
    for twin in twins:
        twin.process.start()
    for twin in twins:
        until(lambda t=twin: t.said()[-1:] == [(False, "PriorityShared")], what=f"{twin.name} stands still")
    twins[0].process.stop()
    until(lambda: twins[1].said()[-1] == (True, "Acting"), what="the other acts")
