"""One model's part of the loop, on a real journal and swapper: what the guard proved, and which trip it was of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from prometheus_client import CollectorRegistry
from tests.agent.standins import FACE, OLD, OLD32, FlipsStandIn, name, routed

from blurfleet.api.nodeengine import NodeEngineSpec, NodeModel
from blurfleet.api.policy import PolicySpec
from blurfleet.artifacts import Opened
from blurfleet.quality.rules import default_policy
from blurfleet.quality.state import LatchKind
from blurfleet.reasons import Reason
from blurfleet.store.folder import FolderStore
from blurfleet_agent import decide as wanted
from blurfleet_agent.ballast import Ballast
from blurfleet_agent.control import RepositoryControl
from blurfleet_agent.desired import Desired, Wish
from blurfleet_agent.engines import Engines
from blurfleet_agent.exporter import Metrics
from blurfleet_agent.flip_proof import FlipProof
from blurfleet_agent.journal import Journal
from blurfleet_agent.journal_records import Latch
from blurfleet_agent.model_loop import ModelLoop, Scene
from blurfleet_agent.parts import Parts
from blurfleet_agent.remembered import Remembered, remember
from blurfleet_agent.repository import ModelRepository
from blurfleet_agent.staging import Staging
from blurfleet_agent.swap import SwapOrder, Swapper
from blurfleet_agent.view import ModelView
from blurfleet_agent.watch import Told


class Bench:
    """A node that serves its standby since OLD tripped on drift in attempt a1."""

    def __init__(self, folder: Path) -> None:
        self.journal = Journal(folder / "journal.bin")
        self.flips = FlipsStandIn()
        self.swapper = Swapper(
            journal=self.journal,
            routing_file=folder / "routing.json",
            flips=self.flips,
            ballast=Ballast(folder / "ballast.bin"),
            simulated=True,
            crash=lambda point: self.meanwhile() if point == "routing-replaced" else None,
        )
        self.meanwhile: Callable[[], None] = lambda: None
        self.swapper.learn("bokeh", FACE)
        self.trip()
        settings = SimpleNamespace(
            node="orin-0",
            device_class="jetson-orin",
            unload_after_s=30.0,
            retry_back_off_s=2.0,
            retry_back_off_max_s=60,
        )
        self.metrics = Metrics(CollectorRegistry(), node="orin-0", device_class="jetson-orin")
        self.staging = Staging(folder / "artifacts", fetch={"file": self.never})
        self.engines = Engines(
            staging=self.staging,
            repository=cast(ModelRepository, None),
            control=cast(RepositoryControl, None),
            memory_reserve=0,
            timeout_s=1.0,
        )
        parts = SimpleNamespace(
            settings=settings, swapper=self.swapper, journal=self.journal, metrics=self.metrics, engines=self.engines
        )
        self.loop = ModelLoop(cast(Parts, parts), "bokeh")
        self.view()

    def trip(self, *, sentinel: bool = False, attempt: str = "a1", at: float = 1.0) -> None:
        latch = Latch(digest=OLD.digest, attempt=attempt, reason="DEERExceeded", sentinel=sentinel, at=at)
        self.swapper.swap(
            SwapOrder(
                alias="bokeh",
                to=routed(OLD32),
                role="Fallback",
                primary=routed(OLD),
                fallback=routed(OLD32),
                why="Trip",
                reason=Reason.DEER_EXCEEDED,
                attempt=attempt,
                latch=latch,
            )
        )

    @staticmethod
    def never(uri: str, offset: int) -> Opened:
        raise AssertionError(f"the loop asked the network for {uri} from {offset}")

    def wish(self, attempt: str = "a1", *, policy: PolicySpec | None = None) -> tuple[Wish, NodeModel]:
        model = NodeModel(
            name="bokeh",
            attempt=attempt,
            primary=OLD,
            fallback=OLD32,
            oracle=OLD32,
            policy=policy or default_policy(),
        )
        spec = NodeEngineSpec(device_class="jetson-orin", models=(model,))
        return Wish(spec=spec, generation=1, notes=Remembered(), problem=None), model

    def view(self, attempt: str = "a1") -> ModelView:
        wish, model = self.wish(attempt)
        self.loop.memory.begin(model)
        ready = frozenset({name(OLD), name(OLD32)})
        return self.loop.view(
            wish, model, Scene(now=10.0, wall=10.0, ready=ready, proof=FlipProof(proven=True), memory_low=False)
        )


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def told(*, rearm: bool = False, kind: LatchKind | None = None, attempt: str = "a1", digest: str = OLD.digest) -> Told:
    return Told(
        alias="bokeh",
        digest=digest,
        attempt=attempt,
        phase="Probation",
        valid=20,
        stability=None,
        rearm=rearm,
        trip_kind=kind,
    )


def test_what_probation_proved_holds_for_the_trip_it_was_about(bench: Bench) -> None:
    bench.loop.hear(told(rearm=True))
    assert bench.view().reproven


@pytest.mark.parametrize(
    "word",
    [
        pytest.param(told(rearm=True, attempt="a0"), id="of another attempt"),
        pytest.param(told(rearm=True, digest=OLD32.digest), id="of another digest"),
        pytest.param(told(), id="not said at all"),
    ],
)
def test_a_late_word_of_something_else_proves_nothing(bench: Bench, word: Told) -> None:
    bench.loop.hear(word)
    assert not bench.view().reproven


def test_a_new_trip_takes_back_what_was_proven_before_it(bench: Bench) -> None:
    bench.loop.hear(told(rearm=True))
    bench.loop.hear(told(kind=LatchKind.DRIFT))
    assert not bench.view().reproven
    bench.loop.hear(told(rearm=True))
    bench.trip(at=2.0)  # its word has not arrived yet
    assert not bench.view().reproven


def test_the_end_of_a_rearm_cannot_erase_a_trip_that_came_while_the_alias_followed(bench: Bench) -> None:
    bench.loop.hear(told(rearm=True))
    action = wanted.choose_serving(bench.view())
    assert action is not None
    assert action.order.why == "Rearm"

    def tripped_meanwhile() -> None:
        bench.meanwhile = lambda: None
        bench.trip(sentinel=True, at=3.0)

    bench.meanwhile = tripped_meanwhile
    bench.loop.apply(action, 10.0)
    served = bench.swapper.served("bokeh")
    assert served is not None
    assert served.role == "Fallback"
    assert [(x.digest, x.sentinel) for x in bench.swapper.journal_of("bokeh").latches] == [(OLD.digest, True)]


def test_the_loop_learns_the_tensors_from_what_is_staged_and_asks_no_network(bench: Bench) -> None:
    wish, model = bench.wish()
    bench.loop.learn_face(wish, model)
    assert bench.view().faceless == OLD
    assert wanted.FetchRecord(ref=OLD) in wanted.decide(bench.view())


def test_a_bad_spec_leaves_the_last_good_one_in_force_also_after_a_restart(bench: Bench, tmp_path: Path) -> None:
    store, kept = FolderStore(tmp_path / "store"), tmp_path / "desired.json"
    good, model = bench.wish("a1")
    desired = Desired(store, "orin-0", kept)
    desired.trust(model)
    bad, wished = bench.wish("a2", policy=PolicySpec())
    assert bench.loop.in_force(bad, wished)[0] == wished
    notes = Desired(store, "orin-0", kept).read().notes
    force, problem = bench.loop.in_force(replace(bad, notes=notes), wished)
    assert force == model
    assert problem is not None
    assert problem.reason is Reason.POLICY_WITHOUT_LIMITS
    assert bench.loop.in_force(replace(good, notes=notes), model) == (model, None)


def test_another_spec_keeps_what_could_last_be_acted_on(bench: Bench) -> None:
    _, model = bench.wish("a1")
    bad, _ = bench.wish("a2", policy=PolicySpec())
    assert remember(Remembered(good={"bokeh": model}), bad.spec, 2).good == {"bokeh": model}
