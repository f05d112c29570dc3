"""Recomputing a verdict from its evidence with the rules and the guard that gave it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from blurfleet.api.kinds import invalid
from blurfleet.api.policy import MetricName
from blurfleet.errors import InvalidInput
from blurfleet.quality.evidence import (
    Evidence,
    EvidenceSample,
    FrameArrays,
    figures_from_text,
    load_evidence,
    load_frame,
    policy_from_json,
    rules_from_json,
)
from blurfleet.quality.golden import judge_frames, number_text
from blurfleet.quality.guard import step
from blurfleet.quality.metrics import Figures, measure
from blurfleet.quality.sentinel import sentinel
from blurfleet.quality.shadow import assess
from blurfleet.quality.state import Sample, state_from_json
from blurfleet.quality.verdict import Verdict
from blurfleet.reasons import Reason

FIGURE_TOLERANCE = 1e-6
"""How far a recomputed figure may be off, relative to max(1, value): another CPU's summation order, nothing more."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One recomputed figure or outcome that is not the recorded one."""

    where: str
    recorded: str
    recomputed: str


@dataclass(frozen=True, kw_only=True)
class ReplayResult:
    """What recomputation gave. `frames` counts the samples whose figures came from stored mattes."""

    verdict: Verdict
    reason: Reason
    recorded_verdict: str
    recorded_reason: Reason
    samples: int
    frames: int
    differences: tuple[Difference, ...]

    @property
    def same(self) -> bool:
        """Tell whether verdict, reason and every figure agree."""
        return not self.differences


def replay_evidence(folder: Path) -> ReplayResult:
    """Return the recomputed verdict of the evidence in `folder`.

    Figures are measured again from the stored mattes; a sample without mattes keeps its recorded figures. Raises
    InvalidInput (unreadable or inconsistent evidence) and ArtifactRefused (a frame's bytes changed).
    """
    root = folder.parent if folder.is_file() else folder
    evidence = load_evidence(folder)
    differences: list[Difference] = []
    figures: list[Figures] = []
    for sample in evidence.samples:
        recorded = _recorded(sample, root)
        figures.append(recorded)
        if sample.file:
            again = _measured(load_frame(root, sample), evidence, recorded)
            differences += _differing(sample, recorded, again)
            figures[-1] = recorded | again
    try:
        verdict, reason = _judged(evidence, figures)
    except ValidationError as error:
        raise invalid(error, str(root)) from error
    for where, old, new in (("verdict", evidence.verdict, verdict), ("reason", evidence.reason, reason)):
        if str(old) != str(new):
            differences.append(Difference(where=where, recorded=str(old), recomputed=str(new)))
    return ReplayResult(
        verdict=verdict,
        reason=reason,
        recorded_verdict=evidence.verdict,
        recorded_reason=evidence.reason,
        samples=len(evidence.samples),
        frames=sum(1 for s in evidence.samples if s.file),
        differences=tuple(differences),
    )


def _recorded(sample: EvidenceSample, root: Path) -> Figures:
    try:
        return figures_from_text(sample.figures)
    except ValueError as error:
        raise InvalidInput(Reason.UNPARSEABLE, f"frame {sample.frame}: {error}", where=str(root)) from error


def _measured(frame: FrameArrays, evidence: Evidence, recorded: Figures) -> Figures:
    """Measure again what was recorded; without the oracle's matte only what one matte can tell."""
    if frame.oracle is None:
        alone = sentinel(frame.candidate)
        found: Figures = {
            MetricName.NON_FINITE: float(alone.non_finite),
            MetricName.OUT_OF_RANGE: float(alone.out_of_range),
        }
    else:
        with_ssim = recorded.get(MetricName.SSIM) is not None
        found = measure(frame.oracle, frame.candidate, ssim=with_ssim, kind=evidence.kind).figures()
    return {name: value for name, value in found.items() if name in recorded}


def _differing(sample: EvidenceSample, recorded: Figures, again: Figures) -> list[Difference]:
    return [
        Difference(
            where=f"{sample.stream}/{sample.frame} {name}", recorded=_text(recorded[name]), recomputed=_text(new)
        )
        for name, new in again.items()
        if not _agree(recorded[name], new)
    ]


def _agree(a: float | None, b: float | None) -> bool:
    if a is None or b is None:
        return a is b
    if not (math.isfinite(a) and math.isfinite(b)):
        return a == b or (math.isnan(a) and math.isnan(b))
    return abs(a - b) <= FIGURE_TOLERANCE * max(1.0, abs(a))


def _text(value: float | None) -> str:
    return "not measurable" if value is None else number_text(value)


def _judged(evidence: Evidence, figures: list[Figures]) -> tuple[Verdict, Reason]:
    if evidence.stage == "Golden":
        frames = {
            f"{s.stream}/{s.frame}": f if s.valid else None for s, f in zip(evidence.samples, figures, strict=True)
        }
        golden = judge_frames(rules_from_json(evidence.rules), frames)
        return golden.verdict, golden.reason
    if evidence.policy is None or evidence.state_before is None:
        raise InvalidInput(Reason.UNPARSEABLE, f"{evidence.stage} evidence needs policy and stateBefore")
    policy, state = policy_from_json(evidence.policy), state_from_json(evidence.state_before)
    now = state.begun_at if state.last_valid_at is None else state.last_valid_at
    for kept, measured in zip(evidence.samples, figures, strict=True):
        sample = Sample(
            stream=kept.stream,
            frame=kept.frame,
            digest=evidence.digest,
            figures=measured,
            valid=kept.valid,
            trace=kept.trace,
            period_s=kept.period_s,
        )
        now = kept.at
        state, _ = step(state, sample, policy, now, fallback_ready=evidence.fallback_ready)
    found = assess(state, policy, now)
    return found.verdict, found.reason
