"""The loop of a node, turned by hand with a stand-in for Triton: its waits end whatever the wall clock says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from prometheus_client import CollectorRegistry
from tests.agent.standins import FACE, OLD, OLD32, FlipsStandIn, name, routed

from blurfleet.api.meta import condition
from blurfleet.api.nodeengine import NodeEngineSpec, NodeEngineStatus, NodeFacts, NodeModel
from blurfleet.api.policy import PolicySpec
from blurfleet.deadline import came_true
from blurfleet.quality.rules import default_policy
from blurfleet.reasons import Reason
from blurfleet.serving.routing import read_routing
from blurfleet_agent.aliases import Proof
from blurfleet_agent.ballast import Ballast
from blurfleet_agent.decide import RunGolden
from blurfleet_agent.desired import Wish
from blurfleet_agent.exporter import Metrics
from blurfleet_agent.guard_thread import GuardThread
from blurfleet_agent.journal import Journal
from blurfleet_agent.node import Node
from blurfleet_agent.parts import Parts
from blurfleet_agent.remembered import Remembered
from blurfleet_agent.swap import SwapOrder, Swapper
from blurfleet_agent.view import GoldenAnswer, GoldenResult
from blurfleet_agent.watch import Watch

START = 1_800_000_000.0


class Bench:
    """A node that serves OLD beside OLD32; `steady` and `wall` are its clocks."""

    def __init__(self, folder: Path) -> None:
        self.steady = self.wall = START
        self.asked: list[tuple[str, float]] = []
        self.written: list[NodeEngineStatus] = []
        self.generation = 1
        self.answer_after: str | None = None
        self.routing = folder / "routing.json"
        journal = Journal(folder / "journal.bin")
        swapper = Swapper(
            journal=journal,
            routing_file=self.routing,
            flips=FlipsStandIn(),
            ballast=Ballast(folder / "ballast.bin"),
            simulated=True,
        )
        swapper.learn("bokeh", FACE)
        swapper.swap(
            SwapOrder(
                alias="bokeh",
                to=routed(OLD),
                role="Primary",
                primary=routed(OLD),
                fallback=None,
                why="Serve",
                reason=Reason.SERVING,
            )
        )
        model = NodeModel(
            name="bokeh", attempt="a1", primary=OLD, fallback=OLD32, oracle=OLD32, policy=default_policy()
        )
        self.model, self.notes = model, Remembered()
        parts = SimpleNamespace(
            settings=SimpleNamespace(
                node="orin-0", device_class="jetson-orin", simulated=True, unload_after_s=30.0, status_every_s=10.0
            ),
            desired=SimpleNamespace(
                read=self._wish, status=NodeEngineStatus, trust=self._trust, write=self._write, doubted=False
            ),
            engines=SimpleNamespace(
                ready=lambda: frozenset({"bokeh", name(OLD), name(OLD32)}),
                memory_low=lambda: False,
                staged_record=lambda _: None,
                files_of=lambda _: frozenset(),
            ),
            swapper=swapper,
            journal=journal,
            work=SimpleNamespace(
                golden=self._golden, record=lambda _: None, prove=lambda *_: Proof(requests=9, failed=0, stale=0)
            ),
            metrics=Metrics(CollectorRegistry(), node="orin-0", device_class="jetson-orin"),
            collect=lambda *_: None,
            facts=NodeFacts,
            runtime=lambda: None,
            outbox=None,
        )
        self.node = Node(cast(Parts, parts), clock=lambda: self.steady, wall=lambda: self.wall)

    def _wish(self) -> Wish:
        spec = NodeEngineSpec(device_class="jetson-orin", models=(self.model,), answer_after=self.answer_after)
        return Wish(spec=spec, generation=self.generation, notes=self.notes, problem=None)

    def _trust(self, model: NodeModel) -> None:
        self.notes = self.notes.model_copy(update={"good": {model.name: model}})

    def said(self, kind: str) -> tuple[str, str]:
        found = condition(self.written[-1].models[0].conditions, kind)
        assert found is not None
        return found.status, found.reason

    def _write(self, status: NodeEngineStatus, _now: float) -> bool:
        self.written.append(status)
        return True

    def _golden(self, action: RunGolden, *_: object) -> GoldenAnswer:
        self.asked.append((action.role, self.steady))
        passed = GoldenResult(verdict="Pass", reason=Reason.WITHIN_LIMITS, message="", at=self.steady)
        return GoldenAnswer(results={"Primary": passed, "Fallback": passed})

    def turn_until(self, holds: Callable[[], bool]) -> None:
        def turned() -> bool:
            self.node.turn()
            return holds()

        assert came_true(turned, 10.0)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.node.run(lambda: True)


def test_the_standby_is_proven_again_after_a_minute_though_the_wall_clock_went_back_a_day(bench: Bench) -> None:
    bench.turn_until(lambda: bench.written[-1].fallback == "Ready")
    bench.steady += 61.0
    bench.wall -= 86_400.0
    bench.turn_until(lambda: len([role for role, _ in bench.asked if role == "Fallback"]) == 2)
    assert [at for role, at in bench.asked if role == "Fallback"] == [START, START + 61.0]


def test_the_heartbeat_is_stamped_by_the_wall(bench: Bench) -> None:
    bench.node.turn()
    bench.steady += 11.0
    bench.wall -= 86_400.0
    bench.node.turn()
    assert [s.heartbeat[:10] for s in bench.written] == ["2027-01-15", "2027-01-14"]


class GuardStandIn:
    """Stands in for the guard's thread: keeps what it is told to watch."""

    def __init__(self) -> None:
        self.alive = self.receiving = True
        self.watches: dict[str, Watch] = {}

    def publish(self, watches: dict[str, Watch]) -> None:
        self.watches = watches


def test_a_bad_spec_does_not_switch_the_guard_off(bench: Bench) -> None:
    guard = GuardStandIn()
    bench.node.attach(cast(GuardThread, guard))
    bench.turn_until(lambda: bench.said("Armed") == ("True", "Serving"))
    bench.model = bench.model.model_copy(update={"policy": PolicySpec(), "policy_name": "mine", "attempt": "a2"})
    bench.turn_until(lambda: bench.said("Ready") == ("False", "PolicyWithoutLimits"))
    watched = guard.watches["bokeh"]
    assert watched.primary == routed(OLD)
    assert (watched.attempt, watched.fallback_ready, len(watched.policy.rules) > 0) == ("a1", True, True)
    assert bench.said("Armed") == ("True", "Serving")


def test_a_drain_goes_from_the_spec_to_the_routing_file_and_back(bench: Bench) -> None:
    def routed_as_drained() -> bool:
        return read_routing(bench.routing).models["bokeh"].drained

    bench.model = bench.model.model_copy(update={"drained": True})
    bench.turn_until(routed_as_drained)
    bench.turn_until(lambda: bench.said("Ready") == ("False", "NodeSuspect"))
    bench.model = bench.model.model_copy(update={"drained": False})
    bench.turn_until(lambda: not routed_as_drained())


def test_a_guard_whose_thread_has_ended_is_said(bench: Bench) -> None:
    guard = GuardStandIn()
    bench.node.attach(cast(GuardThread, guard))
    bench.turn_until(lambda: bench.said("Armed") == ("True", "Serving"))
    guard.alive = False
    bench.node.turn()
    assert bench.said("Armed") == ("False", "GuardStopped")


def test_an_order_is_reported_once_the_others_have_theirs_and_at_once_in_a_small_class(bench: Bench) -> None:
    def reported() -> int:
        bench.node.turn()
        return bench.written[-1].observed_generation

    bench.turn_until(lambda: bench.node.turns > 3)
    bench.generation = 2
    assert reported() == 2
    bench.generation, bench.answer_after = 3, "60s"
    assert reported() == 2
    bench.steady += 59.0
    assert reported() == 2
    bench.steady += 62.0
    assert reported() == 3
