"""Which live frames are compared with the oracle: a device-time budget, and every frame of a stream in doubt. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

MAX_STREAMS = 64
BURST_S = 2.0  # device time that an idle budget saves up, so that a burst of frames is not all skipped
CALM_FRAMES = 16  # sound frames after which a stream is sampled by the budget again
COST_SMOOTHING = 0.2
MAX_COST_S = 0.5  # a longer answer waited for a busy device rather than using it; sampling must not end because of that


@dataclass(frozen=True, kw_only=True)
class StreamPace:
    """One stream: when it was last sampled, over how many seconds, and how many more frames are all taken."""

    last_at: float
    period_s: float | None = None
    hot: int = 0


@dataclass(frozen=True, kw_only=True)
class Budget:
    """`share` of device time (0 to 1) and at most `hz` samples a second; `cost_s` is what one sample takes."""

    share: float
    hz: float
    cost_s: float = 0.05
    saved_s: float = BURST_S
    at: float | None = None
    last_at: float | None = None
    streams: dict[str, StreamPace] = field(default_factory=dict)


def choose(budget: Budget, stream: str, now: float) -> tuple[Budget, bool, float | None]:
    """Return the budget after a frame of `stream` at `now`, whether to sample it, and the stream's sampling period.

    A stream in doubt is sampled at every frame, at the budget's expense: it may go into debt, others then wait.
    """
    elapsed = 0.0 if budget.at is None else max(0.0, now - budget.at)
    saved = min(BURST_S, budget.saved_s + elapsed * budget.share)
    budget = replace(budget, saved_s=saved, at=now)
    pace = budget.streams.get(stream)
    hot = pace is not None and pace.hot > 0
    spaced = budget.last_at is None or now - budget.last_at >= 1.0 / budget.hz - 1e-6
    # A sample dearer than all that can be saved up waits for a full purse; else one slow moment would end sampling.
    needed = min(budget.cost_s, BURST_S)
    if not hot and not (spaced and saved >= needed):
        return budget, False, None
    period = None if pace is None else max(1e-3, now - pace.last_at)
    taken = StreamPace(last_at=now, period_s=period, hot=pace.hot if pace is not None else 0)
    streams = {**budget.streams, stream: taken}
    if len(streams) > MAX_STREAMS:
        del streams[min(streams, key=lambda name: streams[name].last_at)]
    saved = max(-BURST_S, saved - budget.cost_s)
    return replace(budget, saved_s=saved, last_at=now, streams=streams), True, period


def learn(budget: Budget, stream: str, *, took_s: float, breached: bool) -> Budget:
    """Return the budget after a sample took `took_s` seconds of device time and breached a rule or not."""
    cost = budget.cost_s + COST_SMOOTHING * (min(took_s, MAX_COST_S) - budget.cost_s)
    pace = budget.streams.get(stream)
    if pace is None:
        return replace(budget, cost_s=cost)
    hot = CALM_FRAMES if breached else max(0, pace.hot - 1)
    return replace(budget, cost_s=cost, streams={**budget.streams, stream: replace(pace, hot=hot)})
