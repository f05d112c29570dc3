"""Real agents on the API server: with bound tokens, beside a real Triton, and with full authority when it is away."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from fleet_objects import Fleet
from operator_process import OperatorProcess
from real_nodes import RealNode
from tests.agent.tiny import CONTRACT, engine, golden, picture, tensor_of

from blurfleet.api.engineset import EngineSetSpec, Variant
from blurfleet.api.kinds import KINDS, Resource
from blurfleet.api.meta import ObjectMeta
from blurfleet.api.nodeengine import EngineRef
from blurfleet.api.record import Target
from blurfleet.cache import cache_dir
from blurfleet.quality.rules import default_policy
from blurfleet.store.port import Ref
from blurfleet_agent.tritonenv import ensure_environment
from blurfleet_agent.tritonserver import TritonServer, TritonSettings, new_key, new_shm_prefix, pick_ports
from blurfleet_cli.cluster.identities import ensure_node, node_token
from blurfleet_cli.cluster.kubeapi import KubeApi
from blurfleet_cli.cluster.plane import ControlPlane

Until = Callable[..., None]


@pytest.fixture
def pair(plane: ControlPlane, api: KubeApi, space: str, tmp_path: Path) -> Iterator[dict[str, RealNode]]:
    """Two Orin-class nodes, each with its own Triton and its own agent, which stand on the API server alone."""
    servers: dict[str, TritonServer] = {}
    nodes: dict[str, RealNode] = {}
    with ExitStack() as ends:
        for short in ("one", "two"):
            folder = tmp_path / short
            (folder / "models").mkdir(parents=True)
            settings = TritonSettings(
                model_repository=folder / "models", key=new_key(), ports=pick_ports(), shm_prefix=new_shm_prefix()
            )
            server = TritonServer(ensure_environment(cache_dir()), settings, log=folder / "triton.log")
            servers[short] = ends.enter_context(server)
            ends.callback(server.kill)  # a stop in order takes 1 to 3 s, and has tests of its own
        for short, server in servers.items():
            server.wait_ready(60.0)
            name, folder = f"{space}-{short}", tmp_path / short
            ensure_node(api, name, {"test": space, "blurfleet.dev/class": "jetson-orin"})
            token = folder / "token"
            token.write_text(node_token(api, name))
            config = plane.write_kubeconfig(folder / "agent.kubeconfig", "the-token-file-wins")
            nodes[short] = RealNode(name, folder / "site", server, config, token)
            ends.callback(nodes[short].close)
            nodes[short].start()
        yield nodes
    for node in nodes.values():
        api.delete({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node.name}})


@pytest.fixture
def node(pair: dict[str, RealNode]) -> RealNode:
    """The first of the two nodes."""
    return pair["one"]


def engine_set(fleet: Fleet, node: RealNode, name: str, kind: str = "") -> dict[str, EngineRef]:
    """Apply a set of a sound FP32 engine and, with `kind`, a Mixed one that is wrong in that way."""
    engines = {"FP32": engine(node.shelf, "sound", set_name=name, precision="FP32", salt=fleet.space)}
    if kind:
        engines["Mixed"] = engine(node.shelf, kind, set_name=name, salt=fleet.space)
    target = Target(device_class="jetson-orin", platform="linux-x86_64-cpu", runtime_version="0")
    variants = tuple(
        Variant(
            name=f"orin-{precision.lower()}",
            target=target,
            runtime="python",
            precision=precision,
            artifact=ref.artifact,
            build_record=ref.build_record,
        )
        for precision, ref in engines.items()
    )
    spec = EngineSetSpec(model="bokeh", contract_ref="tiny", golden=golden(node.shelf), variants=variants)
    put(fleet, "EngineSet", name, spec)
    return engines


def put(fleet: Fleet, kind: str, name: str, spec: Any) -> None:
    meta = ObjectMeta(name=name, namespace=fleet.space)
    fleet.store.apply(Resource(kind=kind, meta=meta, spec=spec, status=KINDS[kind].status()))


def feed(nodes: Iterable[RealNode], done: Callable[[], bool], within_s: float, *, bright: bool = False) -> None:
    """Answer frames on each of `nodes` like a camera until `done`."""
    deadline = time.monotonic() + within_s
    seed = 0
    while not done():
        assert time.monotonic() < deadline, "did not come true in time under frames"
        seed += 1
        for node in nodes:
            node.frame(tensor_of(picture(seed, bright=bright)))
        time.sleep(0.02)  # a camera's pace: 50 Hz


def fell_back(node: RealNode) -> bool:
    """Tell whether the node's gateways are sent to its fallback."""
    route = node.route()
    return route is not None and route.serving == "Fallback"


@pytest.fixture
def canary(fleet: Fleet, pair: dict[str, RealNode], operator: OperatorProcess) -> dict[str, EngineRef]:
    """A sound set is promoted on both; a set whose Mixed engine answers NaN on bright pictures serves at a gate."""
    put(fleet, "PreprocessContract", "tiny", CONTRACT)
    put(fleet, "QualityPolicy", "default", default_policy().model_copy(update={"shadow_samples": 5}))
    engine_set(fleet, pair["one"], "sound")
    fleet.rollout("sound", selector={"matchLabels": {"test": fleet.space}})
    fleet.wait_promoted("bokeh", "sound", within_s=90)
    assert fleet.status().nodes == "2/2"
    risky = engine_set(fleet, pair["one"], "risky", "nan-when-bright")
    fleet.change(engineSet="risky", waves=[{"name": "canary", "percent": 100, "gate": "Manual"}])
    wanted = ("risky", "Primary", "Mixed")
    feed(pair.values(), lambda: all(fleet.serving(n) == wanted for n in pair), within_s=60)
    # The gate is reached only once live frames of both nodes are judged.
    feed(pair.values(), lambda: fleet.why() == "WaitingForGate", within_s=60)
    return risky


def agent_said(fleet: Fleet, node: RealNode) -> list[Any]:
    """Return the agent's events about its node, in order of time."""
    return [e for e in fleet.store.events(Ref(kind="NodeEngine", name=node.name)) if e.source == "agent"]


def spoken(fleet: Fleet, node: RealNode) -> list[str]:
    """Return the reasons of the agent's events."""
    return [e.reason.value for e in agent_said(fleet, node)]


def test_two_real_nodes_are_promoted_one_trips_alone_and_the_second_one_takes_the_class_back(
    fleet: Fleet, pair: dict[str, RealNode], canary: dict[str, EngineRef], until: Until
) -> None:
    fleet.change(ops={"promote": "go"})
    fleet.wait_promoted("bokeh", "risky")
    assert fleet.condition("bokeh", "Promoted") == ("True", "Promoted")
    assert (fleet.table("enginerollouts")["NODES"], fleet.status().nodes) == ("2/2", "2/2")
    one, two = pair["one"], pair["two"]
    feed([one], lambda: fell_back(one), within_s=30, bright=True)
    fleet.wait_serving("one", "risky", "Fallback")
    until(lambda: fleet.status().tripped == 1, what="the rollout counts one trip")
    route = two.route()
    assert route is not None
    assert (route.serving, route.active.digest) == ("Primary", canary["Mixed"].digest)
    assert fleet.serving("two") == ("risky", "Primary", "Mixed")
    assert canary["Mixed"].digest not in fleet.quarantines()
    assert "ClassReverted" not in fleet.reasons()
    feed([two], lambda: fell_back(two), within_s=30, bright=True)
    fleet.wait_phase("RolledBack")
    assert fleet.quarantines()[canary["Mixed"].digest] == "jetson-orin"
    until(lambda: "ClassReverted" in fleet.reasons(), what="the revert is said")
    for name, node in pair.items():
        fleet.wait_serving(name, "sound")
        model = fleet.node(name).status.models[0]
        assert (model.trips, model.last_trip.reason) == (1, "NonFiniteOutput")
        until(lambda n=node: "Swapped" in spoken(fleet, n), what="the agent says its swap")
        assert [spoken(fleet, node).count(r) for r in ("NonFiniteOutput", "Swapped")] == [1, 1]
    assert fleet.reasons().count("ClassReverted") == 1
    runs = [r.spec for r in fleet.store.objects("QualityRun") if r.meta.namespace == fleet.space]
    live = [(r.node, r.verdict, r.reason) for r in runs if r.stage == "Live"]
    assert sorted(live) == [(n.name, "Fail", "NonFiniteOutput") for n in pair.values()]


def test_a_node_swaps_alone_while_the_api_server_is_gone_and_tells_in_order_afterwards(
    plane: ControlPlane, fleet: Fleet, pair: dict[str, RealNode], canary: dict[str, EngineRef], until: Until
) -> None:
    one, two = pair["one"], pair["two"]
    before, beside = one.route(), two.route()
    assert before is not None
    assert before.active.digest == canary["Mixed"].digest
    plane.kill_apiserver()
    gone = time.time()
    try:
        feed([one], lambda: fell_back(one), within_s=30, bright=True)
        swapped = time.time()
        after = one.route()
        feed([two], lambda: True, within_s=30)
    finally:
        plane.start_apiserver()
    back = time.time()
    assert after is not None
    assert (after.epoch, after.active.precision) == (before.epoch + 1, "FP32")
    until(lambda: "Tripped" in fleet.reasons(), within_s=60, what="the rollout hears of the trip")

    def trip_at() -> int:
        reasons = spoken(fleet, one)
        at = reasons.index("NonFiniteOutput") if "NonFiniteOutput" in reasons else len(reasons)
        return at if "Swapped" in reasons[at:] else -1

    until(lambda: trip_at() >= 0, within_s=60, what="the agent's events arrive")
    trip, swap = agent_said(fleet, one)[trip_at() :][:2]
    assert (trip.reason.value, swap.reason.value) == ("NonFiniteOutput", "Swapped")
    assert gone <= trip.at <= swap.at <= swapped + 0.5 < back
    # One of two: the rollout holds, the class stays, and the other node is not touched.
    fleet.wait_phase("Holding", "HoldTripped")
    fleet.wait_serving("one", "sound", "Fallback")
    assert fleet.serving("two") == ("risky", "Primary", "Mixed")
    assert two.route() == beside
    assert canary["Mixed"].digest not in fleet.quarantines()
    model = fleet.node("one").status.models[0]
    assert model.trips == 1
    assert (model.last_trip.digest, model.last_trip.reason) == (canary["Mixed"].digest, "NonFiniteOutput")
    assert gone <= datetime.fromisoformat(model.last_trip.at).timestamp() <= swapped
    assert fleet.status().trips[0].at == model.last_trip.at
    assert spoken(fleet, one).count("Swapped") == 1
    assert spoken(fleet, two).count("Swapped") == 0


def test_an_agent_killed_while_the_api_server_is_gone_serves_on_and_trips_once(
    plane: ControlPlane, fleet: Fleet, node: RealNode, canary: dict[str, EngineRef]
) -> None:
    plane.kill_apiserver()
    try:
        node.kill()
        node.start()
        feed([node], lambda: fell_back(node), within_s=60, bright=True)
        route = node.route()
        assert route is not None
        assert route.active.digest != canary["Mixed"].digest
    finally:
        plane.start_apiserver()
    fleet.wait_phase("Holding", "HoldTripped", within_s=60)
    fleet.wait_serving("one", "sound", "Fallback")
    assert fleet.node("one").status.models[0].trips == 1


def test_agent_triton_and_operator_killed_at_once_are_unknown_in_time_and_then_as_they_were(
    fleet: Fleet, pair: dict[str, RealNode], keen: OperatorProcess
) -> None:
    put(fleet, "PreprocessContract", "tiny", CONTRACT)
    put(fleet, "QualityPolicy", "default", default_policy())
    engine_set(fleet, pair["one"], "sound")
    fleet.rollout("sound", selector={"matchLabels": {"test": fleet.space}})
    fleet.wait_promoted("bokeh", "sound", within_s=90)
    one = pair["one"]
    before = one.route()
    assert before is not None
    one.kill()
    one.server.kill()
    keen.kill()
    keen.start()
    fleet.until(lambda: fleet.node("one").status.connected == "Unknown", within_s=75, what="doubted")
    fleet.until(lambda: fleet.condition("bokeh", "Ready") == ("Unknown", "PartialFleet"), what="the rollout says so")
    silent = fleet.node("one").status
    assert {c.status for m in silent.models for c in (*m.conditions, *silent.conditions)} == {"Unknown"}
    assert fleet.serving("one") == ("sound", "Primary", "FP32")
    assert fleet.node("two").status.connected != "Unknown"
    one.server.start()
    one.server.wait_ready(60.0)
    one.start()
    fleet.until(lambda: fleet.condition("bokeh", "Ready") == ("True", "Promoted"), within_s=90, what="true again")
    after = one.route()
    assert after is not None
    assert (after.active.digest, after.serving) == (before.active.digest, before.serving)
    status = fleet.node("one").status
    assert status.connected != "Unknown"
    assert [(m.serving.digest, m.serving.epoch, m.trips) for m in status.models] == [
        (after.active.digest, after.epoch, 0)
    ]
