"""Live inputs of one model against its set's calibration profile: a warning and a metric, never a swap."""

from __future__ import annotations

from blurfleet.api.engineset import InputProfile
from blurfleet.quality.drift import DriftVerdict, InputDrift, baseline_of, features_of
from blurfleet.serving.framecodec import FrameSample
from blurfleet_agent.exporter import Metrics


class InputWatch:
    """Owned by the guard's thread. `verdict` is what stands; another profile starts afresh."""

    def __init__(self, alias: str, profile: InputProfile, metrics: Metrics) -> None:
        self._alias = alias
        self._metrics = metrics
        self._profile = profile
        self._drift = InputDrift(baseline=baseline_of(profile.statistics))

    @property
    def verdict(self) -> DriftVerdict | None:
        """Return what stands, None where the set has no profile to compare with."""
        return self._drift.verdict if self._drift.baseline is not None else None

    def follow(self, profile: InputProfile) -> None:
        """Compare with `profile` from now on."""
        if profile.statistics != self._profile.statistics:
            self._drift = InputDrift(baseline=baseline_of(profile.statistics))
            self._metrics.inputs_unknown(self._alias)
        self._profile = profile

    def see(self, frame: FrameSample, now: float) -> None:
        """Take one sampled frame into the window, unless its stream was seen a moment ago."""
        if not self._drift.due(frame.stream, now):
            return
        self._drift = self._drift.after(frame.stream, features_of(frame.tensor), now)
        verdict = self._drift.verdict
        if verdict.p is not None:
            self._metrics.input_drift(self._alias, drifted=bool(verdict.drifted), p=verdict.p)
