"""What became of a stream's frames."""

from __future__ import annotations

from blurfleet.serving.streaming import Dropped, Summary
from blurfleet_preprocess.metrics import GatewayMetrics
from blurfleet_preprocess.steadying import Steady


class Tally:
    """Counts one stream's frames, for its summary and for the gateway's metrics. Ids grow from 1 without gaps."""

    def __init__(self, metrics: GatewayMetrics) -> None:
        self._metrics = metrics
        self._settled = 0
        self._counts = dict.fromkeys(("answered", "refused", "dropped"), 0)
        self._flicker: dict[str, tuple[float, int]] = {"sent": (0.0, 0), "engine": (0.0, 0)}

    def taken(self, frame_id: int) -> Dropped | None:
        """Return the ids that were replaced since the frame taken before this one, None where there are none."""
        first, self._settled = self._settled + 1, frame_id
        if first == frame_id:
            return None
        self._count("dropped", frame_id - first)
        return first, frame_id - 1

    def answered(self, steady: Steady) -> None:
        """Count an answered frame and how steady its matte was."""
        self._count("answered", 1)
        for matte, value in (("sent", steady.flicker), ("engine", steady.engine_flicker)):
            if value is not None:
                total, count = self._flicker[matte]
                self._flicker[matte] = (total + value, count + 1)
                self._metrics.stream_flicker.labels(matte).observe(value)

    def refused(self) -> None:
        """Count a frame without an answer."""
        self._count("refused", 1)

    def summary(self, stream: str, received: int, seconds: float) -> Summary:
        """Return the stream's summary once its last frame is settled: whatever arrived after it was dropped."""
        last = self.taken(received + 1)
        return Summary(
            stream=stream,
            received=received,
            answered=self._counts["answered"],
            refused=self._counts["refused"],
            dropped=self._counts["dropped"],
            last_dropped=last,
            flicker=self._mean("sent"),
            engine_flicker=self._mean("engine"),
            seconds=round(seconds, 3),
        )

    def _count(self, outcome: str, number: int) -> None:
        self._counts[outcome] += number
        self._metrics.stream_frames.labels(outcome).inc(number)

    def _mean(self, matte: str) -> float | None:
        total, count = self._flicker[matte]
        return total / count if count else None
