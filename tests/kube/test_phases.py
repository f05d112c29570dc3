"""In every phase of a rollout: the operator is killed and goes on, repeating nothing; and a person aborts.

All phases at once, each a rollout in a namespace and on nodes of its own: one operator is killed in all of them.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, get_args

import pytest
from fleet_objects import Fleet
from operator_process import OperatorProcess
from phases import PHASES, Held
from scripted_nodes import ScriptedNode
from tests.whole_lines import whole_lines

from blurfleet.api.meta import is_true
from blurfleet.api.rollout import Phase
from blurfleet.store.kube import KubeStore
from blurfleet_cli.cluster.identities import NAMESPACE, OPERATOR
from blurfleet_cli.cluster.kubeapi import KubeApi
from blurfleet_cli.cluster.plane import ControlPlane
from blurfleet_operator.decide.kstatus import ARRIVAL_S

# Transitions that name their attempt, set, node or token: a second one of the same words would be a repetition.
ONCE = ("Accepted", "Retrying", "Promoted", "Aborted", "Tripped", "ClassReverted")
UNKNOWN = "set unknown"
_policies = itertools.count(1)


@dataclass(frozen=True, kw_only=True)
class Place:
    """One rollout that is held in a phase, with its namespace and its two nodes."""

    held: Held
    fleet: Fleet
    nodes: dict[str, ScriptedNode]

    def state(self) -> dict[str, Any]:
        """Return all that an operator which starts must leave as it is; events with their counts."""
        fleet = self.fleet
        events = fleet.api.call("GET", f"/api/v1/namespaces/{fleet.space}/events")["items"]
        engines = {n: fleet.node(n) for n in self.nodes}
        return {
            "status": fleet.status().model_dump(),
            "specs": {n: (e.meta.generation, e.spec) for n, e in engines.items()},
            "followed": {n: e.status.observed_generation == e.meta.generation for n, e in engines.items()},
            "runs": self.runs(),
            "events": Counter({(e["reason"], e["message"]): e["count"] for e in events}),
            "quarantined": fleet.quarantines().get(fleet.digest("next-a100")),
        }

    def runs(self) -> Counter[tuple[str, ...]]:
        """Return how many runs there are of each verdict."""
        specs = [r.spec for r in self.fleet.store.objects("QualityRun") if r.meta.namespace == self.fleet.space]
        return Counter((s.node, s.stage, s.digest, s.attempt) for s in specs)

    def repeated(self) -> list[object]:
        """Return the events and verdicts that are there more than once and may not be."""
        found = self.state()
        events = [said for said, count in found["events"].items() if said[0] in ONCE and count != 1]
        return [*events, *(run for run, count in found["runs"].items() if count != 1)]

    def writes(self, plane: ControlPlane) -> list[str]:
        """Return what the operator wrote about this rollout and its nodes, as the server's audit log has it."""
        user = f"system:serviceaccount:{NAMESPACE}:{OPERATOR}"
        lines = whole_lines(plane.audit_log)
        found = []
        for entry in (json.loads(line) for line in lines if user in line and self.fleet.space in line):
            about = entry["objectRef"]
            mine = self.fleet.space in (about.get("namespace"), about.get("name", "").rpartition("-")[0])
            if mine and entry["user"]["username"] == user and entry["verb"] not in ("get", "list", "watch"):
                found.append(f"{entry['verb']} {entry['requestURI']}")
        return found


def settled(fleet: Fleet) -> None:
    """Wait until the operator made a whole pass that began after now: it judges a policy that nobody saw before."""
    body = fleet.example("QualityPolicy")
    body["metadata"] |= {"name": f"seen-{next(_policies)}", "namespace": "default"}
    fleet.api.apply(body)
    path = fleet.api.path(body)
    fleet.until(lambda: "conditions" in fleet.api.call("GET", path).get("status", {}), what="the operator came round")


def at_rest(places: dict[str, Place]) -> dict[str, Any]:
    """Return the state of all once neither nodes nor operator change it any more."""
    first = next(iter(places.values())).fleet
    seen: list[dict[str, Any]] = [{}]

    def unchanged() -> bool:
        settled(first)
        seen.append({name: place.state() for name, place in places.items()})
        return seen[-1] == seen[-2] and all(all(s["followed"].values()) for s in seen[-1].values())

    first.until(unchanged, within_s=60.0, what="the fleet came to rest")
    return seen[-1]


def given_up(fleet: Fleet) -> None:
    """Wait until a set that is named and missing is no longer expected to arrive: time alone changes that status."""
    fleet.until(
        lambda: is_true(fleet.status().conditions, "Stalled"),
        within_s=ARRIVAL_S + 30.0,
        what="nobody waits for the set any more",
    )


@pytest.fixture
def places(
    person_of: Callable[[str], KubeApi],
    admin_store: KubeStore,
    api: KubeApi,
    space: str,
    fleet: Fleet,
    operator: OperatorProcess,
    join: Callable[..., ScriptedNode],
    until: Callable[..., None],
) -> Iterator[dict[str, Place]]:
    """A rollout in each phase, by the name of its row."""

    def make(number: int, held: Held) -> Place:
        name_of = f"{space}-{number}"
        api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name_of}})
        own = Fleet(admin_store, api, name_of, until, person_of(name_of))
        nodes = {n: join(f"{number}-{n}", test=own.space) for n in ("a", "b")}
        own.ground()
        own.set("good", "good")
        own.set("next", "next")
        own.rollout("good")
        return Place(held=held, fleet=own, nodes=nodes)

    # A set that is missing is waited for, see `given_up`: the others come meanwhile.
    missing = make(0, PHASES[UNKNOWN])
    missing.fleet.wait_promoted("bokeh", "good", within_s=60.0)
    missing.held.hold(missing.fleet, missing.nodes)
    rest = [name for name in PHASES if name != UNKNOWN]
    with ThreadPoolExecutor(4) as pool:
        others = list(pool.map(make, itertools.count(1), (PHASES[name] for name in rest)))
    made = {UNKNOWN: missing, **dict(zip(rest, others, strict=True))}
    for place in others:
        place.fleet.wait_promoted("bokeh", "good", within_s=60.0)
    for place in others:
        place.held.first(place.fleet, place.nodes)
    for place in others:
        place.held.hold(place.fleet, place.nodes)
    for place in made.values():
        place.fleet.wait_phase(place.held.phase, place.held.reason)
    yield made
    for place in made.values():
        body = {"apiVersion": "blurfleet.dev/v1alpha1", "kind": "EngineRollout"}
        api.delete({**body, "metadata": {"name": "bokeh", "namespace": place.fleet.space}})


def test_the_table_holds_every_phase_of_the_api() -> None:
    assert {h.phase for h in PHASES.values()} == set(get_args(Phase))


def test_an_operator_killed_in_any_phase_goes_on_there_and_repeats_nothing(
    places: dict[str, Place], operator: OperatorProcess, plane: ControlPlane
) -> None:
    given_up(places[UNKNOWN].fleet)
    before = at_rest(places)
    operator.kill()
    assert {n: (s["status"]["phase"]) for n, s in before.items()} == {n: h.phase for n, h in PHASES.items()}
    wrote = {name: len(place.writes(plane)) for name, place in places.items()}
    operator.start()
    settled(places["paused"].fleet)
    for name, place in places.items():
        assert place.state() == before[name], name
        assert place.writes(plane)[wrote[name] :] == [], name
    for place in places.values():
        place.held.release(place.fleet, place.nodes)
    for place in places.values():
        place.fleet.wait_phase(place.held.ends)
        for node in place.nodes:
            place.fleet.wait_serving(node, "next" if place.held.ends == "Promoted" else "good")
    end = at_rest(places)
    for name, place in places.items():
        assert place.repeated() == [], name
        promoted = sum(reason == "Promoted" and "next" in words for reason, words in end[name]["events"])
        assert promoted == (place.held.ends == "Promoted"), name
        same = end[name]["status"]["attempt"] == before[name]["status"]["attempt"]
        assert same is not place.held.again, name


def test_an_abort_in_any_phase_ends_with_every_node_on_the_known_good_set(
    places: dict[str, Place], until: Callable[..., None]
) -> None:
    for place in places.values():
        place.fleet.change(ops={"abort": "stop"})
    for name, place in places.items():
        until(lambda p=place: p.fleet.status().acted.abort == "stop", what=f"the abort was taken up while {name}")
        if place.held.phase == "RollingBack":
            assert place.fleet.phase() == "RollingBack"
            place.held.release(place.fleet, place.nodes)
    for place in places.values():
        place.fleet.wait_phase(place.held.abort_ends)
    at_rest(places)
    for name, place in places.items():
        fleet = place.fleet
        assert fleet.phase() == place.held.abort_ends, name
        for node in place.nodes:
            assert fleet.serving(node) == ("good", "Primary", "Mixed"), name
            assert fleet.wanted(node) == fleet.digest("good-a100"), name
            assert fleet.node(node).spec.models[0].candidate is None, name
        assert fleet.status().last_known_good == "good", name
        assert sum("abort stop:" in message for _, message in fleet.said()) == place.held.said, name
        assert place.repeated() == [], name
