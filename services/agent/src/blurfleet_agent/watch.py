"""What the loop that decides tells the guard, and what the guard tells back: plain messages, nothing shared."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from blurfleet.api.engineset import InputProfile
from blurfleet.api.nodeengine import TripStatus
from blurfleet.quality.drift import DriftVerdict
from blurfleet.quality.state import GuardPolicy, LatchKind
from blurfleet.reasons import Reason
from blurfleet.serving.routing import RoutedEngine
from blurfleet_agent.view import ShadowResult


@dataclass(frozen=True, kw_only=True)
class Contender:
    """An engine compared on live frames with its own set's FP32 engine, `oracle` (its Triton name)."""

    engine: RoutedEngine
    oracle: RoutedEngine


@dataclass(frozen=True, kw_only=True)
class Watch:
    """One model as the guard is to watch it.

    `primary` is what the spec wants served (served, or off and perhaps in Probation), `oracle` is None where its set's
    FP32 engine is not loaded. `fallback_ready` is the standby's latest proof. `profile` is what inputs looked like in
    calibration.
    """

    alias: str
    attempt: str
    policy: GuardPolicy
    policy_name: str
    device_class: str
    primary: RoutedEngine | None
    oracle: RoutedEngine | None
    fallback: RoutedEngine | None
    fallback_ready: bool
    candidate: Contender | None = None
    profile: InputProfile = field(default_factory=InputProfile)


@dataclass(frozen=True, kw_only=True)
class Told:
    """What the guard says of one model: after every action, and at most twice a second otherwise.

    `held` is the reason of a trip that waits for a proven standby, `holding` that of a rule that asks to hold; `stale`
    tells that valid samples stopped (or never began). All three say what stands now, whatever `act` and `reason` say of
    this moment; without an action `reason`, `message` and `page` are those of the gravest of the three. `inputs` tells
    whether live pictures differ from the calibration frames, None where there is no profile.
    """

    alias: str
    digest: str
    attempt: str
    phase: str
    valid: int
    stability: float | None
    trip: TripStatus | None = None
    trip_kind: LatchKind | None = None
    act: str = "None"
    reason: Reason = Reason.WITHIN_LIMITS
    message: str = ""
    page: bool = False
    held: Reason | None = None
    holding: Reason | None = None
    stale: bool = False
    rearm: bool = False
    shadow: ShadowResult | None = None
    stage: Literal["Live", "Shadow"] = "Live"
    inputs: DriftVerdict | None = None
