"""The bench's judge: a bench that cannot find a stale answer proves nothing."""

from __future__ import annotations

import numpy as np
import pytest

from blurfleet_agent.flip import FlipTimes
from blurfleet_cli.swap_bench import Flip, judge, swap_report
from blurfleet_cli.swap_load import REQUEST_DTYPE, VIA_ALIAS, VIA_ROUTING

TIMES = FlipTimes(replace_ms=1.0, load_ms=2.0, ready_ms=0.5, verify_ms=4.0)
MS = 1_000_000
# epoch 1 (scale 0.5): starts at 100 ms, routed at 101, returned at 110; epoch 2 (scale 1.0): 200, 201, 210
FLIPS = [
    Flip(epoch=n, scale=s, started_ns=at * MS, routed_ns=(at + 1) * MS, returned_ns=(at + 10) * MS, times=TIMES)
    for n, s, at in ((1, 0.5, 100), (2, 1.0, 200))
]


@pytest.mark.parametrize(
    ("via", "sent", "done", "version", "scale", "verdict"),
    [
        pytest.param(VIA_ALIAS, 50, 60, 0, 1.0, (0, 0), id="before any flip the old epoch is right"),
        pytest.param(VIA_ALIAS, 105, 130, 0, 1.0, (0, 0), id="sent while the flip ran, the old epoch may answer"),
        pytest.param(VIA_ALIAS, 111, 130, 0, 1.0, (1, 0), id="sent after the flip returned, the old epoch is stale"),
        pytest.param(VIA_ALIAS, 111, 130, 1, 0.5, (0, 0), id="sent after the flip returned, the new epoch is right"),
        pytest.param(VIA_ALIAS, 111, 205, 2, 1.0, (0, 0), id="a newer epoch than the last returned is right"),
        pytest.param(VIA_ALIAS, 111, 130, 1, 1.0, (0, 1), id="a picture of another engine than the epoch's is mixed"),
        pytest.param(VIA_ALIAS, 111, 130, 1, float("nan"), (0, 1), id="two engines in one picture are mixed"),
        pytest.param(
            VIA_ROUTING, 100, 130, 1, 1.0, (0, 0), id="started before the routing replace, the old may answer"
        ),
        pytest.param(VIA_ROUTING, 102, 130, 1, 1.0, (1, 0), id="started after the routing replace, the old is stale"),
        pytest.param(VIA_ROUTING, 102, 130, 1, 0.5, (0, 0), id="started after the routing replace, the new is right"),
        pytest.param(VIA_ROUTING, 150, 205, 1, 1.0, (0, 0), id="the next flip began before the answer: either"),
        pytest.param(VIA_ROUTING, 202, 220, 1, 0.5, (1, 0), id="the engine two flips ago is stale after the second"),
    ],
)
def test_an_answer_is_judged_by_when_its_request_was_sent(
    via: int, sent: int, done: int, version: int, scale: float, verdict: tuple[int, int]
) -> None:
    requests = np.array([(via, True, sent * MS, done * MS, version, scale)], dtype=REQUEST_DTYPE)
    assert judge(FLIPS, requests) == verdict


def test_a_failed_request_is_counted_as_failed_and_as_nothing_else() -> None:
    requests = np.array([(VIA_ALIAS, False, 111 * MS, 120 * MS, 0, 0.0)], dtype=REQUEST_DTYPE)
    report = swap_report(FLIPS, requests, loads=4)
    assert (report["failed"], report["stale"], report["mixed"], report["loads_per_flip"]) == (1, 0, 0, 2.0)


def test_a_flip_is_timed_from_the_routing_replace_to_ready_without_the_verification() -> None:
    report = swap_report(FLIPS, _one_sound(), loads=2)
    assert report["flip_p50_ms"] == pytest.approx(1.0 + 3.5)
    assert report["verify_p50_ms"] == 4.0
    assert report["routing_p99_ms"] == pytest.approx(1.0)


def _one_sound() -> np.ndarray:
    return np.array([(VIA_ALIAS, True, 50 * MS, 60 * MS, 0, 1.0)], dtype=REQUEST_DTYPE)
