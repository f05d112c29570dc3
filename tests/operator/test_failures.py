"""When a node's trip stays that node's, and when it takes the class back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_fleet import FACTS, NOW, digest, set_spec

from blurfleet.api.meta import Condition, timestamp
from blurfleet.api.nodeengine import (
    CandidateStatus,
    EngineRef,
    ModelStatus,
    NodeEngineSpec,
    NodeEngineStatus,
    NodeModel,
    Serving,
    TripStatus,
)
from blurfleet.api.rollout import Correlation, TripNote
from blurfleet.reasons import Reason
from blurfleet_operator.decide.choice import engine_ref
from blurfleet_operator.decide.failures import Scene, correlated, golden_failure, note_trips, tripped_nodes
from blurfleet_operator.decide.observation import NodeView

BAD = digest("mixed-jetson-orin")
SET = set_spec("mixed", precision="Mixed", net="net2")
ENGINE = next(engine_ref("mixed", v) for v in SET.variants if v.artifact.digest == BAD)
FP32 = engine_ref("mixed", SET.variants[1])
OLD_FP32 = engine_ref("fp32", set_spec("fp32").variants[1])


def node(
    name: str,
    *,
    age: float = 0.0,
    role: str = "primary",
    engine: EngineRef = ENGINE,
    fallback: EngineRef | None = None,
    status: ModelStatus | None = None,
) -> NodeView:
    model = NodeModel(name="bokeh", attempt="u/1/", fallback=fallback or OLD_FP32, **({role: engine} if role else {}))
    return NodeView(
        name=name,
        spec=NodeEngineSpec(device_class="jetson-orin", models=(model,)),
        status=NodeEngineStatus(
            heartbeat=timestamp(NOW - age), facts=FACTS, models=(status or ModelStatus(name="bokeh"),)
        ),
    )


def scene(*nodes: NodeView) -> Scene:
    digests = {"jetson-orin": frozenset({BAD, digest("net2-fp32")})}
    return Scene(
        model="bokeh", attempt="u/1/", rollout="default/bokeh", set_name="mixed", nodes=nodes, digests=digests, now=NOW
    )


def note(name: str, ago: float = 0.0, engine: str = BAD) -> TripNote:
    return TripNote(
        node=name,
        device_class="jetson-orin",
        digest=engine,
        attempt="u/1/",
        reason="DEERExceeded",
        at=timestamp(NOW - ago),
    )


RULE = Correlation(nodes=2, window="10m")
OTHERS = tuple(node(f"orin-{i}", engine=FP32) for i in (8, 9))
THREE = tuple(node(f"orin-{i}") for i in range(3))


@pytest.mark.parametrize(
    ("nodes", "notes", "reverts"),
    [
        pytest.param(THREE, [note("orin-0")], False, id="one of three that run it is that node's affair"),
        pytest.param(
            THREE, [note("orin-0"), note("orin-1", 599)], True, id="the second within the window takes the class"
        ),
        pytest.param(THREE, [note("orin-0"), note("orin-1", 600)], True, id="the window's edge is inside"),
        pytest.param(
            THREE, [note("orin-0"), note("orin-1", 601)], False, id="a second outside the window does not count"
        ),
        pytest.param(
            THREE,
            [note("orin-0", 7000), note("orin-1", 7100)],
            True,
            id="trips that arrive late count by their own time",
        ),
        pytest.param((node("orin-0"),), [note("orin-0")], True, id="the only node of a class is all of it"),
        pytest.param(
            (node("orin-0"), node("orin-1", role="")),
            [note("orin-0")],
            True,
            id="a node that does not run it is not waited for",
        ),
        pytest.param(
            (node("orin-0"), node("orin-1", role="candidate")),
            [note("orin-0")],
            False,
            id="a node that shadows it runs it",
        ),
        pytest.param(
            (node("orin-0"), node("orin-1", age=91)),
            [note("orin-0")],
            False,
            id="a node not heard from runs it all the same: one does not speak for two",
        ),
        pytest.param(
            (*THREE, *OTHERS),
            [note("orin-0"), note("orin-8", engine=FP32.digest)],
            False,
            id="two digests are two faults",
        ),
        pytest.param(THREE, [], False, id="no trip, no revert"),
    ],
)
def test_a_class_goes_back_at_min_k_of_the_nodes_running_the_digest(
    nodes: tuple[NodeView, ...], notes: list[TripNote], reverts: bool
) -> None:
    found = correlated(scene(*nodes), notes, RULE, "jetson-orin")
    assert (found is not None) is reverts
    if found is not None:
        assert (found.digest, found.reason, found.cause) == (BAD, Reason.CLASS_REVERTED, "DEERExceeded")


@settings(max_examples=200, deadline=None)
@given(k=st.integers(1, 6), running=st.integers(1, 6), tripped=st.integers(1, 6))
def test_the_threshold_is_exactly_min_of_k_and_the_nodes_running(k: int, running: int, tripped: int) -> None:
    tripped = min(tripped, running)
    nodes = tuple(node(f"orin-{i}") for i in range(running))
    notes = [note(f"orin-{i}", float(i)) for i in range(tripped)]
    found = correlated(scene(*nodes), notes, Correlation(nodes=k, window="10m"), "jetson-orin")
    assert (found is not None) is (tripped >= min(k, running))


def golden(**fields: Any) -> CandidateStatus:
    base = {"digest": BAD, "attempt": "u/1/", "phase": "GoldenFailed", "reason": "MaxAbsErrorExceeded"}
    return CandidateStatus.model_validate({**base, **fields})


def ready(status: str) -> tuple[Condition, ...]:
    return (Condition(type="FallbackReady", status=status, reason=Reason.GOLDEN_PASSED),)


@pytest.mark.parametrize(
    ("candidate", "fallback", "engine"),
    [
        pytest.param(golden(oracle_passed=True), "True", BAD, id="the oracle passes: this engine is bad"),
        pytest.param(golden(oracle_passed=True), "False", BAD, id="the oracle passes whatever the fallback does"),
        pytest.param(golden(oracle_passed=False), "True", "", id="the old FP32 passes, the new one fails: bad weights"),
        pytest.param(golden(oracle_passed=False), "False", None, id="every FP32 fails there: the node is suspect"),
        pytest.param(golden(oracle_passed=False), "Unknown", None, id="an unproven fallback proves nothing"),
        pytest.param(golden(oracle_passed=None), "True", None, id="without the oracle nobody is blamed"),
        pytest.param(
            golden(oracle_passed=True, attempt="u/0/"), "True", None, id="a verdict of another attempt is old"
        ),
        pytest.param(
            golden(oracle_passed=True, digest=digest("other")), "True", None, id="a verdict of another engine"
        ),
        pytest.param(golden(oracle_passed=True, phase="Proven"), "True", None, id="a candidate that passed"),
    ],
)
def test_who_is_to_blame_for_failed_golden_frames(
    candidate: CandidateStatus, fallback: str, engine: str | None
) -> None:
    status = ModelStatus(name="bokeh", candidate=candidate, conditions=ready(fallback))
    found = golden_failure(scene(node("orin-0", role="candidate", status=status)), "jetson-orin")
    assert (None if found is None else found.digest) == engine


def test_its_own_fp32_as_fallback_cannot_clear_the_node() -> None:
    status = ModelStatus(name="bokeh", candidate=golden(oracle_passed=False), conditions=ready("True"))
    only = node("orin-0", role="candidate", fallback=FP32, status=status)
    assert golden_failure(scene(only), "jetson-orin") is None


def trip(**fields: Any) -> ModelStatus:
    base = {"digest": BAD, "attempt": "u/1/", "reason": "DEERExceeded", "at": timestamp(NOW)}
    return ModelStatus(name="bokeh", last_trip=TripStatus.model_validate({**base, **fields}))


@pytest.mark.parametrize(
    ("status", "noted"),
    [
        pytest.param(trip(), True, id="a live trip of this attempt"),
        pytest.param(trip(stage="Shadow"), True, id="a trip in shadow"),
        pytest.param(trip(attempt="u/0/"), False, id="a trip of an earlier attempt"),
        pytest.param(trip(digest=digest("other")), False, id="a trip of another engine"),
        pytest.param(trip(stage="Golden"), False, id="golden frames are judged apart"),
        pytest.param(
            ModelStatus(name="bokeh", candidate=golden(phase="Failed", reason="DEERExceeded")),
            True,
            id="refused in shadow",
        ),
        pytest.param(
            ModelStatus(name="bokeh", candidate=golden(phase="Failed", reason="LoadFailed")),
            False,
            id="it did not load",
        ),
        pytest.param(ModelStatus(name="bokeh"), False, id="nothing happened"),
    ],
)
def test_what_counts_as_a_trip(status: ModelStatus, noted: bool) -> None:
    notes = note_trips(scene(node("orin-0", status=status)), ())
    assert [t.node for t in notes] == (["orin-0"] if noted else [])


def test_a_trip_reported_again_is_noted_once_and_one_of_an_older_attempt_is_forgotten() -> None:
    here = scene(node("orin-0", status=trip()))
    old = note("orin-1").model_copy(update={"attempt": "u/0/"})
    first = note_trips(here, (old,))
    assert note_trips(here, first) == first
    assert [t.node for t in first] == ["orin-0"]


@pytest.mark.parametrize(
    ("role", "engine", "off"),
    [
        pytest.param("Fallback", "net2-fp32", True, id="on the fallback it is still tripped"),
        pytest.param("Primary", "mixed-jetson-orin", False, id="on the engine again it was re-proven"),
    ],
)
def test_a_node_counts_as_tripped_until_its_engine_answers_again(role: str, engine: str, off: bool) -> None:
    serving = Serving(digest=digest(engine), engine="e", role=role, precision="Mixed", epoch=3)
    status = trip().model_copy(update={"serving": serving})
    here = scene(node("orin-0", status=status))
    assert tripped_nodes(here, note_trips(here, ())) == (("orin-0",) if off else ())


def tripped_at(
    ago: float, *, behind: float = 0.0, since: float = NOW - 3600.0, known: tuple[TripNote, ...] = ()
) -> tuple[TripNote, ...]:
    """The notes of orin-0, whose clock is `behind`, tripped `ago` seconds before NOW by that clock."""
    told = replace(node("orin-0", status=trip(at=timestamp(NOW - ago))), behind=behind)
    return note_trips(replace(scene(told), since=since), known)


@pytest.mark.parametrize(
    ("ago", "behind", "noted"),
    [
        pytest.param(100.0, 0.0, 100.0, id="a right clock is believed, also of a trip that arrives late"),
        pytest.param(500.0, 400.0, 100.0, id="a clock known to be behind is put right"),
        pytest.param(-3500.0, -3600.0, 100.0, id="a clock known to be ahead is put right"),
        pytest.param(-50.0, 0.0, 0.0, id="a time in the future says nothing"),
        pytest.param(1_700_000_000.0, 0.0, 0.0, id="a clock that began anew at its epoch says nothing"),
    ],
)
def test_a_trip_counts_by_this_clock(ago: float, behind: float, noted: float) -> None:
    (found,) = tripped_at(ago, behind=behind)
    assert (found.at, found.reported) == (timestamp(NOW - noted), timestamp(NOW - ago))


def test_a_trip_keeps_the_time_it_was_given_and_the_next_one_gets_its_own() -> None:
    first = tripped_at(1_700_000_000.0)
    later = replace(scene(node("orin-0", status=trip(at=first[0].reported))), now=NOW + 60.0, since=NOW - 3600.0)
    assert note_trips(later, first) == first
    again = replace(scene(node("orin-0", status=trip(at=timestamp(NOW + 50.0)))), now=NOW + 60.0)
    assert [t.at for t in note_trips(again, first)] == [timestamp(NOW + 50.0)]


def test_a_note_from_before_reported_times_were_kept_is_the_same_trip() -> None:
    old = note("orin-0", 100.0)
    assert tripped_at(100.0, known=(old,)) == (old,)
