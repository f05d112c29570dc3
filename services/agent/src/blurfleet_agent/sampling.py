"""Which live frames are compared with the oracle: a device-time budget, and every frame of a stream in doubt. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

MAX_STREAMS = 64
BURST_S = 2.0  # device time that an idle purse saves up, so that a burst of frames is not all skipped
HOT_SHARE = 0.5  # of device time for all streams in doubt together, above the budget: clients need the rest
CALM_FRAMES = 16  # sound frames after which a stream is sampled by the budget again
COST_SMOOTHING = 0.2
MAX_COST_S = 0.5  # a longer answer waited for a busy device rather than using it; sampling must not end because of that
GAP_SMOOTHING = 1 / 16  # of a stream's gaps and their mean deviation, kept as TCP keeps round-trip times (RFC 6298)
JITTERS = 6.0  # mean deviations added to the mean gap: fewer than 1 in 40 000 random arrivals is later than 2 such
FIRST_PERIOD_S = 1.0  # assumed before the first gap is known


@dataclass(frozen=True, kw_only=True)
class StreamPace:
    """One stream: how far apart its judged frames were (seconds), and its own purse while it is in doubt.

    `hot` is how many more frames are all taken, `saved_s` the purse as it was at `purse_at`.
    """

    last_at: float
    judged_at: float | None = None
    gap_s: float | None = None
    jitter_s: float = 0.0
    hot: int = 0
    saved_s: float = BURST_S
    purse_at: float = 0.0

    @property
    def period_s(self) -> float | None:
        """Return how far apart the stream is sampled, jitter included; None before its second judged frame."""
        return None if self.gap_s is None else self.gap_s + JITTERS * self.jitter_s


@dataclass(frozen=True, kw_only=True)
class Budget:
    """`share` of device time (0 to 1) and at most `hz` samples a second; `cost_s` is what one sample takes.

    `saved_s` is the purse of the streams that are not in doubt: one that is cannot spend it.
    """

    share: float
    hz: float
    cost_s: float = 0.05
    saved_s: float = BURST_S
    at: float | None = None
    last_at: float | None = None
    streams: dict[str, StreamPace] = field(default_factory=dict)


def choose(budget: Budget, stream: str, now: float, *, urgent: bool = False) -> tuple[Budget, bool, float | None]:
    """Return the budget after a frame of `stream` at `now`, whether to sample it, and the stream's sampling period.

    The period is that of the gaps before this frame: a gap must not set the measure that it is judged by. A stream in
    doubt (or an `urgent` frame) is sampled at every frame from a purse of its own, which refills at an equal part of
    `HOT_SHARE`; others are neither slowed by it nor does it end.
    """
    elapsed = 0.0 if budget.at is None else max(0.0, now - budget.at)
    budget = replace(budget, saved_s=min(BURST_S, budget.saved_s + elapsed * budget.share), at=now)
    known = budget.streams.get(stream)
    pace = known or StreamPace(last_at=now, purse_at=now)
    # A sample dearer than all that can be saved up waits for a full purse; else one slow moment would end sampling.
    needed = min(budget.cost_s, BURST_S)
    if urgent or pace.hot > 0:
        saved = _purse(budget, pace, now)
        if saved < needed:
            return budget, False, None
        pace = replace(pace, saved_s=max(-BURST_S, saved - budget.cost_s), purse_at=now)
    else:
        # A clock stepped back leaves `last_at` ahead of now; then a sample is due, not in a day.
        spaced = budget.last_at is None or not (0.0 <= now - budget.last_at < 1.0 / budget.hz - 1e-6)
        if not (spaced and budget.saved_s >= needed):
            return budget, False, None
        budget = replace(budget, saved_s=max(-BURST_S, budget.saved_s - budget.cost_s), last_at=now)
    streams = {**budget.streams, stream: replace(pace, last_at=now)}
    if len(streams) > MAX_STREAMS:
        del streams[min(streams, key=lambda name: streams[name].last_at)]
    return replace(budget, streams=streams), True, pace.period_s


def _purse(budget: Budget, pace: StreamPace, now: float) -> float:
    hot = sum(1 for other in budget.streams.values() if other.hot > 0)
    share = max(HOT_SHARE, budget.share) / max(1, hot)
    return min(BURST_S, pace.saved_s + max(0.0, now - pace.purse_at) * share)


def learn(budget: Budget, stream: str, now: float, *, took_s: float, breached: bool, judged: bool = True) -> Budget:
    """Return the budget after a sample of `now` took `took_s` seconds of device time and breached a rule or not.

    `judged` is false where nothing came of it (no answer of the oracle); the stream's gap goes on then.
    """
    cost = budget.cost_s + COST_SMOOTHING * (min(took_s, MAX_COST_S) - budget.cost_s)
    pace = budget.streams.get(stream)
    if pace is None:
        return replace(budget, cost_s=cost)
    hot = CALM_FRAMES if breached else max(0, pace.hot - 1)
    pace = replace(pace, hot=hot)
    if judged:
        pace = _spaced(pace, now)
    return replace(budget, cost_s=cost, streams={**budget.streams, stream: pace})


def _spaced(pace: StreamPace, now: float) -> StreamPace:
    """Return `pace` with one more gap in its period; it counts for two periods at most, so a pause teaches little."""
    if pace.judged_at is None:
        return replace(pace, judged_at=now)
    gap = min(max(0.0, now - pace.judged_at), 2.0 * max(FIRST_PERIOD_S, pace.period_s or 0.0))
    if pace.gap_s is None:
        return replace(pace, judged_at=now, gap_s=gap)
    jitter = pace.jitter_s + GAP_SMOOTHING * (abs(gap - pace.gap_s) - pace.jitter_s)
    return replace(pace, judged_at=now, gap_s=pace.gap_s + GAP_SMOOTHING * (gap - pace.gap_s), jitter_s=jitter)
