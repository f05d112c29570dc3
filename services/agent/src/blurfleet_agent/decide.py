"""Decides what to do next for one model: a pure function from what is observed to ordered actions.

The chains are written in the order in which they win; the first that speaks is the answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from blurfleet.api.nodeengine import EngineRef
from blurfleet.reasons import Reason
from blurfleet.serving.routing import RoutedEngine
from blurfleet_agent.faults import given_up
from blurfleet_agent.swap import SwapOrder
from blurfleet_agent.view import GoldenResult, ModelView, Role


@dataclass(frozen=True, kw_only=True)
class Load:
    """Stage, check and load an engine."""

    ref: EngineRef


@dataclass(frozen=True, kw_only=True)
class RunGolden:
    """Run golden inference on a loaded engine, judged in `role`."""

    ref: EngineRef
    role: Role


@dataclass(frozen=True, kw_only=True)
class FetchRecord:
    """Stage the record of an engine that is loaded already: the alias's tensors are in it."""

    ref: EngineRef


@dataclass(frozen=True, kw_only=True)
class ProveFlip:
    """Flip a scratch alias under probe traffic."""

    engine: str


@dataclass(frozen=True, kw_only=True)
class Serve:
    """Swap to an engine."""

    order: SwapOrder


@dataclass(frozen=True, kw_only=True)
class Settle:
    """Do the alias steps still owed."""

    alias: str


@dataclass(frozen=True, kw_only=True)
class Refresh:
    """Tell the gateways which engine stands by."""

    alias: str
    fallback: RoutedEngine | None


@dataclass(frozen=True, kw_only=True)
class Drain:
    """Tell the gateways whether the node wants no new clients."""

    alias: str
    drained: bool


@dataclass(frozen=True, kw_only=True)
class Unload:
    """Unload an engine nobody wants any more."""

    name: str


Action = Load | FetchRecord | RunGolden | ProveFlip | Serve | Settle | Refresh | Drain | Unload
UNSURE_RETRY_S = 2.0  # an inconclusive golden run disarms or holds, so it is asked again soon
SLOW = (Load, FetchRecord, RunGolden, ProveFlip, Unload)


def decide(view: ModelView) -> tuple[Action, ...]:
    """Return what to do now, most urgent first. Slow actions are done one at a time, the rest at once."""
    serve = choose_serving(view)
    quick: list[Action] = []
    if serve is not None:
        quick.append(serve)
    elif view.served is not None:
        if not view.served.settled and view.now >= view.settle_at and view.served.engine.engine in view.ready:
            quick.append(Settle(alias=view.spec.name))
        refresh = _refresh(view)
        if refresh is not None:
            quick.append(refresh)
        if view.spec.drained != view.drained and not view.lost:
            quick.append(Drain(alias=view.spec.name, drained=view.spec.drained))
    return (*quick, *_slow(view))


def choose_serving(view: ModelView) -> Serve | None:
    """Return the swap that spec, latches and quarantine ask for, None where what is served is right or must stay."""
    spec, served = view.spec, view.served
    primary, fallback = spec.primary, spec.fallback
    if served is not None and served.engine.digest in view.quarantined:
        if primary is not None and view.usable(primary, "Primary"):
            return _serve(view, primary, "Primary", "Quarantine", Reason.QUARANTINED)
        if fallback is not None and view.fallback_ready:
            return _serve(view, fallback, "Fallback", "Quarantine", Reason.QUARANTINED)
        return None
    if view.problem is not None or primary is None:
        return None
    block = view.blocked(primary)
    if block is None:
        if served is not None and (served.engine.digest, served.role) == (primary.digest, "Primary"):
            return None
        if view.usable(primary, "Primary"):
            return _serve(view, primary, "Primary", "Serve", Reason.SERVING)
        lost = _failed_for_good(view, primary)
        return _serve_fallback(view, lost) if served is None and lost is not None else None
    latch = view.latch(primary)
    if latch is not None and block.reason is Reason.LATCHED and view.reproven and not latch.sentinel:
        if view.is_ready(primary) and served is not None and served.role == "Fallback":
            return _serve(view, primary, "Primary", "Rearm", Reason.REPROVEN)
        return None
    if served is None or (served.role == "Primary" and served.engine.digest == primary.digest):
        return _serve_fallback(view, block.reason)
    if served.role == "Fallback" and fallback is not None and served.engine.digest != fallback.digest:
        return _serve_fallback(view, block.reason)
    return None


def shadow_needed(view: ModelView) -> bool:
    """Tell whether the candidate must be shadowed: there is live traffic to shadow, and something to compare with.

    A candidate that is its own oracle has nothing to drift from; a node that serves nothing has no live frames.
    """
    candidate, oracle = view.spec.candidate, view.spec.oracle
    if candidate is None or view.spec.policy.shadow_samples == 0 or view.served is None:
        return False
    return oracle is None or oracle.digest != candidate.digest


def wanted_engines(view: ModelView) -> tuple[EngineRef, ...]:
    """Return the engines to keep loaded, most important first: what serves, then the standby, the candidate last."""
    spec = view.spec
    order = [view.served_ref, spec.fallback]
    if not view.lost:
        order += [spec.primary, spec.oracle, spec.candidate]
    seen: dict[str, EngineRef] = {}
    for ref in order:
        if ref is not None:
            seen.setdefault(ref.digest, ref)
    return tuple(seen.values())


def _slow(view: ModelView) -> list[Action]:
    """Return slow work by need: what serves, the standby and the primary are proven before others are loaded."""
    shed = _shed(view)
    if shed is not None:
        return [shed]
    first = _first(view)
    work: list[Load | RunGolden] = [Load(ref=ref) for ref in wanted_engines(view) if _load_due(view, ref)]
    work += _golden_due(view)
    actions: list[Action] = [a for a in work if a.ref.digest in first]
    if view.faceless is not None and view.is_ready(view.faceless) and view.now >= view.face_at:
        actions.append(FetchRecord(ref=view.faceless))  # one that is not loaded is staged with its load
    if view.swap_proven is not True and view.now >= view.prove_at and view.served is not None and view.served.settled:
        actions.append(ProveFlip(engine=view.served.engine.engine))
    actions += [a for a in work if a.ref.digest not in first]
    return actions + _unloads(view)


def _first(view: ModelView) -> set[str]:
    """Return the digests that the node serves by: what serves, its standby, and what is to serve."""
    return {r.digest for r in (view.served_ref, view.spec.fallback, view.spec.primary) if r is not None}


def _load_due(view: ModelView, ref: EngineRef) -> bool:
    fault = view.faults.get(ref.digest)
    needed = ref.digest in _first(view)
    waiting = fault is not None and (given_up(fault, needed=needed) or view.now < fault.retry_at)
    return not view.is_ready(ref) and not waiting and ref.digest not in view.quarantined


def _shed(view: ModelView) -> Unload | None:
    """Return the candidate's unload when memory runs out: what serves and its standby are kept whatever happens."""
    candidate = view.spec.candidate
    if not view.memory_low or candidate is None or not view.is_ready(candidate):
        return None
    kept = {r.digest for r in (view.spec.primary, view.spec.fallback, view.served_ref) if r is not None}
    if view.served is not None:
        kept.add(view.served.engine.digest)
    return None if candidate.digest in kept else Unload(name=view.name_of(candidate))


def _golden_due(view: ModelView) -> list[RunGolden]:
    spec = view.spec
    due: list[RunGolden] = []
    if view.lost:
        return due
    if spec.fallback is not None and view.is_ready(spec.fallback):
        last = view.result(spec.fallback, "Fallback")
        if last is None or view.now - last.at >= view.standby_every or _retry_golden(view, last):
            due.append(RunGolden(ref=spec.fallback, role="Fallback"))
    wishes: list[tuple[EngineRef | None, Role]] = [(spec.primary, "Primary")]
    if spec.candidate is not None:
        wishes += [(spec.oracle, "Fallback"), (spec.candidate, "Primary")]
    for ref, role in wishes:
        if ref is None or not view.is_ready(ref) or view.blocked(ref) is not None:
            continue
        result = view.result(ref, role)
        if (result is None or _retry_golden(view, result)) and not _asked(due, ref, role):
            due.append(RunGolden(ref=ref, role=role))
    return due


def _retry_golden(view: ModelView, result: GoldenResult) -> bool:
    return result.verdict == "Inconclusive" and view.now - result.at >= UNSURE_RETRY_S


def _asked(due: list[RunGolden], ref: EngineRef, role: Role) -> bool:
    key = (ref.digest, ref.set, role)
    return any((a.ref.digest, a.ref.set, a.role) == key for a in due)


def _unloads(view: ModelView) -> list[Action]:
    keep = {view.name_of(ref) for ref in wanted_engines(view)}
    if view.served is not None:
        keep |= {view.served.engine.engine, view.served.primary.engine}
        keep |= {view.served.fallback.engine} if view.served.fallback is not None else set()
    mine = f"{view.spec.name}__"
    idle = sorted(n for n in view.ready if n.startswith(mine) and n not in keep)
    return [Unload(name=n) for n in idle if view.now - view.last_wanted.get(n, view.now) >= view.unload_after]


def _refresh(view: ModelView) -> Refresh | None:
    served = view.served
    if served is None or served.role == "Fallback":
        return None
    standby = routed(view, view.spec.fallback) if view.spec.fallback is not None and view.fallback_ready else None
    return None if standby == served.fallback else Refresh(alias=view.spec.name, fallback=standby)


def routed(view: ModelView, ref: EngineRef) -> RoutedEngine:
    """Return `ref` as the routing file names it."""
    return RoutedEngine(engine=view.name_of(ref), digest=ref.digest, precision=ref.precision, set=ref.set)


def _failed_for_good(view: ModelView, ref: EngineRef) -> Reason | None:
    fault = view.faults.get(ref.digest)
    if fault is not None and fault.final:
        return fault.reason
    result = view.result(ref, "Primary")
    return Reason.GOLDEN_FAILED if result is not None and result.verdict == "Fail" else None


def _serve_fallback(view: ModelView, reason: Reason) -> Serve | None:
    if view.spec.fallback is None or not view.fallback_ready:
        return None
    return _serve(view, view.spec.fallback, "Fallback", "Serve", reason)


def _serve(
    view: ModelView,
    ref: EngineRef,
    role: Role,
    why: Literal["Serve", "Rearm", "Quarantine"],
    reason: Reason,
) -> Serve:
    to = routed(view, ref)
    fallback = view.spec.fallback
    standby = routed(view, fallback) if fallback is not None and view.fallback_ready else None
    primary = routed(view, view.spec.primary) if view.spec.primary is not None and role == "Fallback" else to
    order = SwapOrder(
        alias=view.spec.name,
        to=to,
        role=role,
        primary=primary,
        fallback=to if role == "Fallback" else standby,
        why=why,
        reason=reason,
        attempt=view.spec.attempt,
        instead_of=view.served.engine.digest if view.served is not None else None,
    )
    return Serve(order=order)
