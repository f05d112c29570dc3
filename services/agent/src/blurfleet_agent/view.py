"""What one reconcile looks at: one model's wish and everything observed about it, frozen at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from blurfleet.api.nodeengine import EngineRef, Figure, NodeModel
from blurfleet.identity import engine_name
from blurfleet.reasons import Reason
from blurfleet_agent.journal_records import AliasState, Latch
from blurfleet_agent.recovery import Served

Verdict = Literal["Pass", "Fail", "Inconclusive"]
Role = Literal["Primary", "Fallback"]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Why an engine is not ready. `final` means that only another spec helps; else it is tried again at `retry_at`."""

    reason: Reason
    message: str
    attempts: int = 1
    retry_at: float = 0.0
    final: bool = False


@dataclass(frozen=True, kw_only=True)
class GoldenResult:
    """One engine on golden frames at `at` (by the loop's steady clock).

    `pictures_fit` tells whether the golden *pictures* still make the golden tensors.
    `change` is how far another set's FP32 answers these frames from what this set's answers say; None: not asked.
    """

    verdict: Verdict
    reason: Reason
    message: str
    at: float
    figures: tuple[Figure, ...] = ()
    pictures_fit: bool = True
    evidence: str = ""
    change: float | None = None


@dataclass(frozen=True, kw_only=True)
class GoldenAnswer:
    """What one golden run says, by the roles it was judged in."""

    results: Mapping[Role, GoldenResult]


@dataclass(frozen=True, kw_only=True)
class ShadowResult:
    """A candidate on live frames so far."""

    digest: str
    attempt: str
    verdict: Verdict
    reason: Reason
    message: str
    valid: int
    figures: tuple[Figure, ...] = ()
    evidence: str = ""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Why a model's spec cannot be acted on."""

    reason: Reason
    message: str


@dataclass(frozen=True, kw_only=True)
class ModelView:
    """One model at `now`, on a clock that is never set: for timers. `wall` (seconds since 1970) is for stamps alone.

    With `problem` and `last_good` the wished spec cannot be acted on and `spec` is the last one that could: it moves
    nothing, but what serves is guarded and its standby proven by it.
    `ready` holds the names of READY engines, `golden` results by (digest, set, role), `served_ref` the engine behind
    `served` where it is known, `last_wanted` when an engine was last referenced, `swap_proven` None until flips were
    tried on this Triton, `faceless` the engine that the alias's tensors are to be learnt from while its record is not
    on the node (fetched from `face_at` on).
    """

    now: float
    wall: float = 0.0
    spec: NodeModel
    problem: Problem | None = None
    last_good: bool = False
    quarantined: frozenset[str] = frozenset()
    ready: frozenset[str] = frozenset()
    served: Served | None = None
    served_ref: EngineRef | None = None
    drained: bool = False
    journal: AliasState = field(default_factory=AliasState)
    faults: Mapping[str, Fault] = field(default_factory=dict)
    golden: Mapping[tuple[str, str, Role], GoldenResult] = field(default_factory=dict)
    shadow: ShadowResult | None = None
    reproven: bool = False
    swap_proven: bool | None = None
    prove_at: float = 0.0
    memory_low: bool = False
    last_wanted: Mapping[str, float] = field(default_factory=dict)
    faceless: EngineRef | None = None
    face_at: float = 0.0
    settle_at: float = 0.0
    standby_every: float = 60.0
    unload_after: float = 30.0

    @property
    def lost(self) -> bool:
        """Tell whether nothing is known that can be acted on."""
        return self.problem is not None and not self.last_good

    def name_of(self, ref: EngineRef) -> str:
        """Return the Triton name of `ref` for this model."""
        return engine_name(self.spec.name, ref.digest)

    def is_ready(self, ref: EngineRef | None) -> bool:
        """Tell whether `ref` is loaded and READY."""
        return ref is not None and self.name_of(ref) in self.ready

    def result(self, ref: EngineRef | None, role: Role) -> GoldenResult | None:
        """Return how `ref` did on its own set's golden frames in `role`, None where that was not tried."""
        return None if ref is None else self.golden.get((ref.digest, ref.set, role))

    def passed(self, ref: EngineRef | None, role: Role) -> bool:
        """Tell whether `ref` passed golden inference in `role`. A pass as Primary is stricter, so it counts as both."""
        result = self.result(ref, role)
        if role == "Fallback" and result is None:
            result = self.result(ref, "Primary")
        return result is not None and result.verdict == "Pass" and result.pictures_fit

    def latch(self, ref: EngineRef) -> Latch | None:
        """Return the latch that holds `ref` back under the spec's attempt."""
        return self.journal.latch(ref.digest, self.spec.attempt)

    def blocked(self, ref: EngineRef) -> Problem | None:
        """Return why `ref` must not be served, None where nothing forbids it."""
        if ref.digest in self.quarantined:
            return Problem(reason=Reason.QUARANTINED, message=f"digest {ref.digest} is quarantined")
        latch = self.latch(ref)
        if latch is not None:
            return Problem(reason=Reason.LATCHED, message=f"tripped on {latch.reason} in this attempt")
        return None

    def usable(self, ref: EngineRef | None, role: Role) -> bool:
        """Tell whether `ref` may be served now: nothing forbids it, it is READY and golden inference passed."""
        return ref is not None and self.blocked(ref) is None and self.is_ready(ref) and self.passed(ref, role)

    @property
    def fallback_ready(self) -> bool:
        """Tell whether the standby is proven: loaded, golden passed, not quarantined."""
        return self.usable(self.spec.fallback, "Fallback")
