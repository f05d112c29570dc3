"""Golden inference tells a sound engine from a drifting, a broken, a silent one, and engines from preprocessing."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.agent.tiny import CONTRACT, Shelf, golden, reference

from blurfleet.errors import ArtifactRefused, BlurfleetError, EngineError, EngineTimeout, InvalidInput
from blurfleet.quality.rules import default_policy
from blurfleet.reasons import Reason
from blurfleet_agent.golden import (
    GoldenFrames,
    change_from,
    from_error,
    judge_alive,
    judge_run,
    pictures_differ,
    read_golden,
    run_golden,
)

Array = NDArray[np.float32]


@pytest.fixture
def frames(tmp_path: Path) -> GoldenFrames:
    return read_golden(tmp_path / golden(Shelf(folder=tmp_path)).digest.removeprefix("sha256:"))


def with_nan(matte: Array) -> Array:
    spoilt = matte.copy()
    spoilt[0, 0, 0, 0] = np.nan
    return spoilt


@pytest.mark.parametrize(
    ("change", "role", "verdict", "reason"),
    [
        pytest.param(lambda m: m, "Primary", "Pass", "WithinLimits", id="a sound engine passes"),
        pytest.param(lambda m: m + 0.003, "Primary", "Pass", "WithinLimits", id="drift below the class's limit passes"),
        pytest.param(lambda m: m + 0.004, "Primary", "Fail", "MaxAbsErrorExceeded", id="drift above it fails"),
        pytest.param(lambda m: m + 0.004, "Fallback", "Fail", "MaxAbsErrorExceeded", id="nor may a standby"),
        pytest.param(with_nan, "Primary", "Fail", "NonFiniteOutput", id="one NaN pixel fails"),
        pytest.param(lambda m: m * 3, "Primary", "Fail", "OutOfRangeOutput", id="values above one fail"),
        pytest.param(lambda m: m * 0, "Primary", "Fail", "CollapsedOutput", id="an all-zero matte fails"),
    ],
)
def test_verdicts(frames: GoldenFrames, change: Any, role: Any, verdict: str, reason: str) -> None:
    run = run_golden(lambda _, t: np.asarray(change(reference(t)), np.float32), "bokeh__x", frames)
    found = judge_run(run, default_policy(), "jetson-orin", role, 5.0)
    assert (found.verdict, found.reason, found.at) == (verdict, reason, 5.0)


def test_the_same_drift_fails_on_the_stricter_class(frames: GoldenFrames) -> None:
    run = run_golden(lambda _, t: reference(t) + np.float32(0.003), "bokeh__x", frames)
    assert judge_run(run, default_policy(), "a100", "Primary", 0.0).verdict == "Fail"


def test_a_nan_is_shown_as_nan_and_not_as_a_number(frames: GoldenFrames) -> None:
    run = run_golden(lambda _, t: with_nan(reference(t)), "bokeh__x", frames)
    found = judge_run(run, default_policy(), "jetson-orin", "Primary", 0.0)
    assert next(f for f in found.figures if f.metric == "MaxAbsError").value == "NaN"
    assert all(math.isnan(m.max_abs_error) for m in run.measurements)


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        pytest.param(EngineTimeout(Reason.INFER_TIMEOUT, "x"), "Inconclusive", id="no answer in time: unsure"),
        pytest.param(EngineError(Reason.TRITON_UNREACHABLE, "x"), "Inconclusive", id="nobody there: unsure"),
        pytest.param(EngineError(Reason.INFER_FAILED, "x"), "Fail", id="an engine that refuses fails"),
    ],
)
def test_errors(error: BlurfleetError, verdict: str) -> None:
    assert from_error(error, 0.0).verdict == verdict


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(lambda m: m[:, :, :-1], id="one row too few"),
        pytest.param(lambda m: np.concatenate([m, m], axis=1), id="two channels"),
        pytest.param(lambda m: m.astype(np.int32), id="whole numbers"),
    ],
)
def test_an_engine_whose_answer_is_no_matte_fails_and_is_not_asked_for_ever(frames: GoldenFrames, answer: Any) -> None:
    with pytest.raises(EngineError) as caught:
        run_golden(lambda _, t: answer(reference(t)), "bokeh__x", frames)
    assert caught.value.where == "bokeh__x"
    assert from_error(caught.value, 0.0).verdict == "Fail"


def test_what_is_wrong_with_the_question_blames_no_engine(frames: GoldenFrames) -> None:
    assert from_error(InvalidInput(Reason.WRONG_SHAPE, "x"), 0.0).verdict == "Inconclusive"


@pytest.mark.parametrize(
    "references",
    [
        pytest.param(np.zeros((2, 1, 3, 4), np.float32), id="of another size than the tensors"),
        pytest.param(np.zeros((2, 4, 4), np.float32), id="of another rank"),
        pytest.param(np.full((2, 1, 4, 4), np.nan, np.float32), id="not numbers"),
    ],
)
def test_a_bundle_with_impossible_answers_is_refused_before_any_engine_is_blamed(
    tmp_path: Path, references: Array
) -> None:
    path = tmp_path / "bundle.npz"
    np.savez(path, names=np.array(["a", "b"]), tensors=np.zeros((2, 3, 4, 4), np.float32), references=references)
    with pytest.raises(ArtifactRefused) as caught:
        read_golden(path)
    assert caught.value.reason == "Unparseable"


def test_pictures_that_give_the_tensors_fit_and_others_are_named(frames: GoldenFrames) -> None:
    assert pictures_differ(frames, CONTRACT) == ""
    bgr = CONTRACT.model_copy(update={"color_order": "BGR"})
    assert "golden-1 misses its tensor" in pictures_differ(frames, bgr)
    broken = replace(frames, pictures=(b"GIF89a", *frames.pictures[1:]))
    assert "golden-1 is refused" in pictures_differ(broken, CONTRACT)


def test_without_golden_frames_only_a_broken_answer_fails() -> None:
    tensor = np.zeros((1, 3, 4, 4), np.float32)
    assert judge_alive(lambda *_: reference(tensor), "e", tensor, 0.0).verdict == "Pass"
    assert judge_alive(lambda *_: with_nan(reference(tensor)), "e", tensor, 0.0).verdict == "Fail"


@pytest.mark.parametrize("data", [b"", b"not a zip", b"PK\x03\x04 torn"])
def test_a_bundle_that_is_none_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "bundle").write_bytes(data)
    with pytest.raises(ArtifactRefused) as caught:
        read_golden(tmp_path / "bundle")
    assert caught.value.reason == "Unparseable"


@pytest.mark.parametrize(
    ("answer", "change"),
    [
        pytest.param(lambda m: m, 0.0, id="the same network"),
        pytest.param(lambda m: m * np.float32(0.5), 0.5, id="another one, measured at its largest difference"),
    ],
)
def test_how_far_another_sets_fp32_is_from_this_sets_answers(frames: GoldenFrames, answer: Any, change: float) -> None:
    found = change_from(lambda _, t: np.asarray(answer(reference(t)), np.float32), "bokeh__old", frames)
    largest = max(float(r.max()) for r in frames.references)
    assert found == pytest.approx(change * largest, abs=1e-6)


def test_a_change_that_cannot_be_measured_is_none_and_one_that_is_nan_stays_nan(frames: GoldenFrames) -> None:
    def silent(_: str, __: Array) -> Array:
        raise EngineTimeout(Reason.INFER_TIMEOUT, "x")

    assert change_from(silent, "bokeh__old", frames) is None
    assert change_from(lambda *_: np.zeros((1, 1, 7, 7), np.float32), "bokeh__old", frames) is None
    nan = change_from(lambda _, t: with_nan(reference(t)), "bokeh__old", frames)
    assert nan is not None
    assert math.isnan(nan)
