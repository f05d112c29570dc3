"""What nodes of a fleet would report, scripted: for measuring and testing the operator with more nodes than engines.

Simulated nodes stage, load and judge nothing; their status says so (`simulated`). Pure: the clock comes in.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from blurfleet.api.capabilities import Capability
from blurfleet.api.kinds import Resource
from blurfleet.api.meta import Condition, timestamp
from blurfleet.api.nodeengine import (
    CandidateStatus,
    Figure,
    ModelStatus,
    NodeEngineSpec,
    NodeEngineStatus,
    NodeFacts,
    NodeModel,
    Serving,
    TripStatus,
)
from blurfleet.identity import engine_name
from blurfleet.reasons import Reason

# Platform, compute capability and engine runtime of each class, as the examples' variants name them.
PLATFORMS = {"a100": ("linux-x86_64", 80, "10.13.3.9"), "jetson-orin": ("linux-aarch64-tegra", 87, "10.3.0.30")}

CAPABLE = tuple(c.value for c in Capability if c is not Capability.ANALYSIS_CONCLUSIVE)


@dataclass
class Script:
    """What happens to which digest: fails golden, stays undecided in shadow, trips live. It may change on the way.

    Digests in `staging` are staged and never done; a node that `stays` serves on what it serves, whatever it is told.
    `capabilities` is what its agent says that it can do; live analysis is not simulated.
    """

    golden_fails: set[str] = field(default_factory=set)
    undecided: set[str] = field(default_factory=set)
    trips: set[str] = field(default_factory=set)
    staging: set[str] = field(default_factory=set)
    stays: bool = False
    silent: bool = False
    capabilities: tuple[str, ...] = CAPABLE


def report(resource: Resource, device_class: str, script: Script, now: float) -> NodeEngineStatus:
    """Return what the node would write next; unchanged where nothing moves."""
    old, spec = resource.status, resource.spec
    assert isinstance(old, NodeEngineStatus)
    assert isinstance(spec, NodeEngineSpec)
    platform, sm, runtime = PLATFORMS[device_class]
    facts = NodeFacts(
        sm=sm,
        platform=platform,
        runtime_version=runtime,
        agent_version="scripted",
        capabilities=script.capabilities,
    )
    models = tuple(_model(m, _old(old, m.name), spec, script, now) for m in spec.models)
    first = models[0] if models else None
    return old.model_copy(
        update={
            "facts": facts,
            "models": models,
            "simulated": True,
            "heartbeat": old.heartbeat or timestamp(now),
            "observed_generation": resource.meta.generation,
            "active": first.serving.set if first is not None and first.serving is not None else "",
            "connected": "Yes",
        }
    )


def _old(status: NodeEngineStatus, name: str) -> ModelStatus:
    return next((m for m in status.models if m.name == name), ModelStatus(name=name))


def _model(want: NodeModel, old: ModelStatus, spec: NodeEngineSpec, script: Script, now: float) -> ModelStatus:
    trip = _trip(want, old, script, now)
    engine, role = want.primary, "Primary"
    latched = trip is not None and engine is not None and (trip.digest, trip.attempt) == (engine.digest, want.attempt)
    if engine is not None and (latched or engine.digest in spec.quarantined):
        engine, role = want.fallback, "Fallback"
    serving = old.serving
    moves = serving is None or not script.stays
    if engine is not None and moves and (serving is None or (serving.digest, serving.role) != (engine.digest, role)):
        serving = Serving(
            digest=engine.digest,
            engine=engine_name(want.name, engine.digest),
            set=engine.set,
            role=role,
            precision=engine.precision,
            epoch=(serving.epoch if serving else 0) + 1,
        )
    ready = "True" if want.fallback is not None else "Unknown"
    said = Condition(type="FallbackReady", status=ready, reason=Reason.GOLDEN_PASSED)
    return old.model_copy(
        update={"serving": serving, "candidate": _candidate(want, script), "last_trip": trip, "conditions": (said,)}
    )


def _trip(want: NodeModel, old: ModelStatus, script: Script, now: float) -> TripStatus | None:
    primary, serving, last = want.primary, old.serving, old.last_trip
    if primary is None or serving is None or (serving.digest, serving.role) != (primary.digest, "Primary"):
        return last
    known = last is not None and (last.digest, last.attempt) == (primary.digest, want.attempt)
    if primary.digest not in script.trips or known:
        return last
    return TripStatus(
        digest=primary.digest,
        set=primary.set,
        attempt=want.attempt,
        reason=Reason.DEER_EXCEEDED.value,
        metric="DEER",
        value="0.4",
        limit="0.18",
        epoch=serving.epoch,
        at=timestamp(now),
    )


def _candidate(want: NodeModel, script: Script) -> CandidateStatus | None:
    given = want.candidate
    if given is None:
        return None
    base = CandidateStatus(digest=given.digest, set=given.set, attempt=want.attempt, phase="Golden", reason="Staging")
    if given.digest in script.staging:
        return base.model_copy(update={"phase": "Staging"})
    if given.digest in script.golden_fails:
        figure = Figure(metric="MaxAbsError", value="0.17", limit="0.0035", verdict="Fail")
        why = {"phase": "GoldenFailed", "reason": Reason.MAX_ABS_ERROR_EXCEEDED.value, "oracle_passed": True}
        return base.model_copy(update={**why, "figures": (figure,)})
    if given.digest in script.undecided:
        return base.model_copy(update={"phase": "Shadowing", "reason": "Shadowing", "samples_required": 20})
    proven = {"phase": "Proven", "reason": "ShadowPassed", "samples_valid": 20, "samples_required": 20}
    return base.model_copy(update=proven)
