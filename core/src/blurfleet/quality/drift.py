"""Do live pictures still look like those the engine was calibrated on? A two-sample Kolmogorov-Smirnov test. Pure.

Brightness (mean) and contrast (standard deviation) of each channel are compared, live window against the set's profile.
The answer is a warning for people and never a reason to swap: the engine is as good as it was, its pictures are others.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

LEVEL = 0.01
"""Chance of a warning by chance alone, over all features together (the smallest p times their number)."""
CLEARS_AT = 0.05  # a warning stands until p is above this again: it must not blink at the limit
MOST, FEWEST = 64, 20
"""Frames compared on either side: with more, differences that nobody could see would become significant."""
SPACING_S = 1.0
"""Seconds between two frames of a stream that count: neighbours are the same picture, not two samples."""
_STREAMS = 64
_FEATURES = tuple(f"channel{c}.{word}" for c in range(3) for word in ("brightness", "contrast"))

Features = tuple[float, ...]
Sample = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class DriftVerdict:
    """Whether inputs drifted (None: cannot be told yet); `p` is the probability of as much by chance alone."""

    drifted: bool | None
    p: float | None = None
    message: str = ""


def features_of(tensor: npt.NDArray[np.float32]) -> Features:
    """Return brightness and contrast of each channel of [1,3,H,W] or [1,H,W,3], in the tensor's units."""
    planes = tensor.reshape(3, -1) if tensor.shape[1] == 3 else tensor.reshape(-1, 3).T
    means, deviations = planes.mean(axis=1, dtype=np.float64), planes.std(axis=1, dtype=np.float64)
    return tuple(float(v) for pair in zip(means, deviations, strict=True) for v in pair)


def statistics_of(frames: Iterable[Features]) -> dict[str, str]:
    """Return the frames' features as a profile keeps them: feature -> its sorted values as text, 64 at most.

    More frames than that are thinned to evenly spaced quantiles.
    """
    table = np.sort(np.array(list(frames), np.float64).reshape(-1, len(_FEATURES)), axis=0)
    if len(table) > MOST:
        table = np.quantile(table, (np.arange(MOST) + 0.5) / MOST, axis=0)
    return {name: " ".join(f"{v:.4f}" for v in column) for name, column in zip(_FEATURES, table.T, strict=True)}


def baseline_of(statistics: Mapping[str, str]) -> tuple[Sample, ...] | None:
    """Return the profile's values per feature, sorted; None where it has none, too few or not all of them."""
    try:
        columns = tuple(np.array([float(v) for v in statistics[name].split()]) for name in _FEATURES)
    except (KeyError, ValueError):
        return None
    whole = all(FEWEST <= len(column) <= MOST and np.isfinite(column).all() for column in columns)
    return tuple(np.sort(column) for column in columns) if whole else None


@dataclass(frozen=True, kw_only=True)
class InputDrift:
    """The live window against one baseline. `frames` are the newest features, `verdict` what stands.

    It is judged anew each time half of the window is new: a look at every frame would find its chance of a false alarm
    in hundreds of looks that are all but the same. Two looks in a row must agree to warn: with one, frames of the
    calibration's own law warned in 1.1 % of windows. `unjudged` counts the frames since the last look.
    """

    baseline: tuple[Sample, ...] | None
    frames: tuple[Features, ...] = ()
    verdict: DriftVerdict = DriftVerdict(drifted=None)
    seen: tuple[tuple[str, float], ...] = ()
    unjudged: int = 0

    def due(self, stream: str, now: float) -> bool:
        """Tell whether a frame of `stream` at `now` (seconds) counts: far enough from the one before."""
        last = dict(self.seen).get(stream)
        return self.baseline is not None and (last is None or not (0.0 <= now - last < SPACING_S))

    def after(self, stream: str, features: Features, now: float) -> InputDrift:
        """Return the state with one more frame."""
        if self.baseline is None:
            return self
        size = len(self.baseline[0])
        frames = (*self.frames, features)[-size:]
        seen = OrderedDict(self.seen)
        seen.pop(stream, None)
        seen[stream] = now
        kept = tuple(seen.items())[-_STREAMS:]
        taken = replace(self, frames=frames, seen=kept, unjudged=self.unjudged + 1)
        if self.verdict.p is not None and taken.unjudged < size // 2:
            return taken
        return replace(taken, verdict=_judge(frames, self.baseline, self.verdict), unjudged=0)


def _judge(frames: Sequence[Features], baseline: tuple[Sample, ...], before: DriftVerdict) -> DriftVerdict:
    if len(frames) < FEWEST:
        return DriftVerdict(drifted=None, message=f"{len(frames)} of {FEWEST} frames")
    live = np.array(frames).T
    found = [two_sample(column, known) for column, known in zip(live, baseline, strict=True)]
    worst = min(range(len(found)), key=lambda i: found[i][1])
    p = min(1.0, len(found) * found[worst][1])
    confirmed = not (p >= LEVEL) and before.p is not None and not (before.p >= LEVEL)
    stands = bool(before.drifted) and not (p >= CLEARS_AT)
    middle, usual = float(np.median(live[worst])), float(np.median(baseline[worst]))
    text = f"{_FEATURES[worst]} is {middle:.2f} in the middle, {usual:.2f} in calibration (p {p:.2g} of {len(frames)})"
    return DriftVerdict(drifted=confirmed or stands, p=p, message=text)


def two_sample(one: Sample, other: Sample) -> tuple[float, float]:
    """Return the Kolmogorov-Smirnov distance of two samples and its two-sided p (asymptotic, Stephens' correction)."""
    a, b = np.sort(one), np.sort(other)
    points = np.concatenate([a, b])
    below_a = np.searchsorted(a, points, side="right") / len(a)
    below_b = np.searchsorted(b, points, side="right") / len(b)
    distance = float(np.abs(below_a - below_b).max())
    root = math.sqrt(len(a) * len(b) / (len(a) + len(b)))
    return distance, _survival((root + 0.12 + 0.11 / root) * distance)


def _survival(x: float) -> float:
    """Return Kolmogorov's limiting probability of a distance beyond x."""
    if x < 0.2:
        return 1.0
    return float(min(1.0, max(0.0, 2.0 * sum((-1) ** (k - 1) * math.exp(-2.0 * k * k * x * x) for k in range(1, 101)))))
