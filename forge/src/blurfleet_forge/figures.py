"""Error figures of a candidate against the FP32 answers, over frames."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from blurfleet.api.record import ErrorFigures
from blurfleet.quality import metrics
from blurfleet_forge.backends.onnxruntime import Session

Tensor = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class FrameError:
    """One frame: largest absolute error, its 99.9 percentile, edge error rate (None where there are too few edges)."""

    name: str
    max_abs: float
    p999: float
    deer: float | None


def frame_error(name: str, candidate: Tensor, reference: Tensor) -> FrameError:
    """Return the error of one frame; both are mattes [1, 1, H, W]. NaN or Inf in the candidate gives NaN or Inf."""
    found = metrics.measure(reference[0, 0], candidate[0, 0], ssim=False)
    return FrameError(name=name, max_abs=found.max_abs_error, p999=found.p999_error, deer=found.deer)


def measure(
    session: Session, names: Sequence[str], tensors: Sequence[Tensor], references: Sequence[Tensor]
) -> tuple[FrameError, ...]:
    """Run every frame and return its error, in order."""
    return tuple(frame_error(n, session.run(t), r) for n, t, r in zip(names, tensors, references, strict=True))


def summarize(errors: Sequence[FrameError], limit: float | None) -> ErrorFigures:
    """Return the largest figures and how many frames are not within `limit`; a NaN is never within it."""
    maxima = np.array([e.max_abs for e in errors], np.float64)
    over = 0 if limit is None else int(np.count_nonzero(~(maxima <= limit)))
    tails = np.array([e.p999 for e in errors], np.float64)
    rates = [e.deer for e in errors if e.deer is not None and math.isfinite(e.deer)]
    return ErrorFigures(
        frames=len(errors),
        max_abs=float(maxima.max()),
        p999=float(tails.max()),
        deer=max(rates, default=None),
        over_limit=over,
        limit=limit,
    )
