"""How far a candidate came: one visible chain of named checks, the first that speaks is the status. Pure."""

from __future__ import annotations

from collections.abc import Callable

from blurfleet.api.nodeengine import CandidatePhase, CandidateStatus, EngineRef
from blurfleet.reasons import Reason
from blurfleet_agent.decide import shadow_needed
from blurfleet_agent.view import GoldenResult, ModelView

Answer = tuple[CandidatePhase, Reason, str]
Check = Callable[[ModelView, EngineRef], Answer | None]


def judge_candidate(view: ModelView) -> CandidateStatus | None:
    """Return the candidate's status, None where there is no candidate."""
    ref = view.spec.candidate
    if ref is None:
        return None
    answer = next((a for check in CHAIN if (a := check(view, ref)) is not None), None)
    assert answer is not None
    phase, reason, message = answer
    result = view.result(ref, "Primary")
    shadow = view.shadow if shadow_needed(view) and _shadow_is(view, ref) else None
    shown = shadow if shadow is not None and shadow.figures else result
    return CandidateStatus(
        digest=ref.digest,
        set=ref.set,
        attempt=view.spec.attempt,
        phase=phase,
        reason=reason,
        message=message,
        oracle_passed=_oracle_passed(view),
        samples_valid=shadow.valid if shadow is not None else 0,
        samples_required=view.spec.policy.shadow_samples if shadow_needed(view) else 0,
        figures=shown.figures if shown is not None else (),
        evidence=shown.evidence if shown is not None else "",
    )


def _quarantined(view: ModelView, ref: EngineRef) -> Answer | None:
    if ref.digest in view.quarantined:
        return "Refused", Reason.QUARANTINED, f"digest {ref.digest} is quarantined"
    return None


def _problem(view: ModelView, _ref: EngineRef) -> Answer | None:
    return ("Refused", view.problem.reason, view.problem.message) if view.problem is not None else None


def _latched(view: ModelView, ref: EngineRef) -> Answer | None:
    latch = view.latch(ref)
    if latch is None:
        return None
    shadow = view.shadow if _shadow_is(view, ref) else None
    why = shadow.message if shadow is not None else "a new attempt (ops.retry) or another engine clears it"
    return "Failed", Reason(latch.reason), f"tripped on {latch.reason} in attempt {view.spec.attempt!r}: {why}"


def _swap_unproven(view: ModelView, _ref: EngineRef) -> Answer | None:
    if view.swap_proven is False:
        return "Refused", Reason.SWAP_NOT_PROVEN, "a flip under probe traffic failed on this node: no canary here"
    return None


def _not_loaded(view: ModelView, ref: EngineRef) -> Answer | None:
    if view.is_ready(ref):
        return None
    fault = view.faults.get(ref.digest)
    if fault is None:
        return "Staging", Reason.STAGING, "artifact and record are being fetched, checked and loaded"
    if fault.final:
        return "Failed", fault.reason, fault.message
    return "Loading", fault.reason, f"attempt {fault.attempts} failed, trying again: {fault.message}"


def _no_oracle(view: ModelView, _ref: EngineRef) -> Answer | None:
    oracle = view.spec.oracle
    if oracle is None:
        return "Refused", Reason.ORACLE_UNAVAILABLE, "the spec names no FP32 engine of the candidate's set"
    fault = view.faults.get(oracle.digest)
    if view.is_ready(oracle):
        return None
    if fault is not None and fault.final:
        return "Failed", Reason.ORACLE_UNAVAILABLE, f"the set's FP32 engine cannot be loaded: {fault.message}"
    return "Loading", Reason.ORACLE_UNAVAILABLE, "waiting for the set's FP32 engine"


def _oracle_golden(view: ModelView, _ref: EngineRef) -> Answer | None:
    oracle = view.spec.oracle
    result = _result_of_oracle(view)
    if oracle is None or result is None:
        return "Golden", Reason.GOLDEN_PENDING, "golden inference runs on the set's FP32 engine"
    if not result.pictures_fit:
        return "Refused", Reason.CONTRACT_CHANGED, result.message
    if result.verdict == "Fail":
        where = "passes its own golden frames" if view.fallback_ready else "is not proven either"
        text = f"the set's FP32 engine fails its own golden frames here ({result.message}); the standby {where}"
        return "GoldenFailed", Reason.NODE_SUSPECT, text
    return None


def _golden(view: ModelView, ref: EngineRef) -> Answer | None:
    result = view.result(ref, "Primary")
    if result is None:
        return "Golden", Reason.GOLDEN_PENDING, "golden inference runs"
    if not result.pictures_fit:
        return "Refused", Reason.CONTRACT_CHANGED, result.message
    if result.verdict == "Fail":
        return "GoldenFailed", result.reason, result.message
    if result.verdict != "Pass" or not view.passed(view.spec.oracle, "Fallback"):
        return "Golden", result.reason, result.message
    return None


def _no_standby(view: ModelView, _ref: EngineRef) -> Answer | None:
    if view.served is None or view.fallback_ready:
        return None
    return "GoldenPassed", Reason.FALLBACK_NOT_PROVEN, "the standby is not proven, so nothing is promoted"


def _flips_untried(view: ModelView, _ref: EngineRef) -> Answer | None:
    if view.swap_proven is None and view.served is not None:
        return "GoldenPassed", Reason.SWAP_NOT_PROVEN, "a flip under probe traffic is tried first"
    return None


def _shadow(view: ModelView, ref: EngineRef) -> Answer | None:
    if not shadow_needed(view):
        return None
    shadow = view.shadow if _shadow_is(view, ref) else None
    if shadow is None:
        return "Shadowing", Reason.INSUFFICIENT_SAMPLES, "no live frame was shadowed yet"
    if shadow.verdict == "Fail":
        return "Failed", shadow.reason, shadow.message
    return None if shadow.verdict == "Pass" else ("Shadowing", shadow.reason, shadow.message)


def _proven(view: ModelView, _ref: EngineRef) -> Answer | None:
    if shadow_needed(view):
        return "Proven", Reason.SHADOW_PASSED, "passed golden and live frames"
    return "Proven", Reason.GOLDEN_PASSED, "passed golden frames; there is nothing to shadow against"


CHAIN: tuple[Check, ...] = (
    _quarantined,
    _problem,
    _latched,
    _swap_unproven,
    _not_loaded,
    _no_oracle,
    _oracle_golden,
    _golden,
    _no_standby,
    _flips_untried,
    _shadow,
    _proven,
)


def _shadow_is(view: ModelView, ref: EngineRef) -> bool:
    found = view.shadow
    return found is not None and (found.digest, found.attempt) == (ref.digest, view.spec.attempt)


def _result_of_oracle(view: ModelView) -> GoldenResult | None:
    return view.result(view.spec.oracle, "Fallback")


def _oracle_passed(view: ModelView) -> bool | None:
    result = _result_of_oracle(view)
    return None if result is None or result.verdict == "Inconclusive" else result.verdict == "Pass"
