"""A pass over many nodes is never blind for long: what can wait is written for as long as it took to decide.

Writes of this fleet take an eighth of a second each, on a clock that only they move; a pass has one second.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
from simulated_fleet import MODEL, Fleet, Script, agent, blob, digest

from blurfleet.api.kinds import Resource
from blurfleet.api.nodeengine import EngineRef, NodeEngineSpec, NodeModel
from blurfleet.api.qualityrun import QualityRunSpec
from blurfleet.errors import StoreError
from blurfleet.reasons import Reason
from blurfleet.store.memory import MemoryStore
from blurfleet.store.port import Ref
from blurfleet_operator.decide.nodeplan import advances
from blurfleet_operator.reconcile import Pass, reconcile
from blurfleet_operator.spread import spread

WRITE_S = 0.125
PATIENCE_S = 1.0
BAD = digest("mixed-a100")


class Slow:
    """Stands before the store: writes take their time, and are counted by kind."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.spent = 0.0
        self.wrote: list[str] = []
        self.away = ""

    def __getattr__(self, name: str) -> Any:
        plain = getattr(self._store, name)
        return self._timed(plain) if name in ("apply", "delete") else plain

    def _timed(self, write: Callable[[Any], object]) -> Callable[[Any], object]:
        def written(what: Resource | Ref) -> object:
            self.spent += WRITE_S
            if what.kind == self.away:
                raise StoreError(Reason.STORE_UNWRITABLE, "no answer")
            self.wrote.append(what.kind)
            return write(what)

        return written


class SlowFleet(Fleet):
    """A fleet of one class, of which every pass is looked at."""

    def __init__(self, nodes: int) -> None:
        super().__init__({f"n{i:03d}": "a100" for i in range(nodes)})
        self.slow = Slow(self.store)
        self.wrote = self.slow.wrote
        self.owed: dict[str, Resource] = {}
        self.set("good")
        self.promote("good")
        self.set("mixed", precision="Mixed")

    def look(self, seconds: float = 1.0, alarmed: Callable[[], bool] = lambda: False) -> Pass:
        """Run one pass on slow writes."""
        self.wrote.clear()
        self.now += seconds
        done = reconcile(
            cast(Any, self.slow),
            self.now,
            patience_s=PATIENCE_S,
            owed=self.owed,
            alarmed=alarmed,
            monotonic=lambda: self.slow.spent,
            history_limit=3,
        )
        self.owed = dict(done.owed)
        return done

    def answer(self, *names: str) -> None:
        """Let nodes do as they are told and report."""
        for node in self.store.objects("NodeEngine"):
            if not names or node.meta.name in names:
                status = agent(node.meta.name, node.spec, node.status, self.script, self.now)
                self.store.write_status(Ref(kind="NodeEngine", name=node.meta.name), status)

    def tell_all(self) -> None:
        """Go on until every node has its candidate."""
        while len(self.named("candidate")) < len(self.store.objects("NodeEngine")):
            self.look()

    def come_midway(self) -> None:
        """Go on until the first nodes are told to serve."""
        while not self.named("primary"):
            self.answer()
            self.look()

    def finish(self) -> None:
        for _ in range(60):
            self.answer()
            if self.look().writes == 0 and not self.owed:
                return
        raise AssertionError(f"not settled: {self.status()}")

    def named(self, kind: str) -> list[str]:
        """Return the nodes whose candidate or primary is of set `mixed`."""
        specs = {n.meta.name: self.spec(n.meta.name) for n in self.store.objects("NodeEngine")}
        found = {name: getattr(model, kind) for name, model in specs.items() if model is not None}
        return sorted(name for name, engine in found.items() if engine is not None and engine.set == "mixed")

    def runs(self) -> dict[str, QualityRunSpec]:
        return {r.meta.name: r.spec for r in self.store.objects("QualityRun")}


@pytest.fixture
def fleet() -> SlowFleet:
    return SlowFleet(40)


def test_a_wave_is_told_in_parts_and_the_status_says_nothing_of_it_before_all_know(fleet: SlowFleet) -> None:
    fleet.change(engine_set="mixed")
    before = fleet.status()
    told = []
    for _ in range(6):
        done = fleet.look()
        told.append(len(fleet.named("candidate")))
        if told[-1] < 40:
            assert (done.requeue_after, fleet.status()) == (0.0, before)
    assert told == [8, 16, 24, 32, 40, 40]
    assert fleet.status().phase != before.phase


def test_an_alarm_ends_the_telling_at_once_and_the_next_pass_goes_on(fleet: SlowFleet) -> None:
    fleet.change(engine_set="mixed")
    done = fleet.look(alarmed=lambda: fleet.slow.spent >= 3 * WRITE_S)
    assert (len(fleet.named("candidate")), done.requeue_after) == (3, 0.0)
    fleet.look()
    assert len(fleet.named("candidate")) == 11


def test_a_class_goes_back_though_its_wave_is_not_told_to_the_end(fleet: SlowFleet) -> None:
    fleet.change(engine_set="mixed", correlation={"nodes": 2, "window": "10m"})
    fleet.come_midway()
    serving = fleet.named("primary")
    assert 0 < len(serving) < 40, "some of the wave are told to serve it, others not yet"
    fleet.answer()
    fleet.script = Script(live={(name, BAD): "DEERExceeded" for name in serving[:2]})
    fleet.answer(*serving[:2])
    fleet.look()
    assert fleet.quarantined() == {(BAD, "a100")}
    assert (fleet.named("primary"), fleet.named("candidate")) == ([], []), "one pass sends all of them back"
    assert fleet.wrote[0] == "EngineQuarantine"


def test_each_verdict_is_recorded_once_though_nodes_no_longer_report_it_and_failures_come_first(
    fleet: SlowFleet,
) -> None:
    fleet.change(engine_set="mixed")
    fleet.tell_all()
    fleet.script = Script(golden={("n039", BAD): "oracle fails"})
    fleet.answer()  # it is staged
    fleet.answer()
    fleet.look()
    first = fleet.runs()
    assert [r.verdict for r in first.values()].count("Fail") == 1
    # Everybody forgets the candidate before the next pass, as after a promotion.
    for node in fleet.store.objects("NodeEngine"):
        models = tuple(m.model_copy(update={"candidate": None}) for m in node.status.models)
        status = node.status.model_copy(update={"models": models})
        fleet.store.write_status(Ref(kind="NodeEngine", name=node.meta.name), status)
    owed = set(fleet.owed)
    assert owed
    seen = dict(first)
    for _ in range(30):
        fleet.look()
        seen |= fleet.runs()
        if not fleet.owed:
            break
    judged = sorted((r.node, r.stage, r.verdict) for r in seen.values() if r.engine_set == "mixed")
    assert judged == sorted(set(judged))
    assert {node for node, stage, _ in judged if stage == "Golden"} == {f"n{i:03d}" for i in range(40)}
    assert {key.rpartition("/")[2] for key in owed} <= set(seen)


def test_a_verdict_that_the_store_did_not_take_is_owed_until_it_does(fleet: SlowFleet) -> None:
    fleet.change(engine_set="mixed")
    fleet.tell_all()
    fleet.answer()  # it is staged
    fleet.answer()
    fleet.slow.away = "QualityRun"
    fleet.look()
    owed = set(fleet.owed)
    assert len(owed) == 2 * 40, "golden and shadow of each"
    fleet.slow.away = ""
    while fleet.owed:
        fleet.look()
    assert {key.rpartition("/")[2] for key in owed} <= set(fleet.runs())


def test_what_is_outdated_goes_in_parts_of_a_second(fleet: SlowFleet) -> None:
    fleet.change(engine_set="mixed")
    fleet.finish()
    fleet.set("later", precision="Mixed", net="net")
    left = []
    for _ in range(40):
        fleet.look()
        left.append(len(fleet.runs()))
        assert len(fleet.wrote) * WRITE_S <= 2 * PATIENCE_S + 1
        if left[-1] == 3:
            break
    assert left[-1] == 3, "the limit of this operator"


@pytest.mark.parametrize("golden", ["", "oracle passes"])
def test_in_the_end_it_stands_as_where_there_is_all_the_time(golden: str) -> None:
    ends = []
    for hurried in (True, False):
        fleet = SlowFleet(25)
        fleet.script = Script(golden={("n003", BAD): golden} if golden else {})
        fleet.change(engine_set="mixed", correlation={"nodes": 2, "window": "10m"})
        if hurried:
            fleet.finish()
        else:
            fleet.tick(30)
        status = fleet.status()
        conditions = {c.type: (c.status, c.reason.value) for c in status.conditions}
        ends.append((fleet.all_serve(), fleet.quarantined(), status.phase, status.outcome, conditions))
    assert ends[0] == ends[1]
    assert ends[0][2] == ("RolledBack" if golden else "Promoted")


def test_a_trip_in_the_midst_of_a_wave_keeps_the_engine_from_those_who_were_not_told_yet(fleet: SlowFleet) -> None:
    fleet.change(engine_set="mixed", correlation={"nodes": 2, "window": "10m"})
    fleet.come_midway()
    told = fleet.named("primary")
    fleet.answer()
    fleet.script = Script(live={(told[0], BAD): "DEERExceeded"})
    fleet.answer(told[0])
    fleet.finish()
    assert fleet.named("primary") == told
    assert fleet.said("Progressing")[1] == "HoldTripped"


def engine(name: str) -> EngineRef:
    record = blob(f"record of {name}")
    return EngineRef(
        digest=digest(name), set=name, precision="FP32", variant=name, artifact=blob(name), build_record=record
    )


def model(primary: str = "", candidate: str = "", **fields: object) -> NodeModel:
    engines = {k: engine(v) for k, v in (("primary", primary), ("candidate", candidate)) if v}
    return NodeModel.model_validate({"name": MODEL, **engines, **fields})


def spec(*models: NodeModel, quarantined: tuple[str, ...] = ()) -> NodeEngineSpec:
    return NodeEngineSpec(device_class="a100", models=models, quarantined=quarantined)


@pytest.mark.parametrize(
    ("what", "old", "new", "waits"),
    [
        ("the first engine comes", spec(), spec(model("a")), True),
        ("a candidate comes", spec(model("a")), spec(model("a", "b")), True),
        ("another candidate comes", spec(model("a", "b")), spec(model("a", "c")), True),
        ("the candidate becomes the primary", spec(model("a", "b")), spec(model("b")), True),
        ("nothing of engines changes", spec(model("a")), spec(model("a", attempt="x/2")), True),
        ("a quarantine ends", spec(model("a"), quarantined=(BAD,)), spec(model("a")), True),
        ("a digest is refused", spec(model("a")), spec(model("a"), quarantined=(BAD,)), False),
        ("the candidate goes", spec(model("a", "b")), spec(model("a")), False),
        ("the primary goes back", spec(model("b")), spec(model("a")), False),
        ("the primary goes back and another candidate comes", spec(model("b", "c")), spec(model("a", "d")), False),
        ("the primary goes", spec(model("a")), spec(model()), False),
        ("the node is drained", spec(model("a")), spec(model("a", drained=True)), False),
        ("the model goes", spec(model("a")), spec(), False),
    ],
)
def test_what_brings_an_engine_waits_and_what_takes_one_does_not(
    what: str, old: NodeEngineSpec, new: NodeEngineSpec, waits: bool
) -> None:
    assert advances(old, new) is waits, what


@pytest.mark.parametrize(("threads", "done"), [(1, 3), (4, 4)])
def test_when_time_is_up_no_item_is_begun_but_each_threads_first(threads: int, done: int) -> None:
    began: list[int] = []
    left = spread(began.append, list(range(20)), threads=threads, while_=lambda: len(began) < 3)
    assert (len(began), sorted([*began, *left])) == (done, list(range(20)))
