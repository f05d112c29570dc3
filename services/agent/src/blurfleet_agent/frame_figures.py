"""Figures of one live frame: the engine's matte against its oracle's on the same tensor."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from blurfleet.api.policy import MetricName
from blurfleet.errors import BlurfleetError
from blurfleet.quality.metrics import measure
from blurfleet.quality.sentinel import sentinel
from blurfleet.quality.state import GuardPolicy, GuardState, Sample
from blurfleet.quality.verdict import Mark
from blurfleet.serving.framecodec import FrameSample

Array = NDArray[np.float32]
Infer = Callable[[str, Array], Array]
Figures = dict[MetricName, float | None]


@dataclass(frozen=True, kw_only=True, eq=False)
class Compared:
    """One frame compared at `at` (seconds): mattes, the guard's sample, the device seconds it took, `oracle` if asked.

    `before` is the guard's state that the sample was stepped from, `span_id` the request's span where it is traced.
    """

    sample: Sample
    tensor: Array
    matte: Array
    oracle: Array | None
    took_s: float
    at: float
    before: GuardState
    evidence_allowed: bool = True
    span_id: str = ""

    @property
    def nbytes(self) -> int:
        """Return how many bytes its arrays hold in memory."""
        return sum(array.nbytes for array in (self.tensor, self.matte, self.oracle) if array is not None)


def wants_ssim(policy: GuardPolicy) -> bool:
    """Tell whether a live rule reads SSIM; it costs more than all other figures together."""
    return any(rule.metric is MetricName.SSIM for rule in policy.rules)


def alone(matte: Array) -> Figures:
    """Return what one matte shows by itself: non-finite and out-of-range counts. Raises InvalidInput."""
    found = sentinel(matte)
    return {MetricName.NON_FINITE: float(found.non_finite), MetricName.OUT_OF_RANGE: float(found.out_of_range)}


def trips_alone(figures: Figures, policy: GuardPolicy) -> bool:
    """Tell whether one matte's own figures complete a trip on this frame: NaN always, range where a rule says so.

    Under a policy without such a rule a matte out of range must still be compared, or drift hides behind it.
    """
    outside = figures[MetricName.OUT_OF_RANGE]
    return bool(figures[MetricName.NON_FINITE]) or any(
        rule.metric is MetricName.OUT_OF_RANGE
        and (rule.action, rule.frames, rule.min_valid) == ("Swap", 1, 1)
        and rule.mark(outside) is Mark.BREACH
        for rule in policy.rules
    )


def compare(
    frame: FrameSample,
    *,
    digest: str,
    engine: str | None,
    oracle: str | None,
    infer: Infer,
    policy: GuardPolicy,
    period_s: float | None,
    now: float,
    before: GuardState,
) -> Compared:
    """Return the comparison of `frame`. With `engine` the matte is asked for here (shadow), else it is the frame's.

    Without an oracle (or where it is the engine itself) only the matte's own figures count; where the oracle does not
    answer, the sample is invalid unless the matte itself is broken. The oracle is not waited for where the matte alone
    is enough to act on. Raises EngineError when `engine` does not answer.
    """
    began = time.perf_counter()
    matte = frame.matte if engine is None else infer(engine, frame.tensor)
    figures, valid, answer = alone(matte), True, None
    if oracle is not None and not trips_alone(figures, policy):
        try:
            answer = infer(oracle, frame.tensor)
            found = measure(answer, matte, ssim=wants_ssim(policy))
            figures, valid = found.figures(), found.judgeable
        except BlurfleetError:
            valid = bool(figures[MetricName.OUT_OF_RANGE])
    sample = Sample(
        stream=frame.stream,
        frame=frame.frame_id,
        digest=digest,
        figures=figures,
        valid=valid,
        trace=frame.trace_id,
        period_s=period_s,
    )
    return Compared(
        sample=sample,
        tensor=frame.tensor,
        matte=matte,
        oracle=answer,
        took_s=time.perf_counter() - began,
        at=now,
        before=before,
        evidence_allowed=frame.evidence_allowed,
        span_id=frame.span_id,
    )


def answered(found: Compared, oracle: str, infer: Infer) -> Compared:
    """Return `found` with the oracle's answer, for evidence: a broken matte was judged without waiting for it."""
    if found.oracle is not None:
        return found
    try:
        return replace(found, oracle=infer(oracle, found.tensor))
    except BlurfleetError:
        return found
