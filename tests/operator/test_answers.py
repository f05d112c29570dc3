"""Answers are spread where a whole large class is ordered at once, and never what is bad news."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blurfleet.answers import ORDER_S, spread_s, urgent
from blurfleet.api.meta import Condition
from blurfleet.api.nodeengine import CandidateStatus, ModelStatus, NodeEngineSpec, NodeEngineStatus, TripStatus
from blurfleet.reasons import Reason
from blurfleet_operator.decide.nodeplan import spread_answers


@pytest.mark.parametrize(
    ("nodes", "held", "wanted"),
    [
        pytest.param(2, 0.0, 0.0, id="few nodes answer at once"),
        pytest.param(159, 0.0, 0.0, id="orders that take less than a second need no spread"),
        pytest.param(160, 0.0, 1.0, id="from a second on they do"),
        pytest.param(1000, 0.0, 8.0, id="a thousand orders take six seconds, a power of two holds them"),
        pytest.param(5000, 0.0, 32.0, id="five thousand take half a minute"),
        pytest.param(159, 1.0, 1.0, id="one node less changes nothing"),
        pytest.param(40, 1.0, 0.0, id="a quarter of the nodes does"),
        pytest.param(1281, 8.0, 16.0, id="a spread that is too short grows"),
    ],
)
def test_the_spread_follows_the_time_that_orders_take(nodes: int, held: float, wanted: float) -> None:
    assert spread_s(nodes, held) == wanted


@given(st.integers(1, 100_000), st.sampled_from([0.0, *(2.0**k for k in range(10))]))
def test_a_spread_once_told_is_told_again_and_never_shorter_than_the_orders(nodes: int, held: float) -> None:
    told = spread_s(nodes, held)
    assert spread_s(nodes, told) == told
    assert told == 0.0 or nodes * ORDER_S <= told


def test_a_node_is_told_its_spread_once_and_a_small_class_none() -> None:
    spec = NodeEngineSpec(device_class="a100")
    assert spread_answers(spec, 100) is spec
    large = spread_answers(spec, 1000)
    assert large.answer_after == "8s"
    assert spread_answers(large, 990) is large
    assert spread_answers(large, 10).answer_after is None


def status(**model: object) -> NodeEngineStatus:
    return NodeEngineStatus(models=(ModelStatus.model_validate({"name": "bokeh", **model}),))


TRIP = TripStatus(digest="sha256:1", reason="DeerExceeded", at="2026-01-01T00:00:00Z")
PASSED = CandidateStatus(digest="sha256:1", phase="GoldenPassed", reason="GoldenPassed")
FAILED = CandidateStatus(digest="sha256:1", phase="GoldenFailed", reason="DeerExceeded")
DEAF = (Condition(type="FallbackReady", status="False", reason=Reason.MAX_ABS_ERROR_EXCEEDED),)


@pytest.mark.parametrize(
    ("old", "new", "wanted"),
    [
        pytest.param(None, status(), True, id="the first report waits for nobody"),
        pytest.param(status(), status(guard="Monitor"), False, id="an order carried out may wait"),
        pytest.param(status(), status(candidate=PASSED), False, id="progress may wait"),
        pytest.param(status(), status(last_trip=TRIP), True, id="a trip does not wait"),
        pytest.param(status(last_trip=TRIP), status(last_trip=TRIP), False, id="an old trip is no news"),
        pytest.param(status(), status(candidate=FAILED), True, id="a candidate that failed does not wait"),
        pytest.param(status(), status(conditions=DEAF), True, id="what turned False does not wait"),
        pytest.param(status(conditions=DEAF), status(conditions=DEAF), False, id="what stays False may"),
    ],
)
def test_bad_news_are_urgent(old: NodeEngineStatus | None, new: NodeEngineStatus, wanted: bool) -> None:
    assert urgent(old, new) is wanted
