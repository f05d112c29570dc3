"""One request through the gateway's core: which engine answers, what the agent hears, what the counters say."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from blurfleet.api.contract import contract_at
from blurfleet.contract import contract_hash
from blurfleet.errors import ContractRefused, EngineError, EngineTimeout
from blurfleet.pixels import decode, to_tensor
from blurfleet.reasons import Reason
from blurfleet.serving.frames import FrameKind
from blurfleet.serving.routing import RoutedEngine
from blurfleet_preprocess.dataplane import Caller
from blurfleet_preprocess.streams import Streams
from blurfleet_preprocess.tracing import Tracing

Rig = Any  # the fixture's class lives in conftest.py


def test_a_sound_matte_is_answered_by_the_served_engine_under_one_snapshot(
    rig: Rig, caller: Caller, photo: bytes
) -> None:
    answer = rig.gateway.picture(caller, photo)
    assert rig.looks == 1
    assert rig.engines.asked == [rig.primary.engine]
    assert (answer.engine, answer.role, answer.route.epoch) == (rig.primary, "Primary", 7)
    assert answer.contract_hash == contract_hash(contract_at(rig.size))
    assert answer.simulated is True
    assert answer.withheld is None
    np.testing.assert_array_equal(answer.matte, rig.matte("subject"))


def test_the_engine_gets_the_contracts_tensor(rig: Rig, caller: Caller, photo: bytes) -> None:
    rig.gateway.picture(caller, photo)
    spec = contract_at(rig.size)
    np.testing.assert_array_equal(rig.engines.tensors[0], to_tensor(decode(photo, spec).rgb, spec))


def test_the_agent_hears_of_a_plain_frame(rig: Rig, caller: Caller, photo: bytes) -> None:
    rig.gateway.picture(replace(caller, evidence_allowed=False), photo)
    (sample,) = rig.told.samples
    assert (sample.kind, sample.reason, sample.stream, sample.frame_id) == (FrameKind.SAMPLE, "", "g/1", 5)
    assert (sample.model, sample.engine, sample.digest, sample.epoch) == (
        "bokeh",
        rig.primary.engine,
        rig.primary.digest,
        7,
    )
    assert (sample.at, sample.evidence_allowed, sample.fallback_matte) == (1000.0, False, None)
    np.testing.assert_array_equal(sample.tensor, rig.engines.tensors[0])
    np.testing.assert_array_equal(sample.matte[0, 0], rig.matte("subject"))


@pytest.mark.parametrize(("behaviour", "reason"), [("with NaN", "NonFiniteOutput"), ("too large", "OutOfRangeOutput")])
def test_a_bad_matte_is_withheld_and_the_same_request_answered_by_the_fallback(
    rig: Rig, caller: Caller, photo: bytes, behaviour: str, reason: str
) -> None:
    rig.engines_behave(behaviour)
    answer = rig.gateway.picture(caller, photo)
    assert rig.engines.asked == [rig.primary.engine, rig.fallback.engine]
    assert rig.engines.tensors[0] is rig.engines.tensors[1]
    assert (answer.engine, answer.role, answer.route.epoch, answer.withheld) == (rig.fallback, "Fallback", 7, reason)
    np.testing.assert_array_equal(answer.matte, rig.matte("shifted"))
    (sample,) = rig.told.samples
    assert (sample.kind, sample.reason, sample.engine) == (FrameKind.WITHHELD, reason, rig.primary.engine)
    np.testing.assert_array_equal(sample.matte[0, 0], rig.matte(behaviour))
    np.testing.assert_array_equal(sample.fallback_matte[0, 0], rig.matte("shifted"))
    assert rig.count("blurfleet_frames_withheld_total", reason=reason) == 1


def test_a_collapsed_matte_is_answered_by_the_fallback_that_sees_a_subject(
    rig: Rig, caller: Caller, photo: bytes
) -> None:
    rig.engines_behave("all zero")
    answer = rig.gateway.picture(caller, photo)
    assert (answer.engine, answer.withheld) == (rig.fallback, Reason.COLLAPSED_OUTPUT)
    assert [(s.kind, s.reason) for s in rig.told.samples] == [(FrameKind.SUSPECT, "CollapsedOutput")]


def test_an_empty_scene_is_a_plain_frame(rig: Rig, caller: Caller, photo: bytes) -> None:
    rig.engines_behave("all zero", "all zero")
    answer = rig.gateway.picture(caller, photo)
    assert (answer.engine, answer.withheld) == (rig.primary, None)
    assert [(s.kind, s.reason) for s in rig.told.samples] == [(FrameKind.SAMPLE, "")]
    assert rig.count("blurfleet_frames_withheld_total", reason="CollapsedOutput") == 0


@pytest.mark.parametrize("fallback", ["with NaN", "too large", "missing", "late", "wrong shape"])
def test_two_bad_engines_are_an_error_and_never_a_bad_matte(
    rig: Rig, caller: Caller, photo: bytes, fallback: str
) -> None:
    rig.engines_behave("with NaN", fallback)
    with pytest.raises(EngineError) as caught:
        rig.gateway.picture(caller, photo)
    assert caught.value.reason is Reason.NON_FINITE_OUTPUT
    assert [s.kind for s in rig.told.samples] == [FrameKind.WITHHELD]


def test_the_fallback_on_stage_has_nobody_to_be_replaced_by(rig: Rig, caller: Caller, photo: bytes) -> None:
    rig.route(serving="Fallback")
    rig.engines_behave("subject", "with NaN")
    with pytest.raises(EngineError):
        rig.gateway.picture(caller, photo)
    assert rig.engines.asked == [rig.fallback.engine]


def test_the_fallback_on_stage_may_see_an_empty_scene(rig: Rig, caller: Caller, photo: bytes) -> None:
    rig.route(serving="Fallback")
    rig.engines_behave("subject", "all zero")
    assert rig.gateway.picture(caller, photo).role == "Fallback"
    assert [(s.kind, s.reason) for s in rig.told.samples] == [(FrameKind.SAMPLE, "")]


def test_an_engine_that_was_unloaded_is_looked_up_once_more(rig: Rig, caller: Caller, photo: bytes) -> None:
    newer = RoutedEngine(engine="bokeh__bbbbbbbbbbbb", digest="sha256:" + "b" * 64, precision="FP16")
    rig.engines_behave("missing")
    rig.engines.behaviours[newer.engine] = lambda _: rig.matte("subject")[None, None]
    rig.on_look = lambda: rig.looks > 1 and rig.route(primary=newer, epoch=8)
    answer = rig.gateway.picture(caller, photo)
    assert rig.engines.asked == [rig.primary.engine, newer.engine]
    assert (answer.engine, answer.route.epoch) == (newer, 8)
    assert [(s.engine, s.epoch) for s in rig.told.samples] == [(newer.engine, 8)]


@pytest.mark.parametrize("behaviour", ["missing", "wrong shape"])
def test_an_engine_that_cannot_answer_is_stood_in_for(rig: Rig, caller: Caller, photo: bytes, behaviour: str) -> None:
    rig.engines_behave(behaviour)
    answer = rig.gateway.picture(caller, photo)
    assert (answer.engine, answer.role) == (rig.fallback, "Fallback")
    assert [(s.kind, s.engine) for s in rig.told.samples] == [(FrameKind.SAMPLE, rig.fallback.engine)]


def test_when_nobody_answers_the_error_says_so_after_two_tries(rig: Rig, caller: Caller, photo: bytes) -> None:
    rig.engines_behave("missing", "missing")
    with pytest.raises(EngineError) as caught:
        rig.gateway.picture(caller, photo)
    assert caught.value.reason is Reason.TRITON_UNREACHABLE
    assert rig.engines.asked == [rig.primary.engine, rig.fallback.engine]
    assert rig.told.samples == []


def test_a_late_engine_does_not_double_the_wait(rig: Rig, caller: Caller, photo: bytes) -> None:
    rig.engines_behave("late")
    with pytest.raises(EngineTimeout):
        rig.gateway.picture(caller, photo)
    assert rig.engines.asked == [rig.primary.engine]


def test_a_request_that_began_before_a_flip_ends_on_the_engine_it_began_with(
    rig: Rig, caller: Caller, photo: bytes
) -> None:
    def flips_meanwhile(tensor: Any) -> Any:
        rig.route(serving="Fallback", epoch=8)
        return rig.matte("subject")[None, None]

    rig.engines.behaviours[rig.primary.engine] = flips_meanwhile
    answer = rig.gateway.picture(caller, photo)
    assert (answer.engine, answer.role, answer.route.epoch) == (rig.primary, "Primary", 7)
    assert rig.gateway.picture(caller, photo).route.epoch == 8


def test_a_node_that_serves_nothing_says_so(rig: Rig, caller: Caller, photo: bytes) -> None:
    rig.table = rig.table.model_copy(update={"models": {}})
    with pytest.raises(EngineError) as caught:
        rig.gateway.picture(caller, photo)
    assert caught.value.reason is Reason.NOTHING_SERVED


def test_a_refused_picture_asks_no_engine(rig: Rig, caller: Caller) -> None:
    with pytest.raises(ContractRefused):
        rig.gateway.picture(caller, b"")
    assert rig.engines.asked == []
    assert rig.count("blurfleet_contract_refusals_total", reason="EmptyImage") == 1


@pytest.mark.parametrize(("flags", "forwarded"), [("01", True), ("00", False)], ids=["sampled", "unsampled"])
def test_only_a_sampled_trace_reaches_the_engine_and_every_frame_keeps_its_trace(
    rig: Rig, caller: Caller, photo: bytes, flags: str, forwarded: bool
) -> None:
    value = f"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-{flags}"
    with Tracing().request({"traceparent": value}) as stages:
        answer = rig.gateway.picture(replace(caller, stages=stages), photo)
    assert rig.engines.headers == [{"traceparent": value} if forwarded else {}]
    assert rig.told.samples[0].trace_id == answer.trace_id == "4bf92f3577b34da6a3ce929d0e0e4736"
    assert rig.told.samples[0].span_id == ("00f067aa0ba902b7" if forwarded else "")


def test_frame_ids_grow_by_arrival_within_a_stream_and_streams_are_numbered_by_the_gateway() -> None:
    streams = Streams("n.1")
    places = [streams.arrive(name) for name in ("", "a", "", "a", "b", "")]
    assert [(p.stream, p.frame_id) for p in places] == [
        ("n.1/1", 1), ("n.1/2", 1), ("n.1/1", 2), ("n.1/2", 2), ("n.1/3", 1), ("n.1/1", 3),
    ]  # fmt: skip


def test_a_forgotten_stream_comes_back_as_a_new_one() -> None:
    streams = Streams("n.1")
    first = streams.arrive("old")
    for n in range(300):
        streams.arrive(f"s{n}")
    again = streams.arrive("old")
    assert again.frame_id == 1
    assert again.stream != first.stream
