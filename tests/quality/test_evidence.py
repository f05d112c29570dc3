"""Evidence written, read back and judged again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blurfleet.errors import ArtifactRefused, InvalidInput, NodeError
from blurfleet.quality.evidence import (
    MAX_FRAMES,
    Evidence,
    EvidenceSample,
    FrameArrays,
    evidence_sample,
    figures_from_text,
    figures_text,
    load_evidence,
    policy_json,
    rules_json,
    write_evidence,
)
from blurfleet.quality.golden import judge_golden
from blurfleet.quality.guard import begin, step
from blurfleet.quality.metrics import measure
from blurfleet.quality.pictures import heatmap, matte_picture, to_picture
from blurfleet.quality.replay import replay_evidence
from blurfleet.quality.rules import bind, default_policy, resolve
from blurfleet.quality.shadow import assess
from blurfleet.quality.state import guard_policy, sample_of, state_to_json
from blurfleet.quality.verdict import Verdict
from blurfleet.reasons import Reason

DIGEST = "sha256:" + "a" * 64
POLICY = replace(guard_policy(default_policy(), "jetson-orin"), shadow_samples=3)


def disc(shift: float = 0.0) -> np.ndarray:
    y, x = np.mgrid[:48, :48]
    return np.clip((14 - np.hypot(x - 24 - shift, y - 24)) / 2, 0, 1).astype(np.float32)


def live(folder: Path, candidates: list[np.ndarray], **changes: Any) -> Path:
    state, before, samples, frames = begin(DIGEST, "1", 0.0), None, [], {}
    before = state
    for index, candidate in enumerate(candidates):
        sample = sample_of(measure(disc(), candidate), stream="cam", frame=index, digest=DIGEST)
        state, _ = step(state, sample, POLICY, float(index), fallback_ready=True)
        samples.append(evidence_sample(sample, float(index)))
        frames[index] = FrameArrays(candidate=candidate, oracle=disc(), tensor=np.zeros((1, 3, 4, 4), np.float32))
    found = assess(state, POLICY, float(len(candidates) - 1))
    made = Evidence(
        stage="Live", node="orin-0", device_class="jetson-orin", model="bokeh", digest=DIGEST, attempt="1",
        verdict=found.verdict.value, reason=found.reason, policy=policy_json(POLICY),
        state_before=state_to_json(before), samples=tuple(samples),
    )  # fmt: skip
    return write_evidence(folder, made.model_copy(update=changes), frames)


@pytest.mark.parametrize(
    ("candidates", "verdict", "reason"),
    [
        pytest.param([disc(1.0)] * 3, Verdict.FAIL, Reason.DEER_EXCEEDED, id="three shifted mattes"),
        pytest.param([disc()] * 3, Verdict.PASS, Reason.WITHIN_LIMITS, id="three sound mattes"),
        pytest.param([disc(), np.zeros_like(disc())], Verdict.FAIL, Reason.COLLAPSED_OUTPUT, id="a collapsed matte"),
        pytest.param([np.full_like(disc(), np.nan)], Verdict.FAIL, Reason.NON_FINITE_OUTPUT, id="a NaN matte"),
        pytest.param([disc(1.0)], Verdict.INCONCLUSIVE, Reason.BREACH_PENDING, id="an open run"),
    ],
)
def test_a_live_verdict_comes_again_from_its_mattes(
    tmp_path: Path, candidates: list[np.ndarray], verdict: Verdict, reason: Reason
) -> None:
    found = replay_evidence(live(tmp_path / "e", candidates))
    assert (found.verdict, found.reason, found.differences) == (verdict, reason, ())
    assert found.frames == found.samples == len(candidates)
    assert [p.name for p in tmp_path.iterdir()] == ["e"]


def test_a_golden_verdict_comes_again_from_its_mattes(tmp_path: Path) -> None:
    rules = bind(resolve(default_policy(), "a100"), "Golden")
    mattes = {"portrait": disc(0.5), "street": disc()}
    judged = judge_golden(rules, {name: measure(disc(), m) for name, m in mattes.items()})
    samples = tuple(
        EvidenceSample(stream=name, frame=i, figures=figures_text(measure(disc(), m).figures()))
        for i, (name, m) in enumerate(mattes.items())
    )
    made = Evidence(
        stage="Golden", node="a100-0", device_class="a100", model="bokeh", digest=DIGEST,
        verdict=judged.verdict.value, reason=judged.reason, rules=rules_json(rules), samples=samples,
        figures=judged.figures,
    )  # fmt: skip
    frames = {i: FrameArrays(candidate=m, oracle=disc()) for i, m in enumerate(mattes.values())}
    found = replay_evidence(write_evidence(tmp_path / "g", made, frames))
    assert found.same
    assert (found.verdict, found.reason) == (Verdict.FAIL, judged.reason)


def test_a_verdict_that_its_frames_do_not_support_is_told(tmp_path: Path) -> None:
    found = replay_evidence(live(tmp_path / "e", [disc()] * 3, verdict="Fail", reason=Reason.DEER_EXCEEDED))
    assert [d.where for d in found.differences] == ["verdict", "reason"]
    assert not found.same


def test_a_recorded_figure_that_its_matte_does_not_have_is_told(tmp_path: Path) -> None:
    folder = live(tmp_path / "e", [disc()] * 3)
    body = json.loads((folder / "verdict.json").read_text())
    body["samples"][1]["figures"]["MaxAbsError"] = "0.25"
    (folder / "verdict.json").write_text(json.dumps(body))
    found = replay_evidence(folder)
    assert [(d.where, d.recorded, d.recomputed) for d in found.differences] == [("cam/1 MaxAbsError", "0.25", "0")]


def test_a_frame_that_was_changed_afterwards_is_refused(tmp_path: Path) -> None:
    folder = live(tmp_path / "e", [disc()] * 3)
    with (folder / "frame_1.npz").open("r+b") as stream:
        stream.seek(100)
        stream.write(b"\0\1\2\3")
    with pytest.raises(ArtifactRefused) as caught:
        replay_evidence(folder)
    assert caught.value.reason is Reason.DIGEST_MISMATCH


def test_a_frame_that_is_gone_is_named(tmp_path: Path) -> None:
    folder = live(tmp_path / "e", [disc()] * 3)
    (folder / "frame_2.npz").unlink()
    with pytest.raises(InvalidInput, match="frame_2") as caught:
        replay_evidence(folder)
    assert caught.value.reason is Reason.MISSING_FILE


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param("{", Reason.UNPARSEABLE, id="broken JSON"),
        pytest.param('{"schemaVersion": 2}', Reason.INVALID_SPEC, id="a schema from the future"),
        pytest.param(None, Reason.UNREADABLE_FILE, id="no file"),
    ],
)
def test_what_is_no_evidence_is_refused(tmp_path: Path, text: str | None, reason: Reason) -> None:
    if text is not None:
        (tmp_path / "verdict.json").write_text(text)
    with pytest.raises(InvalidInput) as caught:
        load_evidence(tmp_path)
    assert caught.value.reason is reason


def test_only_the_last_frames_are_kept_and_the_verdict_still_comes_again(tmp_path: Path) -> None:
    folder = live(tmp_path / "e", [disc(0.001)] * (MAX_FRAMES + 4))
    assert len(list(folder.glob("frame_*.npz"))) == MAX_FRAMES
    found = replay_evidence(folder)
    assert (found.frames, found.samples, found.same) == (MAX_FRAMES, MAX_FRAMES + 4, True)


def test_of_many_golden_frames_the_worst_are_kept(tmp_path: Path) -> None:
    rules = bind(resolve(default_policy(), "a100"), "Golden")
    mattes = [disc(1.0 if i in (1, 5) else i * 1e-5) for i in range(MAX_FRAMES + 6)]
    samples = tuple(
        EvidenceSample(stream="golden", frame=i, figures=figures_text(measure(disc(), m).figures()))
        for i, m in enumerate(mattes)
    )
    made = Evidence(
        stage="Golden", node="n", device_class="a100", model="bokeh", digest=DIGEST, verdict="Fail",
        reason=Reason.DEER_EXCEEDED, rules=rules_json(rules), samples=samples,
    )  # fmt: skip
    frames = {i: FrameArrays(candidate=m, oracle=disc()) for i, m in enumerate(mattes)}
    folder = write_evidence(tmp_path / "g", made, frames)
    kept = {s.frame for s in load_evidence(folder).samples if s.file}
    assert len(kept) == MAX_FRAMES
    assert {1, 5} <= kept
    assert replay_evidence(folder).same


def test_evidence_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    folder = live(tmp_path / "e", [disc()])
    with pytest.raises(NodeError) as caught:
        live(folder, [disc()])
    assert caught.value.reason is Reason.EVIDENCE_UNWRITTEN
    assert [p.name for p in tmp_path.iterdir()] == ["e"]


def test_figures_read_back_exactly() -> None:
    broken = disc()
    broken[0, 0] = np.inf
    for candidate in (disc(0.3), broken, np.zeros_like(disc())):
        figures = measure(disc(), candidate).figures()
        assert figures_text(figures_from_text(figures_text(figures))) == figures_text(figures)


def test_pictures_show_the_matte_and_where_it_differs() -> None:
    broken = disc(1.0)
    broken[3, 4] = np.nan
    heat = heatmap(broken, disc())
    assert heat.shape == (48, 48, 3)
    assert tuple(heat[3, 4]) == (255, 0, 255)
    assert int(heat[24, 38].sum()) > int(heat[0, 0].sum())
    assert tuple(matte_picture(disc())[24, 24]) == (255, 255, 255)
    assert to_picture(heat).startswith(b"\x89PNG")
