"""A fleet over the memory store: agents are a pure function of spec, status and a script; time is a number."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from blurfleet.api.admission import LET_GO
from blurfleet.api.capabilities import Capability
from blurfleet.api.contract import ContractSpec
from blurfleet.api.engineset import Blob, EngineSetSpec, Variant
from blurfleet.api.kinds import KINDS, Resource
from blurfleet.api.meta import Condition, ObjectMeta, condition, timestamp
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
from blurfleet.api.policy import PolicySpec, Rule, Trip
from blurfleet.api.quarantine import QuarantineSpec
from blurfleet.api.record import Target
from blurfleet.api.rollout import Ops, RolloutSpec, RolloutStatus
from blurfleet.identity import digest_bytes, engine_name
from blurfleet.reasons import Reason
from blurfleet.store.memory import MemoryStore
from blurfleet.store.port import Ref
from blurfleet_operator.controller import settle

NOW = 1_800_000_000.0
PLATFORM, RUNTIME = "linux-x86_64-cpu", "onnxruntime-1.32.0"
CAPABLE = tuple(c.value for c in Capability if c is not Capability.ANALYSIS_CONCLUSIVE)
FACTS = NodeFacts(sm=0, platform=PLATFORM, runtime_version=RUNTIME, capabilities=CAPABLE)
CLASSES = ("a100", "jetson-orin")
MODEL = "bokeh"


def digest(text: str) -> str:
    return digest_bytes(text.encode())


def blob(text: str) -> Blob:
    return Blob(uri=f"file:///blobs/{text}", digest=digest(text))


def target(device_class: str, runtime: str = RUNTIME) -> Target:
    return Target(device_class=device_class, sm=0, platform=PLATFORM, runtime_version=runtime)


def variant(content: str, device_class: str, precision: str, *, runtime: str = RUNTIME) -> Variant:
    return Variant(
        name=f"{content}-{device_class}-{precision.lower()}",
        target=target(device_class, runtime),
        runtime="onnxruntime",
        precision=precision,
        artifact=blob(content),
        build_record=blob(f"record of {content}"),
    )


def set_spec(
    name: str,
    *,
    precision: str | None = None,
    net: str = "net",
    classes: Iterable[str] = CLASSES,
    contract: str = "rgb",
) -> EngineSetSpec:
    """FP32 of `net` (the same bytes on every class) and, with `precision`, an engine named `name` for each class."""
    variants = [variant(f"{net}-fp32", c, "FP32") for c in classes]
    variants += [variant(f"{name}-{c}", c, precision) for c in classes] if precision else []
    return EngineSetSpec(model=MODEL, contract_ref=contract, golden=blob(f"golden of {net}"), variants=tuple(variants))


def policy_spec(**changes: object) -> PolicySpec:
    rules = (
        Rule(metric="DEER", source="Live", limit="0.18", trip=Trip(frames=3)),
        Rule(metric="MaxAbsError", source="Golden", limit="0.0035"),
    )
    return PolicySpec.model_validate({"metrics": rules, **changes})


def rollout_spec(engine_set: str, **fields: object) -> RolloutSpec:
    return RolloutSpec.model_validate({"model": MODEL, "engine_set": engine_set, "policy_ref": "strict", **fields})


def resource(kind: str, name: str, spec: object, namespace: str | None = "default") -> Resource:
    meta = ObjectMeta(name=name, namespace=namespace if KINDS[kind].namespaced else None)
    return Resource(kind=kind, meta=meta, spec=spec, status=KINDS[kind].status())


@dataclass(frozen=True)
class Script:
    """What happens on which node: `golden`, `shadow` and `live` map (node or "*", digest) to an outcome.

    `unjudged` maps them to why live frames say nothing of what serves. `capabilities` is what single agents say.
    """

    golden: dict[tuple[str, str], str] = field(default_factory=dict)
    shadow: dict[tuple[str, str], str] = field(default_factory=dict)
    live: dict[tuple[str, str], str] = field(default_factory=dict)
    silent: frozenset[str] = frozenset()
    rotten: frozenset[str] = frozenset()
    changed: frozenset[str] = frozenset()
    unjudged: dict[tuple[str, str], str] = field(default_factory=dict)
    capabilities: dict[str, tuple[str, ...]] = field(default_factory=dict)


def told(table: dict[tuple[str, str], str], node: str, engine: str) -> str | None:
    return table.get((node, engine), table.get(("*", engine)))


def agent(name: str, spec: NodeEngineSpec, old: NodeEngineStatus, script: Script, now: float) -> NodeEngineStatus:
    """What the node's agent would write next."""
    models = tuple(_model(name, m, _old(old, m.name), spec, script, now) for m in spec.models)
    facts = FACTS.model_copy(update={"capabilities": script.capabilities.get(name, CAPABLE)})
    return old.model_copy(update={"heartbeat": timestamp(now), "facts": facts, "models": models})


def _old(status: NodeEngineStatus, name: str) -> ModelStatus:
    return next((m for m in status.models if m.name == name), ModelStatus(name=name))


def _model(
    node: str, want: NodeModel, old: ModelStatus, spec: NodeEngineSpec, script: Script, now: float
) -> ModelStatus:
    trip = _trip(node, want, old, script, now)
    latched = (
        trip is not None
        and want.primary is not None
        and (trip.digest, trip.attempt)
        == (
            want.primary.digest,
            want.attempt,
        )
    )
    engine, role = want.primary, "Primary"
    if engine is not None and (latched or engine.digest in spec.quarantined):
        engine, role = want.fallback, "Fallback"
    serving = old.serving
    if engine is not None and (serving is None or (serving.digest, serving.role) != (engine.digest, role)):
        serving = Serving(
            digest=engine.digest,
            engine=engine_name(want.name, engine.digest),
            set=engine.set,
            role=role,
            precision=engine.precision,
            epoch=(serving.epoch if serving else 0) + 1,
        )
    ready = "False" if node in script.rotten else "True" if want.fallback is not None else "Unknown"
    said = Condition(type="FallbackReady", status=ready, reason=Reason.GOLDEN_PASSED)
    return old.model_copy(
        update={
            "serving": serving,
            "candidate": _candidate(node, want, old, script),
            "last_trip": trip,
            "conditions": (said, *_change(want, script), *_analysis(node, serving, script)),
        }
    )


def _analysis(node: str, serving: Serving | None, script: Script) -> tuple[Condition, ...]:
    if serving is None:
        return ()
    doubt = told(script.unjudged, node, serving.digest)
    status, reason = ("True", Reason.WITHIN_LIMITS) if doubt is None else ("False", Reason(doubt))
    if doubt == Reason.INSUFFICIENT_SAMPLES:
        status = "Unknown"
    return (Condition(type="AnalysisConclusive", status=status, reason=reason, message="no live frame"),)


def _change(want: NodeModel, script: Script) -> tuple[Condition, ...]:
    if want.candidate is None:
        return ()
    status = "True" if want.candidate.set in script.changed else "False"
    return (Condition(type="SemanticChange", status=status, reason=Reason.SEMANTIC_CHANGE, message="up to 0.3100"),)


def _trip(node: str, want: NodeModel, old: ModelStatus, script: Script, now: float) -> TripStatus | None:
    primary, serving, last = want.primary, old.serving, old.last_trip
    if primary is None or serving is None or serving.digest != primary.digest or serving.role != "Primary":
        return last
    reason = told(script.live, node, primary.digest)
    if reason is None or (last is not None and (last.digest, last.attempt) == (primary.digest, want.attempt)):
        return last
    return TripStatus(
        digest=primary.digest,
        set=primary.set,
        attempt=want.attempt,
        reason=reason,
        metric="DEER",
        value="0.4",
        limit="0.18",
        epoch=serving.epoch,
        at=timestamp(now),
    )


def _candidate(node: str, want: NodeModel, old: ModelStatus, script: Script) -> CandidateStatus | None:
    given = want.candidate
    if given is None:
        return None
    before = old.candidate
    if before is None or (before.digest, before.attempt) != (given.digest, want.attempt):
        return CandidateStatus(
            digest=given.digest, set=given.set, attempt=want.attempt, phase="Staging", reason="Staging"
        )
    golden, shadow = told(script.golden, node, given.digest), told(script.shadow, node, given.digest)
    changes: dict[str, object] = {
        "phase": "Proven",
        "reason": "ShadowPassed",
        "samples_valid": 20,
        "samples_required": 20,
    }
    if golden == "failed load":
        changes = {"phase": "Failed", "reason": "LoadFailed"}
    elif golden is not None:
        figure = Figure(metric="MaxAbsError", value="0.17", limit="0.0035", verdict="Fail")
        changes = {
            "phase": "GoldenFailed",
            "reason": "MaxAbsErrorExceeded",
            "oracle_passed": {"oracle passes": True, "oracle fails": False, "no oracle": None}[golden],
            "figures": (figure,),
        }
    elif shadow == "no data":
        changes = {"phase": "Shadowing", "reason": "Shadowing", "samples_valid": 0, "samples_required": 20}
    elif shadow == "few":
        changes = {"phase": "Shadowing", "reason": "Shadowing", "samples_valid": 7, "samples_required": 20}
    elif shadow is not None:
        changes = {"phase": "Failed", "reason": shadow, "samples_valid": 9, "samples_required": 20}
    return before.model_copy(update=changes)


class Fleet:
    """Store, agents, controller and clock of one test."""

    def __init__(self, nodes: dict[str, str] | None = None) -> None:
        self.now = NOW
        self.script = Script()
        self.store = MemoryStore(clock=lambda: self.now)
        self.store.apply(resource("PreprocessContract", "rgb", ContractSpec()))
        self.store.apply(resource("QualityPolicy", "strict", policy_spec()))
        for name, device_class in (
            nodes or {"a100-0": "a100", "orin-0": "jetson-orin", "orin-1": "jetson-orin"}
        ).items():
            self.join(name, device_class)

    def join(self, name: str, device_class: str) -> None:
        self.store.apply(resource("NodeEngine", name, NodeEngineSpec(device_class=device_class)))

    def set(self, name: str, **fields: object) -> None:
        self.store.apply(resource("EngineSet", name, set_spec(name, **fields)))

    def lose(self, name: str) -> None:
        """The set's object goes though a rollout needs it, as from a cluster without the admission policies."""
        ref = Ref(kind="EngineSet", name=name, namespace="default")
        old = self.store.get(ref)
        self.store.apply(replace(old, meta=old.meta.model_copy(update={"annotations": {LET_GO: "true"}})))
        assert self.store.delete(ref)

    def rollout(self, engine_set: str, name: str = "bokeh", **fields: object) -> None:
        self.store.apply(resource("EngineRollout", name, rollout_spec(engine_set, **fields)))

    def change(self, name: str = "bokeh", **fields: object) -> None:
        """Change fields of a rollout's spec as a person would."""
        old = self.store.get(Ref(kind="EngineRollout", name=name, namespace="default"))
        spec = RolloutSpec.model_validate({**old.spec.model_dump(), **fields})
        self.store.apply(replace(old, spec=spec))

    def ops(self, **tokens: str) -> None:
        old = self.store.get(Ref(kind="EngineRollout", name="bokeh", namespace="default"))
        self.change(ops=Ops.model_validate({**old.spec.ops.model_dump(), **tokens}))

    def quarantine(self, engine: str, device_class: str | None = None, **fields: object) -> None:
        spec = QuarantineSpec(digest=engine, reason="DEERExceeded", device_class=device_class, **fields)
        self.store.apply(resource("EngineQuarantine", f"q-{engine[7:19]}-{device_class or 'all'}", spec))

    def tick(self, count: int = 1, seconds: float = 1.0) -> None:
        """Let time pass: agents write what they see, the controller settles."""
        for _ in range(count):
            self.now += seconds
            for node in self.store.objects("NodeEngine"):
                if node.meta.name not in self.script.silent:
                    status = agent(node.meta.name, node.spec, node.status, self.script, self.now)
                    self.store.write_status(Ref(kind="NodeEngine", name=node.meta.name), status)
            settle(self.store, clock=lambda: self.now)

    def until(self, holds: Callable[[], bool], ticks: int = 30) -> None:
        for _ in range(ticks):
            if holds():
                return
            self.tick()
        assert holds(), f"not within {ticks} ticks: {self.status()}"

    def promote(self, engine_set: str, **fields: object) -> None:
        """Roll `engine_set` out until it is promoted."""
        if self.store.get(Ref(kind="EngineRollout", name="bokeh", namespace="default")) is None:
            self.rollout(engine_set, **fields)
        else:
            self.change(engine_set=engine_set, **fields)
        self.until(lambda: self.status().outcome == "Promoted" and self.status().set == engine_set)
        self.tick(2)

    def status(self, name: str = "bokeh") -> RolloutStatus:
        return self.store.get(Ref(kind="EngineRollout", name=name, namespace="default")).status

    def said(self, kind: str, name: str = "bokeh") -> tuple[str, str]:
        found = condition(self.status(name).conditions, kind)
        return (found.status, found.reason.value) if found else ("", "")

    def spec(self, node: str) -> NodeModel | None:
        found = self.store.get(Ref(kind="NodeEngine", name=node))
        return next((m for m in found.spec.models if m.name == MODEL), None)

    def serves(self, node: str) -> str:
        """Return `set/role` of what answers clients on `node`."""
        models = self.store.get(Ref(kind="NodeEngine", name=node)).status.models
        serving = next((m.serving for m in models if m.name == MODEL), None)
        return f"{serving.set}/{serving.role}" if serving else ""

    def serving_digest(self, node: str) -> str:
        models = self.store.get(Ref(kind="NodeEngine", name=node)).status.models
        return next((m.serving.digest for m in models if m.serving is not None), "")

    def all_serve(self) -> dict[str, str]:
        return {n.meta.name: self.serves(n.meta.name) for n in self.store.objects("NodeEngine")}

    def quarantined(self) -> set[tuple[str, str | None]]:
        return {(q.spec.digest, q.spec.device_class) for q in self.store.objects("EngineQuarantine")}

    def refused_on(self, node: str) -> tuple[str, ...]:
        return self.store.get(Ref(kind="NodeEngine", name=node)).spec.quarantined

    def reasons(self) -> list[str]:
        ref = Ref(kind="EngineRollout", name="bokeh", namespace="default")
        return [e.reason.value for e in self.store.events(ref)]
