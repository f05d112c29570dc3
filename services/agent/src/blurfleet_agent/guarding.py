"""One model under guard: live frames in, swaps and messages out. Owned by the guard's thread alone."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import structlog

from blurfleet.api.nodeengine import Figure
from blurfleet.check import finite_json
from blurfleet.errors import BlurfleetError
from blurfleet.quality import guard
from blurfleet.quality.shadow import assess
from blurfleet.quality.state import Act, GuardAction, GuardState, Latch, LatchKind, Phase, sentinels_only
from blurfleet.reasons import Reason
from blurfleet.serving.framecodec import FrameKind, FrameSample
from blurfleet_agent.exporter import Metrics
from blurfleet_agent.frame_figures import Compared, Infer, compare
from blurfleet_agent.guard_spans import GuardSpans
from blurfleet_agent.input_watch import InputWatch
from blurfleet_agent.journal_records import AliasState
from blurfleet_agent.sampling import Budget, choose, learn
from blurfleet_agent.swap import Swapper
from blurfleet_agent.trips import TripDesk, TripNote
from blurfleet_agent.view import ShadowResult
from blurfleet_agent.watch import Contender, Told, Watch

Tell = Callable[[Told], None]
KEPT_BYTES = 32 << 20  # of frames kept for evidence, live and shadow each: 16 of 320x320, one of 1024x1024


@dataclass(frozen=True, kw_only=True)
class Look:
    """What one frame cost (device seconds), and whether its stream is in doubt after it."""

    took_s: float
    doubt: bool


class Guarding:
    """Guards what one alias serves, shadows its candidate, and re-proves a primary that was taken off.

    `now` is everywhere a clock that is never set (`steady_clock`); `wall` stamps what people and later processes read.
    """

    def __init__(
        self,
        watch: Watch,
        *,
        swapper: Swapper,
        infer: Infer,
        desk: TripDesk,
        metrics: Metrics,
        tell: Tell,
        kept_frames: int,
        now: float,
        wall: Callable[[], float] = time.time,
        spans: GuardSpans | None = None,
    ) -> None:
        self.watch = watch
        self._swapper = swapper
        self._infer = infer
        self._desk = desk
        self._metrics = metrics
        self._tell = tell
        self._log = structlog.get_logger("blurfleet.guard").bind(model=watch.alias)
        self._wall = wall
        self._spans = spans or GuardSpans()
        self._judged = as_judged(watch)
        self._live = _restored(watch, swapper.journal_of(watch.alias), now, wall())
        self._shadow = GuardState()
        self._live_frames: deque[Compared] = deque(maxlen=kept_frames)
        self._shadow_frames: deque[Compared] = deque(maxlen=kept_frames)
        self._shadow_told = ""
        self._told_at = 0.0
        self._inputs = InputWatch(watch.alias, watch.profile, metrics)

    def follow(self, watch: Watch, now: float) -> None:
        """Take over what is to be watched from now on; another digest or attempt starts afresh."""
        rules, own_rules = self.watch.policy.rules, self._judged.policy.rules
        self.watch, self._judged = watch, as_judged(watch)
        self._inputs.follow(watch.profile)
        if self._judged.policy.rules != own_rules:
            self._live = guard.rebind(self._live)
            self._live_frames.clear()
        if watch.policy.rules != rules:
            self._shadow = guard.rebind(self._shadow)
            self._shadow_frames.clear()
        digest = watch.primary.digest if watch.primary is not None else ""
        if (self._live.digest, self._live.attempt) != (digest, watch.attempt):
            self._live = guard.begin(digest, watch.attempt, now, self._live)
            self._live_frames.clear()
        lifted = self._swapper.journal_of(watch.alias).latch(digest, watch.attempt) is None
        served = self._swapper.served(watch.alias)
        back = lifted and served is not None and served.role == "Primary" and served.engine.digest == digest
        if self._live.phase in (Phase.SWAPPED, Phase.PROBATION) and back:
            self._live = replace(self._live, phase=Phase.MONITOR, latch=None, streams=(), begun_at=now)
        contender = watch.candidate.engine.digest if watch.candidate is not None else ""
        if (self._shadow.digest, self._shadow.attempt) != (contender, watch.attempt):
            self._shadow = guard.begin(contender, watch.attempt, now)
            self._shadow_frames.clear()
            self._shadow_told = ""

    def frame(self, frame: FrameSample, budget: Budget, now: float) -> Budget:
        """Judge one frame as far as the budget goes; return the budget after it."""
        served = self._swapper.served(self.watch.alias)
        if served is None:
            return budget
        current = (frame.digest, frame.epoch) == (served.engine.digest, served.epoch)
        event = current and frame.kind is not FrameKind.SAMPLE
        # A withheld NaN costs no oracle; all else that the gateway points at is looked at as far as its stream's purse
        # goes: scenes that are empty for minutes would otherwise take the whole device.
        proof = event and frame.reason == Reason.NON_FINITE_OUTPUT
        stream = f"{self.watch.alias}/{frame.stream}"
        budget, taken, period = choose(budget, stream, now, urgent=event)
        if not (taken or proof):
            return budget
        self._inputs.see(frame, now)
        seen = []
        if current:
            seen.append(self._guard(frame, served.role, period, now))
        if self.watch.candidate is not None and frame.kind is FrameKind.SAMPLE:
            seen.append(self._contend(self.watch.candidate, frame, period, now))
        looks = [look for look in seen if look is not None]
        return learn(
            budget,
            stream,
            now,
            took_s=sum(look.took_s for look in looks),
            breached=any(look.doubt for look in looks),
            judged=bool(looks),
        )

    def tick(self, now: float) -> None:
        """Let time pass: held trips, Probation due, silence, and a word to the loop now and then."""
        if not self._guarded():
            self._live = guard.rest(self._live, now)
        before = self._live
        self._live, action = guard.tick(before, self._judged.policy, now, fallback_ready=self._may_swap())
        if self._live.phase is Phase.PROBATION and before.phase is not Phase.PROBATION:
            self._live_frames.clear()  # evidence of what comes must begin where Probation did
        self._act(action, now, before)
        if not (0.0 <= now - self._told_at < 0.5):
            self._say(now)

    def _guarded(self) -> bool:
        """Tell whether the primary is served, or off and waits for Probation; else no sample of it can come."""
        if self.watch.primary is None:
            return False
        served = self._swapper.served(self.watch.alias)
        on = served is not None and served.engine.digest == self.watch.primary.digest
        return on or self._live.phase in (Phase.SWAPPED, Phase.PROBATION)

    def _may_swap(self) -> bool:
        return self.watch.fallback is not None and self.watch.fallback_ready

    def _guard(self, frame: FrameSample, role: str, period: float | None, now: float) -> Look | None:
        watch = self.watch
        if watch.primary is None:
            return None
        probation = role == "Fallback" and self._live.phase is Phase.PROBATION
        if role == "Fallback" and not probation:
            return None
        if not probation and frame.digest != watch.primary.digest:
            return None
        oracle = watch.oracle if watch.oracle is not None and watch.oracle.digest != watch.primary.digest else None
        try:
            found = compare(
                frame,
                digest=watch.primary.digest,
                engine=watch.primary.engine if probation else None,
                oracle=oracle.engine if oracle is not None else None,
                infer=self._infer,
                policy=self._judged.policy,
                period_s=period,
                now=now,
                before=self._live,
            )
        except BlurfleetError as error:
            self.log().warning("frame not judged", reason=error.reason, error=error.message)
            return None
        keep(self._live_frames, found)
        before = self._live
        self._live, action = guard.step(before, found.sample, self._judged.policy, now, fallback_ready=self._may_swap())
        self._count(found, action, "Live")
        self._act(action, now, before)
        return Look(took_s=found.took_s, doubt=action.doubt)

    def _contend(self, candidate: Contender, frame: FrameSample, period: float | None, now: float) -> Look | None:
        if self._shadow_told == "Fail":
            return None
        try:
            found = compare(
                frame,
                digest=candidate.engine.digest,
                engine=candidate.engine.engine,
                oracle=candidate.oracle.engine,
                infer=self._infer,
                policy=self.watch.policy,
                period_s=period,
                now=now,
                before=self._shadow,
            )
        except BlurfleetError as error:
            self.log().warning("frame not shadowed", reason=error.reason, error=error.message)
            return None
        keep(self._shadow_frames, found)
        # A candidate serves nobody, so there is nothing to swap: a trip is kept as held and judged below.
        self._shadow, action = guard.step(self._shadow, found.sample, self.watch.policy, now, fallback_ready=False)
        self._count(found, action, "Shadow")
        self._judge_shadow(action, now)
        return Look(took_s=found.took_s, doubt=action.doubt)

    def _judge_shadow(self, action: GuardAction, now: float) -> None:
        verdict = assess(self._shadow, self.watch.policy, now)
        failed_now = verdict.verdict.value == "Fail" and self._shadow_told != "Fail"
        if verdict.verdict.value == self._shadow_told and verdict.verdict.value != "Inconclusive":
            return
        self._shadow_told = verdict.verdict.value
        note = None
        if failed_now and self._shadow.held is not None:
            note = self._desk.shadow(self.watch, self._shadow.held, tuple(self._shadow_frames), self._wall())
            self._desk.write(note, self._infer)
        trip = note.trip if note is not None else None
        self._tell(
            replace(
                self._summary(action),
                trip=trip,
                stage="Shadow",
                shadow=ShadowResult(
                    digest=self._shadow.digest,
                    attempt=self._shadow.attempt,
                    verdict=verdict.verdict.value,
                    reason=verdict.reason,
                    message=verdict.message,
                    valid=verdict.samples_valid,
                    figures=shown(self._shadow_frames, self._shadow),
                    evidence=trip.evidence if trip is not None else "",
                ),
            )
        )

    def _act(self, action: GuardAction, now: float, before: GuardState) -> None:
        if action.act is Act.NONE:
            return
        note = self._swap(action, before) if action.act is Act.SWAP else self._relatched(action)
        self.log().info("guard", act=action.act, reason=action.reason, message=action.message, digest=self._live.digest)
        trip = note.trip if note is not None else None
        self._told_at = now
        self._tell(replace(self._summary(action), trip=trip, trip_kind=action.latch, rearm=action.act is Act.REARM))
        if note is not None:
            self._desk.write(note, self._infer)  # the store hears of the trip first: others may have to act on it

    def _swap(self, action: GuardAction, before: GuardState) -> TripNote | None:
        frames = tuple(self._live_frames)
        try:
            return self._desk.live(self._judged, action, frames, self._wall())
        except BlurfleetError as error:
            # Nothing moved; the trip is held and every tick tries again.
            self.log().error("swap failed", reason=error.reason, error=error.message)
            self._live = replace(before, held=action.trip, phase=Phase.ALERT)
            return None

    def _relatched(self, action: GuardAction) -> TripNote | None:
        """Write down that the engine stays off for good; drift may still be re-proven, so a restart may forget it."""
        if action.trip is None or action.latch in (None, LatchKind.DRIFT):
            return None
        return self._desk.relatched(self._judged, action.trip, tuple(self._live_frames), self._wall())

    def log(self) -> Any:
        """Return a logger that names the model and its network."""
        face = self._swapper.face(self.watch.alias)
        return self._log.bind(model_id=face.model_id if face is not None else "")

    def _say(self, now: float) -> None:
        self._told_at = now
        self._metrics.stability(self.watch.alias, self._live.stability)
        self._tell(self._summary(guard.standing(self._live, self._judged.policy)))

    def _summary(self, action: GuardAction) -> Told:
        return Told(
            alias=self.watch.alias,
            digest=self._live.digest,
            attempt=self._live.attempt,
            phase=self._live.phase,
            valid=self._live.counters.valid,
            stability=self._live.stability,
            act=action.act,
            reason=action.reason,
            message=action.message,
            page=action.page,
            held=self._live.held.reason if self._live.held is not None else None,
            holding=guard.holding_reason(self._live, self._judged.policy),
            stale=self._live.stale,
            inputs=self._inputs.verdict,
        )

    def _count(self, found: Compared, action: GuardAction, source: str) -> None:
        verdict = "Fail" if action.breaches or action.trip else "Pass" if found.sample.valid else "Inconclusive"
        figures = {str(name): value for name, value in found.sample.figures.items()}
        self._metrics.sample(
            self.watch.alias,
            source=source,
            verdict=verdict,
            max_abs=figures.get("MaxAbsError"),
            deer=figures.get("DEER"),
            now=self._wall(),
            figures=figures,
        )
        self._spans.verdict(
            found,
            {
                "blurfleet.model": self.watch.alias,
                "blurfleet.source": source,
                "blurfleet.verdict": verdict,
                "blurfleet.reason": action.reason.value,
            },
        )


def as_judged(watch: Watch) -> Watch:
    """Return `watch` with the rules that its primary can be judged by: its own oracle has sentinels and no drift."""
    primary, oracle = watch.primary, watch.oracle
    if primary is None or oracle is None or oracle.digest != primary.digest:
        return watch
    return replace(watch, policy=sentinels_only(watch.policy))


def keep(frames: deque[Compared], new: Compared, limit_bytes: int = KEPT_BYTES) -> None:
    """Append `new`, and drop the oldest while the arrays hold more than `limit_bytes`; the newest always stays.

    Nothing is lost to a verdict: each frame carries the guard's state before it.
    """
    frames.append(new)
    held = sum(frame.nbytes for frame in frames)
    while len(frames) > 1 and held > limit_bytes:
        held -= frames.popleft().nbytes


def shown(frames: deque[Compared], state: GuardState) -> tuple[Figure, ...]:
    """Return the last frame's figures as status shows them."""
    if not frames:
        return ()
    trip = state.held
    return tuple(
        Figure(
            metric=metric.value,
            value=str(finite_json(value)),
            limit=f"{trip.limit:g}" if trip is not None and trip.metric is metric else "",
            verdict="Fail" if trip is not None and trip.metric is metric else "Pass",
            samples=state.counters.valid,
        )
        for metric, value in frames[-1].sample.figures.items()
        if value is not None
    )


def _restored(watch: Watch, journal: AliasState, now: float, wall: float) -> GuardState:
    """Return the guard's state at a start: windows are empty, but a latch of the journal holds, its back-off anew.

    The journal's times are the wall's; one that is not yet (the clock was set back) counts as this moment.
    """
    digest = watch.primary.digest if watch.primary is not None else ""
    state = replace(
        guard.begin(digest, watch.attempt, now), swaps_at=tuple(now - max(0.0, wall - at) for at in journal.swaps)
    )
    latch = journal.latch(digest, watch.attempt)
    if latch is None:
        return state
    may = watch.policy.probation_enabled and not latch.sentinel
    held = Latch(
        kind=LatchKind.DRIFT if may else LatchKind.SENTINEL,
        reason=Reason(latch.reason),
        at=now - max(0.0, wall - latch.at),
        probation_at=now + watch.policy.back_off_s if may else None,
    )
    return replace(state, phase=Phase.SWAPPED, latch=held)
