"""NodeEngineStatus from what is observed. Pure: the clock comes in, conditions keep the time of their last flip."""

from __future__ import annotations

from dataclasses import dataclass

from blurfleet.api.meta import Condition, ConditionStatus, condition, is_true, set_condition, timestamp
from blurfleet.api.nodeengine import (
    CandidateStatus,
    ModelStatus,
    NodeEngineStatus,
    NodeFacts,
    Serving,
)
from blurfleet.identity import digest12
from blurfleet.reasons import Reason
from blurfleet_agent.runtime import Runtime
from blurfleet_agent.view import ModelView, Problem
from blurfleet_agent.watch import Told

# Beyond this a person sees it: the default policies swap on as much between an engine and its own oracle.
SEMANTIC_LIMIT = 0.05
DETAIL_EVERY_S = 1.0  # counts and messages move with every frame; the store need not

Fact = tuple[str, ConditionStatus, Reason, str]


@dataclass(frozen=True, kw_only=True)
class NodeHealth:
    """What holds for the whole node: errors are None, texts empty where all is well."""

    store: Problem | None
    triton: Problem | None
    journal_synced: bool
    journal_cut: str
    evidence_lost: str
    simulated: bool
    guard: str = ""
    runtime: Runtime | None = None


def model_status(
    view: ModelView, candidate: CandidateStatus | None, told: Told | None, health: NodeHealth, old: ModelStatus | None
) -> ModelStatus:
    """Return one model's status, conditions carried over from `old`."""
    conditions = old.conditions if old is not None else ()
    for kind, status, reason, message in (
        *_facts(view, told, health),
        *_node_suspect(view),
        *_semantic_change(view),
        *_candidate_loaded(view),
        _input_drift(told),
    ):
        new = Condition(type=kind, status=status, reason=reason, message=message[:2048])
        conditions = set_condition(conditions, new, view.wall)
    served = view.served
    serving = None
    if served is not None:
        serving = Serving(
            digest=served.engine.digest,
            engine=served.engine.engine,
            set=served.engine.set,
            role=served.role,
            precision=served.engine.precision,
            epoch=served.epoch,
        )
    return ModelStatus(
        name=view.spec.name,
        serving=serving,
        guard=told.phase if told is not None else "Idle",
        candidate=candidate,
        last_trip=view.journal.last_trip,
        trips=view.journal.trips,
        samples_valid=told.valid if told is not None else 0,
        conditions=conditions,
    )


def _facts(view: ModelView, told: Told | None, health: NodeHealth) -> list[Fact]:
    heard = _about(view, told)
    return [
        _ready(view, health),
        _active(view, heard),
        _conclusive(view, heard),
        _fallback(view),
        _armed(view, health),
        _swap_proven(view),
    ]


def _about(view: ModelView, told: Told | None) -> Told | None:
    """Return what the guard says if it is about what serves now in this attempt: an older word says nothing of it."""
    served = view.served
    if told is None or served is None or told.attempt != view.spec.attempt:
        return None
    return told if told.digest == served.primary.digest else None


def _ready(view: ModelView, health: NodeHealth) -> Fact:
    served = view.served
    if health.triton is not None:
        return "Ready", "False", health.triton.reason, health.triton.message
    if view.problem is not None:
        return "Ready", "False", view.problem.reason, view.problem.message
    if served is None:
        why = _why_not_served(view)
        return "Ready", "False", why.reason, why.message
    if served.engine.engine not in view.ready:
        return "Ready", "False", Reason.SERVER_NOT_READY, f"{served.engine.engine} is not READY"
    if not served.settled:
        return "Ready", "False", Reason.ALIAS_STALE, "gateways follow the routing file, the alias is behind"
    if view.spec.drained:
        return "Ready", "False", Reason.NODE_SUSPECT, "drained: FP32 fails golden frames here, other nodes answer"
    return "Ready", "True", Reason.SERVING, f"{served.engine.engine} answers at epoch {served.epoch}"


def _why_not_served(view: ModelView) -> Problem:
    primary = view.spec.primary
    if primary is None:
        return Problem(reason=Reason.NOTHING_DESIRED, message="no engine is to be served yet")
    fault, result = view.faults.get(primary.digest), view.result(primary, "Primary")
    if fault is not None:
        return Problem(reason=fault.reason, message=fault.message)
    if result is not None and result.verdict != "Pass":
        return Problem(reason=result.reason, message=result.message)
    return view.blocked(primary) or Problem(reason=Reason.STAGING, message="the primary is being staged and checked")


def _active(view: ModelView, told: Told | None) -> Fact:
    served = view.served
    if served is None:
        return "ActiveHealthy", "Unknown", Reason.NOTHING_DESIRED, "nothing is served"
    if served.role == "Fallback":
        return "ActiveHealthy", "True", Reason.SERVING, "the FP32 standby serves"
    if told is not None and told.held is not None:
        message = f"tripped on {told.held}; the standby is not proven, so the engine stays: {told.message}"
        return "ActiveHealthy", "False", Reason.FALLBACK_NOT_PROVEN, message
    if told is not None and told.holding is not None:
        return "ActiveHealthy", "Unknown", told.holding, told.message
    if told is not None and told.stale:
        return "ActiveHealthy", "Unknown", _silence(told), told.message
    if told is not None and told.valid > 0:
        return "ActiveHealthy", "True", Reason.WITHIN_LIMITS, f"{told.phase}"
    return "ActiveHealthy", "Unknown", Reason.NO_DATA, "no live frame was judged yet"


def _silence(told: Told) -> Reason:
    return Reason.STREAM_STOPPED if told.valid > 0 else Reason.NO_DATA


def _conclusive(view: ModelView, told: Told | None) -> Fact:
    """Tell whether live frames say something of what serves: want of data must not pass for health."""
    kind, served = "AnalysisConclusive", view.served
    if served is None:
        return kind, "Unknown", Reason.NOTHING_DESIRED, "nothing is served"
    if served.engine.precision == "FP32":
        return kind, "True", Reason.WITHIN_LIMITS, "an FP32 engine serves: it is its own oracle, sentinels watch it"
    if view.spec.policy.shadow_samples == 0 or not any(r.source == "Live" for r in view.spec.policy.metrics):
        return kind, "True", Reason.ACCEPTED, "the policy asks for no live samples"
    if told is not None and told.held is not None:
        return kind, "False", Reason.FALLBACK_NOT_PROVEN, f"tripped on {told.held}, but there is no proven standby"
    if told is not None and told.holding is not None:
        return kind, "False", told.holding, told.message
    if told is not None and told.stale:
        return kind, "False", _silence(told), told.message
    if told is None or told.valid == 0:
        return kind, "Unknown", Reason.INSUFFICIENT_SAMPLES, "no live frame of this engine was judged yet"
    return kind, "True", Reason.WITHIN_LIMITS, "live frames are judged and within limits"


def _fallback(view: ModelView) -> Fact:
    ref = view.spec.fallback
    if ref is None:
        return "FallbackReady", "False", Reason.NOTHING_DESIRED, "the spec names no fallback"
    if view.fallback_ready:
        result = view.result(ref, "Fallback")
        seen = f" at {timestamp(view.wall - (view.now - result.at))}" if result is not None else ""
        return "FallbackReady", "True", Reason.GOLDEN_PASSED, f"golden inference passed{seen}"
    fault, result = view.faults.get(ref.digest), view.result(ref, "Fallback")
    if fault is not None:
        return "FallbackReady", "False", fault.reason, fault.message
    if result is not None and result.verdict != "Pass":
        return "FallbackReady", "False", Reason.FALLBACK_NOT_PROVEN, f"{result.reason}: {result.message}"
    return "FallbackReady", "Unknown", Reason.GOLDEN_PENDING, "the standby is being loaded and proven"


def _armed(view: ModelView, health: NodeHealth) -> Fact:
    served = view.served
    if served is None:
        return "Armed", "False", Reason.NOTHING_DESIRED, "nothing is served"
    if health.guard:
        return "Armed", "False", Reason.GUARD_STOPPED, health.guard
    if served.role == "Fallback":
        why = view.blocked(view.spec.primary) if view.spec.primary is not None else None
        return "Armed", "False", why.reason if why else Reason.SWAPPED, why.message if why else "the standby serves"
    if not view.fallback_ready:
        return "Armed", "False", Reason.FALLBACK_NOT_PROVEN, "there is no proven standby to swap to"
    if view.problem is not None and view.lost:
        return "Armed", "False", view.problem.reason, view.problem.message
    if view.problem is not None:
        return "Armed", "True", Reason.SERVING, "a breach swaps to the standby, by the last spec that can be acted on"
    return "Armed", "True", Reason.SERVING, "a breach swaps to the standby"


def _swap_proven(view: ModelView) -> Fact:
    if view.swap_proven is None:
        return "SwapProven", "Unknown", Reason.SWAP_NOT_PROVEN, "no flip was tried under traffic yet"
    if view.swap_proven:
        return "SwapProven", "True", Reason.ACCEPTED, "flips under probe traffic lost and mixed nothing"
    return "SwapProven", "False", Reason.SWAP_NOT_PROVEN, "a flip under probe traffic failed; no canary on this node"


def _node_suspect(view: ModelView) -> list[Fact]:
    result = view.result(view.spec.oracle, "Fallback") if view.spec.candidate is not None else None
    if result is None:
        return [("NodeSuspect", "False", Reason.GOLDEN_PENDING, "no FP32 engine failed golden frames")]
    if result.verdict == "Fail":
        return [("NodeSuspect", "True", Reason.NODE_SUSPECT, f"FP32 fails golden frames: {result.message}")]
    return [("NodeSuspect", "False", result.reason, result.message)]


def _semantic_change(view: ModelView) -> list[Fact]:
    """Tell how far a new set's FP32 is from the known-good one's; said of a candidate, and kept once it serves."""
    kind, old, new = "SemanticChange", view.spec.fallback, view.spec.oracle
    if view.spec.candidate is None or old is None or new is None:
        return []
    if old.digest == new.digest:
        return [(kind, "False", Reason.WITHIN_LIMITS, f"{new.set} and {old.set} have the same FP32 engine")]
    result = view.result(new, "Fallback")
    if result is None or result.change is None:
        return [(kind, "Unknown", Reason.GOLDEN_PENDING, f"the FP32 of {new.set} was not compared with {old.set}")]
    words = f"on golden frames the FP32 of {new.set} is up to {result.change:.4f} from that of {old.set}"
    if not (result.change <= SEMANTIC_LIMIT):
        return [(kind, "True", Reason.SEMANTIC_CHANGE, f"{words}: pictures will look different; no engine is at fault")]
    return [(kind, "False", Reason.WITHIN_LIMITS, words)]


def _input_drift(told: Told | None) -> Fact:
    """Tell whether live pictures differ from the calibration frames: a warning, which says nothing of the engine."""
    kind, found = "InputDrift", told.inputs if told is not None else None
    if found is None:
        return kind, "Unknown", Reason.NO_DATA, "nothing was compared with calibration frames yet, or the set has none"
    if found.drifted is None:
        return kind, "Unknown", Reason.INSUFFICIENT_SAMPLES, found.message or "no live frame was looked at yet"
    if found.drifted:
        return kind, "True", Reason.INPUT_DRIFT, f"{found.message}: the pictures changed, no engine is at fault"
    return kind, "False", Reason.WITHIN_LIMITS, found.message


def _candidate_loaded(view: ModelView) -> list[Fact]:
    ref = view.spec.candidate
    if ref is None:
        return [("CandidateLoaded", "False", Reason.NOTHING_DESIRED, "there is no candidate")]
    if view.is_ready(ref):
        return [("CandidateLoaded", "True", Reason.LOADED, view.name_of(ref))]
    fault = view.faults.get(ref.digest)
    if fault is None:
        return [("CandidateLoaded", "Unknown", Reason.STAGING, "being staged and loaded")]
    return [("CandidateLoaded", "False", fault.reason, fault.message)]


def node_status(
    models: tuple[ModelStatus, ...],
    health: NodeHealth,
    facts: NodeFacts,
    generation: int,
    old: NodeEngineStatus,
    now: float,
) -> NodeEngineStatus:
    """Return the node's status with printer columns from its first model."""
    conditions = old.conditions
    for kind, status, reason, message in _node_facts(health):
        new = Condition(type=kind, status=status, reason=reason, message=message[:2048], observed_generation=generation)
        conditions = set_condition(conditions, new, now)
    first = models[0] if models else None
    serving = first.serving if first is not None else None
    fallback = condition(first.conditions, "FallbackReady") if first is not None else None
    return NodeEngineStatus(
        observed_generation=generation,
        simulated=health.simulated,
        heartbeat=timestamp(now),
        facts=facts,
        models=models,
        conditions=conditions,
        active=f"{serving.set or serving.engine}@{digest12(serving.digest)}" if serving is not None else "",
        precision=serving.precision if serving is not None else "",
        fallback="Ready" if fallback is not None and fallback.status == "True" else "NotReady",
        armed="Yes" if first is not None and is_true(first.conditions, "Armed") else "No",
        last_swap=first.last_trip.at if first is not None and first.last_trip is not None else "",
        connected="Yes" if health.store is None else "No",
    )


def _node_facts(health: NodeHealth) -> list[Fact]:
    def of(kind: str, problem: Problem | None, fine: str) -> Fact:
        if problem is None:
            return kind, "True", Reason.ACCEPTED, fine
        return kind, "False", problem.reason, problem.message

    unsynced = Problem(reason=Reason.JOURNAL_UNSYNCED, message="the journal is not on disk; swaps go on")
    facts = [
        of("Connected", health.store, "the store answers"),
        of("TritonReachable", health.triton, "Triton answers"),
        of("JournalSynced", None if health.journal_synced else unsynced, "the journal is on disk"),
    ]
    torn = health.journal_cut
    facts.append(("JournalTorn", "True" if torn else "False", Reason.JOURNAL_TORN if torn else Reason.ACCEPTED, torn))
    lost = health.evidence_lost
    facts.append(
        ("EvidenceWritten", "False" if lost else "True", Reason.EVIDENCE_UNWRITTEN if lost else Reason.ACCEPTED, lost)
    )
    return [*facts, _runtime(health.runtime)]


def _runtime(found: Runtime | None) -> Fact:
    kind = "RuntimeMismatch"
    if found is None or found.differs is None:
        return kind, "Unknown", Reason.NO_DATA, found.message if found is not None else "the runtime was not looked at"
    if found.differs:
        return kind, "True", Reason.RUNTIME_MISMATCH, found.message
    return kind, "False", Reason.ACCEPTED, found.message


def deafness(alive: bool, receiving: bool) -> str:
    """Return why live frames are not judged by a guard thread and its frame socket, empty where both work."""
    if not alive:
        return "the guard's thread has ended: nothing is judged until the agent is started again"
    return "" if receiving else "the frame socket takes no gateway any more: start the agent again"


def worth_writing(old: NodeEngineStatus, new: NodeEngineStatus, age_s: float) -> bool:
    """Tell whether `new` says more than a status `age_s` old: transitions at once, counts once a second."""
    quiet = {"heartbeat": "", "facts": NodeFacts()}
    before, after = old.model_copy(update=quiet), new.model_copy(update=quiet)
    return _steady(before) != _steady(after) or (age_s >= DETAIL_EVERY_S and before != after)


def _steady(status: NodeEngineStatus) -> NodeEngineStatus:
    """Return `status` without what moves with every frame."""
    return status.model_copy(update={"models": tuple(_steady_model(m) for m in status.models)})


def _steady_model(model: ModelStatus) -> ModelStatus:
    candidate = model.candidate
    if candidate is not None:
        candidate = candidate.model_copy(update={"samples_valid": 0, "message": "", "figures": ()})
    return model.model_copy(
        update={"samples_valid": 0, "candidate": candidate, "conditions": tuple(_bare(c) for c in model.conditions)}
    )


def _bare(one: Condition) -> Condition:
    return one.model_copy(update={"message": "", "last_transition_time": ""})
