"""Status writers in place of agents: what a node would report, scripted, written over the real API as its own account.

They stage, load and judge nothing: scenarios about the operator need many nodes and no engines. Tests that need a real
swap use the real agent.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

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
from blurfleet.errors import BlurfleetError
from blurfleet.identity import engine_name
from blurfleet.reasons import Reason
from blurfleet.store.kube import KubeStore
from blurfleet.store.kubeclient import Access, KubeClient
from blurfleet.store.port import Ref

PLATFORMS = {"a100": ("linux-x86_64", 80, "10.13.3.9"), "jetson-orin": ("linux-aarch64-tegra", 87, "10.3.0.30")}
SYSTEM = "blurfleet-system"


@dataclass
class Script:
    """What happens to which digest: fails golden, stays undecided in shadow, trips live. Tests change it as they go."""

    golden_fails: set[str] = field(default_factory=set)
    undecided: set[str] = field(default_factory=set)
    trips: set[str] = field(default_factory=set)
    silent: bool = False


class ScriptedNode:
    """Follows one NodeEngine and writes its status and Lease, as the node's agent would."""

    def __init__(self, name: str, device_class: str, access: Access) -> None:
        self.name, self.device_class, self.script = name, device_class, Script()
        self.store = KubeStore(KubeClient(access, connections=4), manager="blurfleet-agent", node=name)
        self.errors: list[str] = []
        self.served: list[str] = []
        self._stop = threading.Event()
        self._beat_at = 0.0
        self._thread = threading.Thread(target=self._run, name=f"scripted-{name}", daemon=True)

    def start(self) -> ScriptedNode:
        self._thread.start()
        return self

    def close(self) -> None:
        self._stop.set()
        self._thread.join(10)
        self.store.close()

    def _run(self) -> None:
        for _ in self.store.watch(("NodeEngine",), self._stop.is_set):
            if self._stop.is_set():
                return
            try:
                self._turn()
            except BlurfleetError as error:
                self.errors.append(str(error))

    def _turn(self) -> None:
        now = time.time()
        if self.script.silent:
            return
        if now - self._beat_at > 10.0:
            self.store.beat(self.name, SYSTEM, now, every_s=30.0)
            self._beat_at = now
        ref = Ref(kind="NodeEngine", name=self.name)
        found = self.store.get(ref)
        if found is None:
            return
        status = report(found, self.device_class, self.script, now)
        if status != found.status:
            self.store.write_status(ref, status)
            for model in status.models:
                if model.serving is not None and (not self.served or self.served[-1] != model.serving.digest):
                    self.served.append(model.serving.digest)


def report(resource: Resource, device_class: str, script: Script, now: float) -> NodeEngineStatus:
    """Return what the node would write next; unchanged where nothing moves."""
    old, spec = resource.status, resource.spec
    assert isinstance(old, NodeEngineStatus)
    assert isinstance(spec, NodeEngineSpec)
    platform, sm, runtime = PLATFORMS[device_class]
    facts = NodeFacts(sm=sm, platform=platform, runtime_version=runtime, agent_version="scripted")
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
    if engine is not None and (serving is None or (serving.digest, serving.role) != (engine.digest, role)):
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
    if given.digest in script.golden_fails:
        figure = Figure(metric="MaxAbsError", value="0.17", limit="0.0035", verdict="Fail")
        why = {"phase": "GoldenFailed", "reason": Reason.MAX_ABS_ERROR_EXCEEDED.value, "oracle_passed": True}
        return base.model_copy(update={**why, "figures": (figure,)})
    if given.digest in script.undecided:
        return base.model_copy(update={"phase": "Shadowing", "reason": "Shadowing", "samples_required": 20})
    proven = {"phase": "Proven", "reason": "ShadowPassed", "samples_valid": 20, "samples_required": 20}
    return base.model_copy(update=proven)


def start_all(nodes: Iterable[tuple[str, str, Path]]) -> list[ScriptedNode]:
    """Start one scripted node each of (name, class, kubeconfig of its bound token)."""
    return [ScriptedNode(n, c, Access(kubeconfig=k)).start() for n, c, k in nodes]
