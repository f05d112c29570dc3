"""One turn of the operator's loop: what is due comes before what is doubted, and the server is asked before both.

The store is the memory's, with what only the one on an API server can do beside it: no server is needed to count turns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry
from simulated_fleet import Fleet, Script, agent, digest

from blurfleet.api.kinds import Resource
from blurfleet.api.meta import timestamp
from blurfleet.store.port import Ref
from blurfleet_operator.loop import Loop
from blurfleet_operator.metrics import LoopMetrics
from blurfleet_operator.settings import OperatorSettings
from blurfleet_operator.standby import Alone

BAD = "mixed-jetson-orin"


class ServedFleet:
    """A fleet whose nodes renew Leases; `watched` is what the watch brought of them."""

    def __init__(self, nodes: dict[str, str]) -> None:
        self.fleet = Fleet(nodes)
        self.store = cast(Any, self.fleet.store)
        self.leases: dict[str, str] = {}
        self.watched: dict[str, str] = {}
        self.order: list[str] = []
        self.cluster: list[Mapping[str, Any]] = []
        self.recoveries = 0
        for name in ("nodes", "heartbeats", "relist", "feed", "holds", "amend_status", "settle_events"):
            setattr(self.store, name, getattr(self, f"_{name}"))
        self.store.recoveries = 0
        self._plain_apply = self.store.apply
        self.store.apply = self._apply
        settings = OperatorSettings(writers=1)
        metrics, now = LoopMetrics(CollectorRegistry()), self._now
        self.loop = Loop(self.store, settings, metrics, Alone(), clock=now, monotonic=now)

    def _apply(self, resource: Resource) -> Resource:
        self.order.append(f"told {resource.kind}")
        return cast(Resource, self._plain_apply(resource))

    def _now(self) -> float:
        return self.fleet.now

    def _nodes(self) -> list[Mapping[str, Any]]:
        return self.cluster

    def _heartbeats(self) -> dict[str, str]:
        return {n.meta.name: self.watched.get(n.meta.name, "") for n in self.store.objects("NodeEngine")}

    def _relist(self, kind: str) -> dict[tuple[str, str], int]:
        if kind == "Lease":
            self.watched = dict(self.leases)
            self.order.append("asked")
        return {}

    def _feed(self, _kind: str) -> None:
        """Nothing is watched here."""

    def _holds(self, _kind: str, _key: tuple[str, str]) -> bool:
        return True

    def _settle_events(self) -> None:
        """Events are kept at once."""

    def _amend_status(self, node: Resource, changes: Mapping[str, Any]) -> None:
        self.order.append(f"doubted {node.meta.name}")
        self.store.write_status(
            Ref(kind="NodeEngine", name=node.meta.name),
            node.status.model_copy(update={"connected": changes.get("/status/connected", node.status.connected)}),
        )

    def beat(self, *names: str, watched: bool = True) -> None:
        """Nodes renew their Leases and write what they see."""
        for name in names or [n.meta.name for n in self.store.objects("NodeEngine")]:
            ref = Ref(kind="NodeEngine", name=name)
            found = self.store.get(ref)
            self.store.write_status(ref, agent(name, found.spec, found.status, self.fleet.script, self.fleet.now))
            self.leases[name] = timestamp(self.fleet.now)
        if watched:
            self.watched = dict(self.leases)

    def turn(self, after: float = 0.0) -> list[str]:
        """Turn once, `after` seconds later; return what was done, in order."""
        self.fleet.now += after
        self.order.clear()
        self.loop._turn()
        return list(self.order)

    def promote(self) -> None:
        """Promote a mixed set on all nodes."""
        fleet = self.fleet
        fleet.set("fp32", classes=("jetson-orin",))
        fleet.promote("fp32")
        fleet.set("mixed", precision="Mixed", net="net2", classes=("jetson-orin",))
        fleet.promote("mixed")
        self.beat()
        self.turn()


def node(name: str, labels: dict[str, str]) -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": f"uid of {name}", "labels": labels}}


@pytest.fixture
def served() -> ServedFleet:
    made = ServedFleet({f"orin-{i}": "jetson-orin" for i in range(4)})
    made.promote()
    return made


def doubts(done: list[str]) -> list[str]:
    return [d.removeprefix("doubted ") for d in done if d.startswith("doubted")]


def test_a_silent_node_is_doubted_once_and_only_after_the_server_was_asked(served: ServedFleet) -> None:
    for _ in range(9):
        served.beat("orin-0", "orin-1", "orin-2")
        assert served.turn(10.0) == []
    served.beat("orin-0", "orin-1", "orin-2")
    assert served.turn(10.0) == ["asked", "doubted orin-3"]
    assert served.turn(10.0) == []


def test_a_watch_that_died_makes_nobody_silent(served: ServedFleet) -> None:
    done: list[str] = []
    for _ in range(40):
        served.beat(watched=False)
        done += served.turn(10.0)
    assert doubts(done) == []
    assert 0 < done.count("asked") <= 5


def test_after_an_outage_nobody_is_doubted_and_what_is_due_is_done(served: ServedFleet) -> None:
    served.fleet.script = Script(live={(f"orin-{i}", digest(BAD)): "DEERExceeded" for i in (1, 2)})
    served.fleet.now += 300.0
    served.beat("orin-1", "orin-2")
    done = served.turn()
    assert doubts(done) == []
    assert served.fleet.status().reverted_classes == ("jetson-orin",)
    assert served.fleet.quarantined() == {(digest(BAD), "jetson-orin")}


def test_one_trip_after_an_outage_speaks_for_no_class(served: ServedFleet) -> None:
    served.fleet.script = Script(live={("orin-3", digest(BAD)): "DEERExceeded"})
    served.fleet.now += 300.0
    served.beat("orin-3")
    served.turn()
    assert served.fleet.status().reverted_classes == ()
    assert served.fleet.quarantined() == set()
    assert served.fleet.said("Ready")[0] != "True"
    served.beat()
    served.turn(1.0)
    assert served.fleet.serves("orin-3") == "mixed/Fallback"
    assert served.fleet.status().reverted_classes == ()


def test_a_class_goes_back_before_those_are_doubted_who_fell_silent_in_the_same_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("blurfleet_operator.rollcall.A_TURN", 10)
    served = ServedFleet({f"orin-{i:03}": "jetson-orin" for i in range(20)})
    served.promote()
    for _ in range(9):
        served.beat("orin-000", "orin-001")
        served.turn(10.0)
    served.fleet.script = Script(live={(f"orin-00{i}", digest(BAD)): "DEERExceeded" for i in (0, 1)})
    served.beat("orin-000", "orin-001")
    done = served.turn(10.0)
    told = [i for i, d in enumerate(done) if d == "told NodeEngine"]
    doubted = [i for i, d in enumerate(done) if d.startswith("doubted")]
    assert (len(told), len(doubted)) == (20, 10)
    assert max(told) < min(doubted)
    assert len(doubts(served.turn(1.0))) == 18 - 10


def test_nodes_that_join_at_once_are_registered_in_parts_and_those_of_another_class_first(
    served: ServedFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("blurfleet_operator.rollcall.A_TURN", 10)
    a100 = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}
    joined = [node(f"a100-{i:02}", a100) for i in range(14)]
    served.cluster = [*joined, node("orin-3", a100)]
    made = []
    for _ in range(3):
        served.turn(1.0)
        made.append(len(served.store.objects("NodeEngine")) - 4)
        moved = served.store.get(Ref(kind="NodeEngine", name="orin-3"))
        assert moved.spec.device_class == "a100"
    assert made == [9, 14, 14]


def test_an_operator_that_ends_records_what_was_judged_and_not_recorded_yet(served: ServedFleet) -> None:
    (run, *_) = served.store.objects("QualityRun")
    served.store.delete(Ref(kind="QualityRun", name=run.meta.name, namespace=run.meta.namespace))
    served.loop._owed = {run.key: run}
    served.loop._stop.set()
    served.loop._run()
    assert run.key in {r.key for r in served.store.objects("QualityRun")}
