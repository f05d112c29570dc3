"""Written-down sequences: the committed ones and more of each kind."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from blurfleet.errors import InvalidInput
from blurfleet.quality.sequences import judge_file, judge_sequence
from blurfleet.quality.verdict import Verdict
from blurfleet.reasons import Reason

CASES = Path(__file__).parents[1] / "cases" / "metrics"
WANT = json.loads((CASES / "want.json").read_text())
FAIL, PASS, OPEN = Verdict.FAIL, Verdict.PASS, Verdict.INCONCLUSIVE


@pytest.mark.parametrize("name", WANT)
def test_the_committed_sequences(name: str) -> None:
    found = next(r for r in judge_file(CASES / "sequences.json") if r.id == name)
    want = WANT[name]
    assert found.verdict not in want.get("not", [])
    assert found.verdict == want.get("verdict", found.verdict)
    assert found.fires_at_index == want.get("fires_at_index", found.fires_at_index)


def test_each_committed_reason() -> None:
    assert {r.id: (r.verdict, r.fires_at_index, r.reason) for r in judge_file(CASES / "sequences.json")} == {
        "deer_exact_boundary": (FAIL, 2, Reason.DEER_EXCEEDED),
        "deer_nan_in_run": (FAIL, 1, Reason.NON_FINITE_OUTPUT),
        "deer_reordered": (FAIL, 3, Reason.DEER_EXCEEDED),
        "deer_zero_ref_nonzero_cand": (OPEN, None, Reason.BREACH_PENDING),
        "orin_119s": (OPEN, None, Reason.BREACH_PENDING),
        "a100_inf_once": (FAIL, 1, Reason.NON_FINITE_OUTPUT),
    }


def deer(*values: float | None, **more: Any) -> dict[str, Any]:
    return {"id": "deer_x", "values": list(values), **more}


def orin(*values: float | None, **more: Any) -> dict[str, Any]:
    return {"id": "orin_x", "step_s": 15, "values": list(values), **more}


def a100(*values: float | None, **more: Any) -> dict[str, Any]:
    return {"id": "a100_x", "step_s": 15, "values": list(values), **more}


@pytest.mark.parametrize(
    ("item", "verdict", "index", "reason"),
    [
        pytest.param(deer(), OPEN, None, Reason.NO_DATA, id="an empty list"),
        pytest.param(deer(0.1, 0.1), PASS, None, Reason.WITHIN_LIMITS, id="sound values"),
        pytest.param(deer(0.2, 0.2, 0.1), PASS, None, Reason.WITHIN_LIMITS, id="a run that a pass ended"),
        pytest.param(deer(0.1, 0.2, 0.2), OPEN, None, Reason.BREACH_PENDING, id="an unfinished run"),
        pytest.param(deer(0.2, 0.2, 0.1, 0.2, 0.2, 0.2), FAIL, 5, Reason.DEER_EXCEEDED, id="the second run completes"),
        pytest.param(deer(*[0.17999999999999994] * 3), FAIL, 2, Reason.DEER_EXCEEDED, id="noise at the limit"),
        pytest.param(deer(*[0.1799] * 3), PASS, None, Reason.WITHIN_LIMITS, id="just below the limit"),
        pytest.param(deer(math.nan), FAIL, 0, Reason.NON_FINITE_OUTPUT, id="a NaN first"),
        pytest.param(deer(*[math.inf] * 3), FAIL, 2, Reason.DEER_EXCEEDED, id="infinite rates are ordinary breaches"),
        pytest.param(deer(*[-math.inf] * 3), FAIL, 2, Reason.DEER_EXCEEDED, id="negative infinity never passes"),
        pytest.param(deer(None, None), OPEN, None, Reason.INSUFFICIENT_SAMPLES, id="nothing measurable"),
        pytest.param(deer(0.2, None, 0.2, None, 0.2), FAIL, 4, Reason.DEER_EXCEEDED, id="invalid samples in a run"),
        pytest.param(
            deer(0.2, 0.2, 0.2, 0.2, frame_ids=[1, 1, 1, 1]), OPEN, None, Reason.BREACH_PENDING, id="one frame"
        ),
        pytest.param(
            deer(0.2, 0.2, 0.2, 0.2, frame_ids=[1, 2, 2, 3]), FAIL, 3, Reason.DEER_EXCEEDED, id="a duplicate in the run"
        ),
        pytest.param(
            deer(0.2, 0.2, 0.1, 0.2, frame_ids=[1, 2, 5, 3]), FAIL, 3, Reason.DEER_EXCEEDED, id="a late frame completes"
        ),
        pytest.param(
            deer(0.2, 0.2, 0.1, 0.2, frame_ids=[1, 3, 2, 4]), OPEN, None, Reason.BREACH_PENDING, id="a late pass"
        ),
        pytest.param(
            deer(0.1, *[0.1] * 9, 0.2, 0.2, 0.2, frame_ids=[1, *range(10, 19), 2, 3, 4]), PASS, None,
            Reason.WITHIN_LIMITS, id="frames later than the buffer do not count",
        ),
        pytest.param(
            deer(0.2, 0.1, 0.2, trip={"frames": 2, "window": 3}), FAIL, 2, Reason.DEER_EXCEEDED, id="two of three"
        ),
        pytest.param(orin(*[0.004] * 9), FAIL, 8, Reason.MAX_ABS_ERROR_EXCEEDED, id="120 s"),
        pytest.param(orin(*[0.004] * 8), OPEN, None, Reason.BREACH_PENDING, id="105 s"),
        pytest.param(orin(*[0.0035] * 12), PASS, None, Reason.WITHIN_LIMITS, id="the exact limit of a strict rule"),
        pytest.param(orin(*[0.004] * 5, 0.001, *[0.004] * 8), OPEN, None, Reason.BREACH_PENDING, id="a pass between"),
        pytest.param(orin(*[0.004] * 5, None, *[0.004] * 4), FAIL, 8, Reason.MAX_ABS_ERROR_EXCEEDED, id="one invalid"),
        pytest.param(orin(*[0.004] * 5, None, None, *[0.004] * 5), OPEN, None, Reason.BREACH_PENDING, id="a long gap"),
        pytest.param(orin(-math.inf), FAIL, 0, Reason.NON_FINITE_OUTPUT, id="a negative infinite error"),
        pytest.param(orin(0.06, 0.06, 0.06), FAIL, 2, Reason.MAX_ABS_ERROR_EXCEEDED, id="three gross errors"),
        pytest.param(a100(*[0.002] * 5), FAIL, 4, Reason.MAX_ABS_ERROR_EXCEEDED, id="60 s on an A100"),
        pytest.param(a100(*[0.002] * 4), OPEN, None, Reason.BREACH_PENDING, id="45 s on an A100"),
        pytest.param(
            a100(*[0.002] * 6, times=[0, 15, 30, 70, 85, 100]), OPEN, None, Reason.BREACH_PENDING, id="a gap of 40 s"
        ),
        pytest.param(
            a100(*[0.002] * 6, times=[0, 15, 30, 60, 75, 90]), FAIL, 3, Reason.MAX_ABS_ERROR_EXCEEDED, id="a gap, 30 s"
        ),
        pytest.param(a100(0.0005, None, None, None), OPEN, None, Reason.STREAM_STOPPED, id="a stream that fell silent"),
        pytest.param({"id": "ssim_x", "values": [0.9, 0.84]}, FAIL, 1, Reason.SSIM_TOO_LOW, id="a low SSIM"),
        pytest.param(
            {"id": "p999_x", "step_s": 30, "values": [0.004] * 5}, FAIL, 4, Reason.P999_ERROR_EXCEEDED, id="a high P999"
        ),
        pytest.param(
            {"id": "deer_x", "ref_edge_l1": [4.0] * 3, "cand_edge_l1": [5.0] * 3}, FAIL, 2, Reason.DEER_EXCEEDED,
            id="edge sums",
        ),
        pytest.param(
            {"id": "deer_x", "ref_edge_l1": 0.0, "cand_edge_l1": 0.0}, OPEN, None, Reason.INSUFFICIENT_SAMPLES,
            id="no edges at all",
        ),
        pytest.param({"id": "flux_x", "values": [1]}, OPEN, None, Reason.UNKNOWN_METRIC, id="an unknown figure"),
        pytest.param({"id": "lpips_x", "values": [1]}, OPEN, None, Reason.METRIC_UNAVAILABLE, id="LPIPS"),
        pytest.param({"id": "deer_x"}, OPEN, None, Reason.UNPARSEABLE, id="no values"),
        pytest.param({"id": "deer_x", "values": ["high"]}, OPEN, None, Reason.UNPARSEABLE, id="a word for a value"),
        pytest.param(deer(0.1, frame_ids=[1, 2]), OPEN, None, Reason.UNPARSEABLE, id="more ids than values"),
        pytest.param(deer(0.1, frame_ids=[1.5]), OPEN, None, Reason.UNPARSEABLE, id="a fractional id"),
        pytest.param(deer(0.1, times=[math.nan]), OPEN, None, Reason.UNPARSEABLE, id="a NaN time"),
        pytest.param(deer(0.1, trip={"frames": 0}), OPEN, None, Reason.INVALID_SPEC, id="a trip of no frames"),
        pytest.param("deer", OPEN, None, Reason.UNPARSEABLE, id="no object"),
    ],
)  # fmt: skip
def test_more_sequences(item: Any, verdict: Verdict, index: int | None, reason: Reason) -> None:
    found = judge_sequence(item)
    assert (found.verdict, found.fires_at_index, found.reason) == (verdict, index, reason)


@pytest.mark.parametrize(
    ("text", "reason"),
    [("{", Reason.UNPARSEABLE), ("{}", Reason.UNPARSEABLE), (None, Reason.UNREADABLE_FILE)],
    ids=["broken JSON", "not a list", "no file"],
)
def test_a_file_that_is_no_list_of_sequences_is_refused(tmp_path: Path, text: str | None, reason: Reason) -> None:
    path = tmp_path / "s.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InvalidInput) as caught:
        judge_file(path)
    assert caught.value.reason is reason
