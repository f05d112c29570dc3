"""Real agents on the API server: with bound tokens, beside a real Triton, and with full authority when it is away."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
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
def node(plane: ControlPlane, api: KubeApi, space: str, tmp_path: Path) -> Iterator[RealNode]:
    """One Orin-class node with Triton and agent, which stands on the API server alone."""
    name = f"{space}-orin"
    ensure_node(api, name, {"test": space, "blurfleet.dev/class": "jetson-orin"})
    token = tmp_path / "token"
    token.write_text(node_token(api, name))
    config = plane.write_kubeconfig(tmp_path / "agent.kubeconfig", "the-token-file-wins")
    (tmp_path / "models").mkdir()
    settings = TritonSettings(
        model_repository=tmp_path / "models", key=new_key(), ports=pick_ports(), shm_prefix=new_shm_prefix()
    )
    with TritonServer(ensure_environment(cache_dir()), settings, log=tmp_path / "triton.log") as server:
        server.wait_ready(60.0)
        made = RealNode(name, tmp_path / "site", server, config, token)
        made.start()
        yield made
        made.close()
    api.delete({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})


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


def feed(node: RealNode, done: Callable[[], bool], within_s: float, *, bright: bool = False) -> None:
    """Answer frames like a camera until `done`."""
    deadline = time.monotonic() + within_s
    seed = 0
    while not done():
        assert time.monotonic() < deadline, "did not come true in time under frames"
        seed += 1
        node.frame(tensor_of(picture(seed, bright=bright)))
        time.sleep(0.02)


@pytest.fixture
def canary(fleet: Fleet, node: RealNode, operator: OperatorProcess) -> dict[str, EngineRef]:
    """A sound set is promoted; a set whose Mixed engine answers NaN on bright pictures serves as canary at a gate."""
    put(fleet, "PreprocessContract", "tiny", CONTRACT)
    put(fleet, "QualityPolicy", "default", default_policy().model_copy(update={"shadow_samples": 5}))
    engine_set(fleet, node, "sound")
    fleet.rollout("sound", selector={"matchLabels": {"test": fleet.space}})
    fleet.wait_promoted("bokeh", "sound", within_s=90)
    risky = engine_set(fleet, node, "risky", "nan-when-bright")
    fleet.change(engineSet="risky", waves=[{"name": "canary", "percent": 100, "gate": "Manual"}])
    feed(node, lambda: fleet.serving("orin") == ("risky", "Primary", "Mixed"), within_s=60)
    return risky


def test_a_node_swaps_alone_while_the_api_server_is_gone_and_tells_in_order_afterwards(
    plane: ControlPlane, fleet: Fleet, node: RealNode, canary: dict[str, EngineRef], until: Until
) -> None:
    before = node.route()
    assert before is not None
    assert before.active.digest == canary["Mixed"].digest
    plane.kill_apiserver()
    gone = time.time()
    feed(node, lambda: (r := node.route()) is not None and r.serving == "Fallback", within_s=30, bright=True)
    swapped = time.time()
    after = node.route()
    assert after is not None
    assert (after.epoch, after.active.precision) == (before.epoch + 1, "FP32")
    plane.start_apiserver()
    back = time.time()
    until(lambda: "Tripped" in fleet.reasons(), within_s=60, what="the rollout hears of the trip")
    ref = Ref(kind="NodeEngine", name=node.name)

    def told() -> list[Any]:
        return [e for e in fleet.store.events(ref) if e.source == "agent"]

    def trip_at() -> int:
        reasons = [e.reason.value for e in told()]
        at = reasons.index("NonFiniteOutput") if "NonFiniteOutput" in reasons else len(reasons)
        return at if "Swapped" in reasons[at:] else -1

    until(lambda: trip_at() >= 0, within_s=60, what="the agent's events arrive")
    trip, swap = told()[trip_at() :][:2]
    assert (trip.reason.value, swap.reason.value) == ("NonFiniteOutput", "Swapped")
    assert gone <= trip.at <= swap.at <= swapped + 0.5 < back
    # The only node of its class: its trip reverts the class, to the same FP32 bytes as the set that was good.
    fleet.wait_phase("RolledBack")
    fleet.wait_serving("orin", "sound")
    model = fleet.node("orin").status.models[0]
    assert model.trips == 1
    assert (model.last_trip.digest, model.last_trip.reason) == (canary["Mixed"].digest, "NonFiniteOutput")
    assert gone <= datetime.fromisoformat(model.last_trip.at).timestamp() <= swapped
    assert [e.reason.value for e in told()].count("Swapped") == 1


def test_an_agent_killed_while_the_api_server_is_gone_serves_on_and_trips_once(
    plane: ControlPlane, fleet: Fleet, node: RealNode, canary: dict[str, EngineRef], until: Until
) -> None:
    plane.kill_apiserver()
    try:
        node.kill()
        node.start()
        served = canary["Mixed"].digest
        feed(node, lambda: (r := node.route()) is not None and r.serving == "Fallback", within_s=60, bright=True)
        route = node.route()
        assert route is not None
        assert route.active.digest != served
    finally:
        plane.start_apiserver()
    fleet.wait_phase("RolledBack", within_s=60)
    fleet.wait_serving("orin", "sound")
    assert fleet.node("orin").status.models[0].trips == 1
