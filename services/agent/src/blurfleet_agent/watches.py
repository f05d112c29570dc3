"""Which engines the guard compares: an engine is only ever judged by the FP32 engine of its own set. Pure."""

from __future__ import annotations

from blurfleet.api.nodeengine import EngineRef
from blurfleet.quality.state import guard_policy
from blurfleet_agent.candidate import judge_candidate
from blurfleet_agent.decide import routed, shadow_needed
from blurfleet_agent.remembered import Remembered
from blurfleet_agent.view import ModelView
from blurfleet_agent.watch import Contender, Watch

SHADOWED = ("Shadowing", "Proven")


def watch_of(view: ModelView, notes: Remembered, device_class: str) -> Watch | None:
    """Return how `view`'s model is to be guarded, None where nothing is served or its spec cannot be judged by."""
    spec = view.spec
    if view.lost or view.served is None:
        return None
    primary = _guarded(view)
    oracle = oracle_for(view, primary, notes) if primary is not None else None
    fallback = spec.fallback
    return Watch(
        alias=spec.name,
        attempt=spec.attempt,
        policy=guard_policy(spec.policy, device_class),
        policy_name=spec.policy_name,
        device_class=device_class,
        primary=routed(view, primary) if primary is not None else None,
        oracle=routed(view, oracle) if oracle is not None else None,
        fallback=routed(view, fallback) if fallback is not None else None,
        fallback_ready=view.fallback_ready,
        candidate=_contender(view),
        profile=spec.profile,
    )


def oracle_for(view: ModelView, ref: EngineRef, notes: Remembered) -> EngineRef | None:
    """Return the loaded FP32 engine of `ref`'s own set, None where there is none."""
    note = notes.sets.get(ref.set)
    known = (view.spec.oracle, view.spec.fallback, note.oracle if note is not None else None)
    return next((r for r in known if r is not None and r.set == ref.set and view.is_ready(r)), None)


def _guarded(view: ModelView) -> EngineRef | None:
    """Return the engine under guard: what serves as primary, or the wished primary while it is off."""
    served = view.served
    if served is not None and served.role == "Primary":
        return view.served_ref
    primary = view.spec.primary
    return primary if view.is_ready(primary) else None


def _contender(view: ModelView) -> Contender | None:
    candidate, oracle = view.spec.candidate, view.spec.oracle
    status = judge_candidate(view)
    if candidate is None or oracle is None or status is None or not shadow_needed(view):
        return None
    if status.phase not in SHADOWED or not view.is_ready(oracle):
        return None
    return Contender(engine=routed(view, candidate), oracle=routed(view, oracle))
