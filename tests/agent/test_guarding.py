"""The guard of one model: which frames it judges, when it swaps, and what it leaves alone."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry
from tests.agent.standins import FACE, A, B, FlipsStandIn

from blurfleet.api.meta import timestamp
from blurfleet.api.policy import MetricName
from blurfleet.errors import EngineError, NodeError
from blurfleet.quality.evidence import load_evidence
from blurfleet.quality.replay import replay_evidence
from blurfleet.quality.rules import BoundRule
from blurfleet.quality.state import GuardPolicy
from blurfleet.reasons import Reason
from blurfleet.serving.framecodec import FrameKind, FrameSample
from blurfleet.serving.routing import RoutedEngine, read_routing
from blurfleet_agent.ballast import Ballast
from blurfleet_agent.evidence_files import EvidenceFiles
from blurfleet_agent.exporter import Metrics
from blurfleet_agent.frame_figures import Compared
from blurfleet_agent.guard_spans import GuardSpans
from blurfleet_agent.guarding import Guarding, _restored, keep
from blurfleet_agent.journal import Journal, parse
from blurfleet_agent.journal_records import AliasState
from blurfleet_agent.sampling import BURST_S, HOT_SHARE, Budget
from blurfleet_agent.settings import AgentSettings
from blurfleet_agent.swap import SwapOrder, Swapper
from blurfleet_agent.trips import TripDesk
from blurfleet_agent.watch import Contender, Told, Watch

Array = NDArray[np.float32]
C = RoutedEngine(engine="bokeh__c", digest="sha256:" + "c" * 64, precision="FP16", set="two")
C32 = RoutedEngine(engine="bokeh__d", digest="sha256:" + "d" * 64, precision="FP32", set="two")
YY, XX = np.mgrid[0:32, 0:32].astype(np.float32)
SCENE = (1.0 / (1.0 + np.exp(-(XX - 16 + 6 * np.sin(YY / 4)) / 2)))[None, None].astype(np.float32)
STRIPED = np.where(np.arange(32)[:, None] % 2 == 0, SCENE, 0.1).astype(np.float32)
FLAT = np.zeros_like(SCENE)
NAN = SCENE.copy()
NAN[0, 0, 3, 3] = np.nan
TENSOR = np.zeros((1, 3, 32, 32), np.float32)


def rule(metric: MetricName, order: int, limit: float = 0.0, frames: int = 1) -> BoundRule:
    return BoundRule(order=order, metric=metric, limit=limit, action="Swap", frames=frames, window=frames)


POLICY = GuardPolicy(
    rules=(
        rule(MetricName.NON_FINITE, 0),
        rule(MetricName.OUT_OF_RANGE, 1),
        rule(MetricName.COLLAPSED, 2),
        rule(MetricName.DEER, 3, 0.18, 3),
    ),
    shadow_samples=4,
    probation_samples=3,
    back_off_s=10.0,
)


class OneNode:
    """A guarded model on real files; `answers` stands in for the engines of a Triton."""

    def __init__(self, folder: Path, watch: Watch, spans: GuardSpans | None = None) -> None:
        self.answers: dict[str, Array | Exception] = {e.engine: SCENE for e in (A, B, C, C32)}
        self.asked: list[str] = []
        self.told: list[Told] = []
        self.now = 1_800_000_000.0
        self.set_by = 0.0  # seconds that the wall clock was set by since the start
        self.budget = Budget(share=1.0, hz=1e6, cost_s=0.0)
        self.journal = Journal(folder / "journal.bin")
        self.routing = folder / "routing.json"
        self.flips = FlipsStandIn()
        self.swapper = Swapper(
            journal=self.journal,
            routing_file=self.routing,
            flips=self.flips,
            ballast=Ballast(folder / "ballast"),
            simulated=True,
        )
        self.swapper.learn("bokeh", FACE)
        self.swapper.swap(
            SwapOrder(alias="bokeh", to=A, role="Primary", primary=A, fallback=B, why="Serve", reason=Reason.SERVING)
        )
        settings = AgentSettings.model_validate(
            {
                "node": "orin-0",
                "device_class": "jetson-orin",
                "node_dir": folder,
                "store": folder,
                "triton_grpc": "127.0.0.1:1",
                "model_repository": folder,
            }
        )
        self.registry = CollectorRegistry()
        metrics = Metrics(self.registry, node="orin-0", device_class="jetson-orin")
        self.evidence = EvidenceFiles(settings, metrics, clock=lambda: self.now)
        desk = TripDesk(swapper=self.swapper, journal=self.journal, metrics=metrics, keeper=self.evidence, spans=spans)
        self.watch = watch
        self.guarding = Guarding(
            watch,
            swapper=self.swapper,
            infer=self.infer,
            desk=desk,
            metrics=metrics,
            tell=self.told.append,
            kept_frames=8,
            now=self.now,
            wall=lambda: self.now + self.set_by,
            spans=spans,
        )
        self.guarding.follow(watch, self.now)
        self._frame = 0

    def infer(self, engine: str, _tensor: Array) -> Array:
        self.asked.append(engine)
        answer = self.answers[engine]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def frame(self, matte: Array, *, stream: str = "cam", **changes: Any) -> None:
        self._frame += 1
        self.now += 0.05
        served = self.swapper.served("bokeh")
        assert served is not None
        kind = FrameKind.SAMPLE
        if not np.isfinite(matte).all():
            kind = FrameKind.WITHHELD
        elif float(np.ptp(matte)) <= 0.02:
            kind = FrameKind.SUSPECT
        values: dict[str, Any] = {
            "model": "bokeh",
            "stream": stream,
            "frame_id": self._frame,
            "epoch": served.epoch,
            "engine": served.engine.engine,
            "digest": served.engine.digest,
            "at": self.now,
            "tensor": TENSOR,
            "matte": matte,
            "kind": kind,
        }
        if kind is FrameKind.WITHHELD:
            values["reason"] = Reason.NON_FINITE_OUTPUT
        self.budget = self.guarding.frame(FrameSample(**{**values, **changes}), self.budget, self.now)

    def follow(self, **changes: Any) -> None:
        self.watch = replace(self.watch, **changes)
        self.guarding.follow(self.watch, self.now)

    def serving(self) -> tuple[str, int]:
        route = read_routing(self.routing).models["bokeh"]
        return route.active.engine, route.epoch

    def trip(self) -> Told:
        return next(t for t in self.told if t.trip is not None)

    def metric(self, name: str, **labels: str) -> float | None:
        known = {"device_type": "jetson-orin", "node": "orin-0", "model": "bokeh"}
        return self.registry.get_sample_value(name, {**known, **labels})


def watch(**changes: Any) -> Watch:
    values: dict[str, Any] = {
        "alias": "bokeh",
        "attempt": "a1",
        "policy": POLICY,
        "policy_name": "default",
        "device_class": "jetson-orin",
        "primary": A,
        "oracle": B,
        "fallback": B,
        "fallback_ready": True,
    }
    return Watch(**{**values, **changes})


@pytest.fixture
def node(tmp_path: Path) -> OneNode:
    return OneNode(tmp_path, watch())


def test_sound_frames_swap_nothing_and_are_counted(node: OneNode) -> None:
    for _ in range(10):
        node.frame(SCENE)
    assert node.serving() == (A.engine, 1)
    assert node.metric("blurfleet_guard_samples_total", source="Live", verdict="Pass") == 10.0
    assert node.metric("fp16_max_abs_error") == 0.0


def test_a_withheld_nan_swaps_on_its_frame_without_asking_the_oracle_first(node: OneNode) -> None:
    node.frame(SCENE)
    node.asked.clear()
    swapped_before_asking: list[bool] = []
    node.answers[B.engine] = SCENE
    real, seen = node.infer, swapped_before_asking

    def infer(engine: str, tensor: Array) -> Array:
        seen.append(node.serving()[0] == B.engine)
        return real(engine, tensor)

    node.guarding._infer = infer
    node.frame(NAN)
    assert node.serving() == (B.engine, 2)
    assert seen == [True]
    trip = node.trip().trip
    assert trip is not None
    assert (trip.reason, trip.frames_to_detect, trip.stage, trip.epoch) == ("NonFiniteOutput", 1, "Live", 2)
    assert node.metric("blurfleet_trips_total", reason="NonFiniteOutput") == 1.0
    assert node.metric("blurfleet_rollbacks_total", scope="node", reason="NonFiniteOutput") == 1.0
    assert node.metric("blurfleet_deer_ratio_sum") is not None
    assert math.isfinite(node.metric("blurfleet_deer_ratio_sum") or 0.0)


def test_a_collapsed_matte_is_confirmed_with_the_oracle_before_it_trips(node: OneNode) -> None:
    node.answers[B.engine] = FLAT
    for _ in range(5):
        node.frame(FLAT)
    assert node.serving() == (A.engine, 1)
    node.answers[B.engine] = SCENE
    node.frame(FLAT)
    assert node.serving() == (B.engine, 2)
    assert node.trip().reason == Reason.COLLAPSED_OUTPUT


def test_three_bad_edges_in_a_row_trip_and_two_do_not(node: OneNode) -> None:
    for matte in (STRIPED, STRIPED, SCENE, STRIPED, STRIPED):
        node.frame(matte)
    assert node.serving() == (A.engine, 1)
    node.frame(STRIPED)
    assert node.serving() == (B.engine, 2)
    trip = node.trip().trip
    assert trip is not None
    assert (trip.reason, trip.frames_to_detect) == ("DEERExceeded", 3)


def test_frames_of_an_old_epoch_or_another_engine_do_not_count(node: OneNode) -> None:
    for _ in range(5):
        node.frame(NAN, epoch=0)
        node.frame(NAN, digest=C.digest)
    assert node.serving() == (A.engine, 1)


def test_a_silent_oracle_makes_samples_invalid_and_never_trips(node: OneNode) -> None:
    node.answers[B.engine] = EngineError(Reason.INFER_TIMEOUT, "no answer")
    for _ in range(20):
        node.frame(STRIPED)
    assert node.serving() == (A.engine, 1)
    assert node.metric("blurfleet_guard_samples_total", source="Live", verdict="Inconclusive") == 20.0


def test_nothing_swaps_into_an_unproven_standby_and_the_trip_is_kept_until_it_is_proven(tmp_path: Path) -> None:
    node = OneNode(tmp_path, watch(fallback_ready=False))
    node.frame(NAN)
    assert node.serving() == (A.engine, 1)
    assert [t.reason for t in node.told if t.page] == [Reason.FALLBACK_NOT_PROVEN]
    node.follow(fallback_ready=True)
    node.guarding.tick(node.now)
    assert node.serving() == (B.engine, 2)


def test_a_swap_that_cannot_be_made_is_tried_again_at_the_next_tick(
    node: OneNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = node.swapper.swap

    def refuse(_order: SwapOrder) -> Any:
        raise NodeError(Reason.STORE_UNWRITABLE, "read-only")

    monkeypatch.setattr(node.swapper, "swap", refuse)
    node.frame(NAN)
    assert node.serving() == (A.engine, 1)
    monkeypatch.setattr(node.swapper, "swap", real)
    node.guarding.tick(node.now)
    assert node.serving() == (B.engine, 2)


def test_a_latched_sentinel_trip_is_never_re_proven_by_time(node: OneNode) -> None:
    node.frame(NAN)
    for _ in range(10):
        node.now += 3600
        node.guarding.tick(node.now)
        node.frame(SCENE)
    assert not any(t.rearm for t in node.told)
    assert A.engine not in node.asked


def test_drift_is_re_proven_in_probation_by_shadowing_the_engine_that_is_off(node: OneNode) -> None:
    for _ in range(3):
        node.frame(STRIPED)
    assert node.serving() == (B.engine, 2)
    node.answers[A.engine] = SCENE
    node.frame(SCENE)
    assert A.engine not in node.asked
    node.now += 11
    node.guarding.tick(node.now)
    for _ in range(3):
        node.frame(SCENE)
    assert node.asked.count(A.engine) == 3
    assert any(t.rearm for t in node.told)


def test_probation_that_fails_keeps_the_engine_off_for_twice_as_long(node: OneNode) -> None:
    for _ in range(3):
        node.frame(STRIPED)
    node.answers[A.engine] = STRIPED
    node.now += 11
    node.guarding.tick(node.now)
    for _ in range(3):
        node.frame(SCENE)
    asked = node.asked.count(A.engine)
    node.now += 11
    node.guarding.tick(node.now)
    node.frame(SCENE)
    assert node.asked.count(A.engine) == asked
    assert not any(t.rearm for t in node.told)
    assert node.serving() == (B.engine, 2)


def candidate_told(node: OneNode) -> list[str]:
    return [t.shadow.verdict for t in node.told if t.shadow is not None]


def test_a_candidate_is_shadowed_against_its_own_oracle_until_it_has_enough_frames(node: OneNode) -> None:
    node.follow(candidate=Contender(engine=C, oracle=C32))
    for _ in range(4):
        node.frame(SCENE)
    assert candidate_told(node)[-1] == "Pass"
    assert set(candidate_told(node)[:-1]) == {"Inconclusive"}
    assert node.asked.count(C32.engine) == 4


def test_a_candidate_that_trips_in_shadow_is_latched_and_nothing_served_changes(node: OneNode) -> None:
    node.follow(candidate=Contender(engine=C, oracle=C32))
    node.answers[C.engine] = NAN
    node.frame(SCENE)
    assert candidate_told(node) == ["Fail"]
    assert node.serving() == (A.engine, 1)
    assert node.swapper.journal_of("bokeh").latch(C.digest, "a1") is not None
    trip = node.trip().trip
    assert trip is not None
    assert (trip.stage, trip.reason, trip.digest) == ("Shadow", "NonFiniteOutput", C.digest)
    node.frame(SCENE)
    assert candidate_told(node) == ["Fail"]


Spoil = Callable[[OneNode], None]


@pytest.mark.parametrize(
    "mattes",
    [
        pytest.param([SCENE, NAN], id="a withheld frame"),
        pytest.param([SCENE, STRIPED, SCENE, STRIPED, STRIPED, STRIPED], id="a run of edges"),
        pytest.param([SCENE] * 12 + [STRIPED] * 3, id="more frames than are kept"),
        pytest.param([FLAT], id="a collapsed frame"),
    ],
)
def test_the_evidence_of_a_trip_gives_the_same_verdict_again(node: OneNode, mattes: list[Array]) -> None:
    for matte in mattes:
        node.frame(matte)
    trip = node.trip().trip
    assert trip is not None
    folder = Path(trip.evidence)
    evidence = load_evidence(folder)
    assert (evidence.node, evidence.digest, evidence.stage, evidence.epoch) == ("orin-0", A.digest, "Live", 2)
    again = replay_evidence(folder)
    assert again.differences == ()
    assert again.reason == trip.reason
    assert again.frames == min(len(mattes), 8)


def test_a_trip_is_on_disk_with_its_swap_and_told_before_its_evidence_is_written(
    node: OneNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, str]] = []

    def write(folder: Path, *_: object) -> Path:
        known = parse(node.journal.path.read_bytes()).state.of("bokeh").last_trip
        told = node.trip().trip
        assert known is not None
        assert told is not None
        seen.append((known.evidence, told.evidence))
        return folder

    monkeypatch.setattr("blurfleet_agent.evidence_files.write_evidence", write)
    node.frame(NAN)
    place = node.trip().trip.evidence if node.trip().trip else ""
    assert seen == [(place, place)]
    assert place.endswith("-NonFiniteOutput")


def test_pictures_of_clients_who_refused_are_not_kept(node: OneNode) -> None:
    node.frame(NAN, evidence_allowed=False)
    trip = node.trip().trip
    assert trip is not None
    assert [p.name for p in Path(trip.evidence).iterdir()] == ["verdict.json"]
    assert replay_evidence(Path(trip.evidence)).same


def test_a_full_disk_loses_the_evidence_and_says_so_but_the_swap_is_made(
    node: OneNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> Path:
        raise NodeError(Reason.EVIDENCE_UNWRITTEN, "No space left on device")

    monkeypatch.setattr("blurfleet_agent.evidence_files.write_evidence", full)
    lost: list[str] = []
    node.evidence.on_lost = lost.append
    node.frame(NAN)
    assert node.serving() == (B.engine, 2)
    assert "No space left" in lost[0]
    kept = node.swapper.journal_of("bokeh").last_trip
    assert kept is not None
    assert (kept.reason, kept.evidence) == ("NonFiniteOutput", "")
    assert node.registry.get_sample_value("blurfleet_evidence_unwritten_total", {"node": "orin-0"}) == 1.0


def test_a_restarted_guard_keeps_a_latched_engine_off_and_re_proves_drift_only(tmp_path: Path) -> None:
    first = OneNode(tmp_path, watch())
    for _ in range(3):
        first.frame(STRIPED)
    first.journal.close()
    state = first.swapper.journal_of("bokeh")
    assert state.latches[0].reason == "DEERExceeded"
    assert not state.latches[0].sentinel
    first.guarding = Guarding(
        first.watch,
        swapper=first.swapper,
        infer=first.infer,
        desk=first.guarding._desk,
        metrics=first.guarding._metrics,
        tell=first.told.append,
        kept_frames=8,
        now=first.now,
        wall=lambda: first.now,
    )
    first.guarding.follow(first.watch, first.now)
    first.frame(SCENE)
    assert A.engine not in first.asked
    first.now += 11
    first.guarding.tick(first.now)
    first.frame(SCENE)
    assert first.asked.count(A.engine) == 1


def said(node: OneNode) -> Told:
    """Return what is said once nothing happens any more."""
    for _ in range(3):
        node.now += 0.6
        node.guarding.tick(node.now)
    return node.told[-1]


def test_a_trip_that_waits_for_its_standby_is_said_and_pages_for_as_long_as_it_waits(tmp_path: Path) -> None:
    node = OneNode(tmp_path, watch(fallback_ready=False))
    node.frame(NAN)
    told = said(node)
    assert (told.held, told.reason, told.page) == (Reason.NON_FINITE_OUTPUT, Reason.FALLBACK_NOT_PROVEN, True)
    node.follow(fallback_ready=True)
    told = said(node)
    assert (told.held, told.reason, told.page) == (None, Reason.LATCHED, False)


def test_a_stream_that_stopped_is_said_until_a_valid_frame_comes(node: OneNode) -> None:
    told = said(node)
    assert (told.stale, told.reason) == (False, Reason.WITHIN_LIMITS)
    node.now += 31
    told = said(node)
    assert (told.stale, told.act, told.reason) == (True, "Hold", Reason.NO_DATA)
    node.frame(SCENE)
    assert said(node).reason == Reason.WITHIN_LIMITS
    node.now += 31
    told = said(node)
    assert (told.stale, told.act, told.reason) == (True, "Hold", Reason.STREAM_STOPPED)


def test_a_rule_that_asks_to_hold_is_said_until_it_passes(tmp_path: Path) -> None:
    hold = replace(rule(MetricName.DEER, 3, 0.18), action="Hold")
    node = OneNode(tmp_path, watch(policy=replace(POLICY, rules=(*POLICY.rules[:3], hold))))
    node.frame(STRIPED)
    told = said(node)
    assert (told.holding, told.act, told.reason) == (Reason.DEER_EXCEEDED, "Hold", Reason.DEER_EXCEEDED)
    node.frame(SCENE)
    told = said(node)
    assert (told.holding, told.act, told.reason) == (None, "None", Reason.WITHIN_LIMITS)


def test_a_rule_that_only_warns_puts_no_stream_in_doubt(tmp_path: Path) -> None:
    warns = replace(rule(MetricName.DEER, 3, 0.18), action="Warn")
    node = OneNode(tmp_path, watch(policy=replace(POLICY, rules=(*POLICY.rules[:3], warns))))
    node.frame(STRIPED)
    assert node.budget.streams["bokeh/cam"].hot == 0
    node.follow(policy=POLICY)
    node.frame(STRIPED)
    assert node.budget.streams["bokeh/cam"].hot > 0


def test_scenes_that_are_empty_for_long_cost_a_bounded_share_of_the_device(node: OneNode) -> None:
    node.answers[B.engine] = FLAT
    node.budget = Budget(share=0.1, hz=20.0, cost_s=0.5)
    for _ in range(200):
        node.frame(FLAT)
        node.budget = replace(node.budget, cost_s=0.5)  # the stand-in answers at once
    assert node.asked.count(B.engine) <= (BURST_S + HOT_SHARE * 200 * 0.05) / 0.5 + 1


OUTSIDE = SCENE.copy()
OUTSIDE[0, 0, ::2] = 1.9


def test_a_matte_out_of_range_is_compared_where_no_rule_trips_on_the_range(tmp_path: Path) -> None:
    drift = rule(MetricName.MAX_ABS_ERROR, 1, 0.05, 3)
    node = OneNode(tmp_path, watch(policy=replace(POLICY, rules=(POLICY.rules[0], drift))))
    for _ in range(3):
        node.frame(OUTSIDE, kind=FrameKind.WITHHELD, reason=Reason.OUT_OF_RANGE_OUTPUT)
    assert node.serving() == (B.engine, 2)
    assert node.trip().reason == Reason.MAX_ABS_ERROR_EXCEEDED


def test_a_matte_out_of_range_trips_by_its_rule_without_the_oracle(node: OneNode) -> None:
    node.answers[B.engine] = EngineError(Reason.INFER_TIMEOUT, "no answer")
    node.frame(OUTSIDE, kind=FrameKind.WITHHELD, reason=Reason.OUT_OF_RANGE_OUTPUT)
    assert node.serving() == (B.engine, 2)
    assert node.trip().reason == Reason.OUT_OF_RANGE_OUTPUT


@pytest.mark.parametrize(
    ("again", "for_good"),
    [pytest.param(NAN, True, id="a NaN in Probation is for good"), pytest.param(STRIPED, False, id="drift is not")],
)
def test_what_trips_in_probation_is_in_the_journal(node: OneNode, again: Array, for_good: bool) -> None:
    for _ in range(3):
        node.frame(STRIPED)
    node.now += 11
    node.guarding.tick(node.now)
    node.answers[A.engine] = again
    for _ in range(3):
        node.frame(SCENE)
    latch = parse(node.journal.path.read_bytes()).state.of("bokeh").latch(A.digest, "a1")
    assert latch is not None
    assert (latch.sentinel, latch.reason == Reason.NON_FINITE_OUTPUT) == (for_good, for_good)
    if for_good:
        trip = next(t.trip for t in reversed(node.told) if t.trip is not None)
        assert (trip.stage, trip.reason, trip.digest) == ("Shadow", "NonFiniteOutput", A.digest)
        replayed = replay_evidence(Path(trip.evidence))
        assert (replayed.reason, replayed.same) == (Reason.NON_FINITE_OUTPUT, True)


def test_a_wall_clock_that_is_set_back_stamps_trips_and_delays_nothing(node: OneNode) -> None:
    node.frame(SCENE)
    node.set_by = -86_400.0
    for _ in range(3):
        node.frame(STRIPED)
    assert node.serving() == (B.engine, 2)
    trip = node.trip().trip
    assert trip is not None
    assert trip.at == timestamp(node.now - 86_400.0)
    node.answers[A.engine] = SCENE
    node.now += 11
    node.guarding.tick(node.now)
    node.frame(SCENE)
    assert node.asked.count(A.engine) == 1


def test_swaps_of_the_journal_count_by_their_age_even_where_the_wall_was_set_back(node: OneNode) -> None:
    journal = AliasState(swaps=(node.now - 3700.0, node.now - 600.0, node.now + 900.0))
    state = _restored(node.watch, journal, 50.0, node.now)
    assert state.swaps_at == (50.0 - 3700.0, 50.0 - 600.0, 50.0)


def test_frames_are_kept_by_bytes_and_the_newest_always(node: OneNode) -> None:
    for _ in range(3):
        node.frame(SCENE)
    one, two, three = node.guarding._live_frames
    kept: deque[Compared] = deque(maxlen=8)
    for found in (one, two, three):
        keep(kept, found, 2 * one.nbytes)
    assert list(kept) == [two, three]
    keep(kept, one, 1)
    assert list(kept) == [one]


def test_an_engine_that_is_its_own_oracle_has_data_by_its_sentinels(tmp_path: Path) -> None:
    node = OneNode(tmp_path, watch(oracle=A))
    for _ in range(3):
        node.frame(SCENE)
        node.now += 20
        node.guarding.tick(node.now)
    told = said(node)
    assert (told.stale, told.valid, told.reason) == (False, 3, Reason.WITHIN_LIMITS)
    node.follow(oracle=None)
    for _ in range(3):
        node.frame(SCENE)
        node.now += 20
        node.guarding.tick(node.now)
    assert said(node).reason == Reason.STREAM_STOPPED
    node.frame(NAN)
    assert node.serving() == (B.engine, 2)


@pytest.mark.parametrize("oracle", [B, A], ids=["judged by its oracle", "its own oracle"])
def test_other_rules_for_the_same_engine_are_judged_by_from_then_on(tmp_path: Path, oracle: RoutedEngine) -> None:
    node = OneNode(tmp_path, watch(oracle=oracle))
    node.frame(SCENE)
    node.follow(policy=replace(POLICY, rules=(*POLICY.rules, rule(MetricName.MAX_ABS_ERROR, 4, 0.05))), oracle=B)
    node.frame(STRIPED)
    assert node.serving() == (B.engine, 2)
    assert node.trip().reason == Reason.MAX_ABS_ERROR_EXCEEDED
    evidence = node.trip().trip
    assert evidence is not None
    assert replay_evidence(Path(evidence.evidence)).same


def test_while_the_standby_serves_for_another_reason_nothing_is_said_to_be_silent(tmp_path: Path) -> None:
    node = OneNode(tmp_path, watch(fallback_ready=False))
    node.frame(NAN)
    assert said(node).held == Reason.NON_FINITE_OUTPUT
    order = {"primary": A, "fallback": B, "why": "Quarantine", "reason": Reason.QUARANTINED}
    node.swapper.swap(SwapOrder(alias="bokeh", to=B, role="Fallback", **order))
    node.now += 100
    told = said(node)
    assert (told.held, told.stale, told.act) == (None, False, "None")
    node.follow(primary=None)
    node.now += 100
    assert not said(node).stale
