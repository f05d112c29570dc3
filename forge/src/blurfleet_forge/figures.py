"""Error figures of a candidate against the FP32 answers, over frames."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from blurfleet.api.record import ErrorFigures
from blurfleet_forge.backends.onnxruntime import Session

Tensor = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class FrameError:
    """One frame's largest absolute error and its 99.9 percentile (linear interpolation), NaN for NaN or Inf output."""

    name: str
    max_abs: float
    p999: float


def frame_error(name: str, candidate: Tensor, reference: Tensor) -> FrameError:
    """Return the error of one frame; both are mattes of the same shape."""
    difference = np.abs(candidate.astype(np.float32) - reference)
    if not np.isfinite(candidate).all():
        return FrameError(name=name, max_abs=float("nan"), p999=float("nan"))
    return FrameError(name=name, max_abs=float(difference.max()), p999=float(np.quantile(difference, 0.999)))


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
    return ErrorFigures(
        frames=len(errors), max_abs=float(maxima.max()), p999=float(tails.max()), over_limit=over, limit=limit
    )
