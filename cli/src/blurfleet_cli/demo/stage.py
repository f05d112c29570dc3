"""The stage of the story: fleet, store, cameras and truth, and the few moves that acts make on them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from blurfleet.api.base import API_VERSION
from blurfleet.api.contract import ContractSpec
from blurfleet.api.engineset import EngineSetSpec, Variant
from blurfleet.api.kinds import Resource, parse_resource
from blurfleet.api.nodeengine import ModelStatus, NodeEngineStatus
from blurfleet.api.rollout import RolloutStatus
from blurfleet.deadline import came_true
from blurfleet.errors import NodeError
from blurfleet.reasons import Reason
from blurfleet.serving.routing import ROUTING_FILE, Route, read_routing
from blurfleet.store.port import Ref
from blurfleet_cli.demo.load import Answer, Camera
from blurfleet_cli.demo.photos import Playlist
from blurfleet_cli.demo.truth import Truth
from blurfleet_cli.fleet.local import LocalFleet
from blurfleet_cli.fleet.plan import NodePlan, node_folder

ALIAS = "bokeh"
_SEEN_CHARS = 200


@dataclass(frozen=True, kw_only=True)
class Promise:
    """One thing that must hold, in a sentence, whether it did, and what was seen."""

    sentence: str
    held: bool
    seen: str = ""


@dataclass(kw_only=True)
class Act:
    """One act for one candidate, as `summary.json` has it."""

    name: str
    candidate: dict[str, str]
    verdict: str = ""
    reason: str = ""
    stage: str = ""
    value: str = ""
    limit: str = ""
    frames_to_detect: int = 0
    swap_ms: float | None = None
    requests: int = 0
    failed: int = 0
    retried: int = 0
    bad_frames_served: int = 0
    worst_error: float = 0.0
    seconds: float = 0.0
    pictures: list[str] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)
    promises: list[Promise] = field(default_factory=list)

    def promise(self, sentence: str, held: bool, seen: object = "") -> None:
        """Note a promise and whether it held."""
        text = "" if isinstance(seen, bool) else str(seen)
        short = text if len(text) <= _SEEN_CHARS else text[:_SEEN_CHARS] + " ..."
        self.promises.append(Promise(sentence=sentence, held=bool(held), seen=short))


@dataclass(kw_only=True)
class Stage:
    """Everything the acts share."""

    fleet: LocalFleet
    sets: Mapping[str, Path]
    playlist: Playlist
    contract: ContractSpec
    out: Path
    say: Callable[[str], None]
    cameras: dict[str, Camera] = field(default_factory=dict)
    truth: Truth = field(default_factory=lambda: Truth(ALIAS))

    def nodes(self) -> tuple[NodePlan, ...]:
        """Return the nodes of the fleet."""
        return self.fleet.plan.nodes

    def apply(self, body: Mapping[str, Any]) -> Resource:
        """Write one object. Raises AdmissionRefused and InvalidSpec."""
        return self.fleet.store.apply(parse_resource(body))

    def apply_set(self, name: str) -> EngineSetSpec:
        """Write the engine set that was built under `name`; the truth learns its FP32 engines."""
        resource = parse_resource(yaml.safe_load(self.sets[name].read_text()), where=str(self.sets[name]))
        assert isinstance(resource.spec, EngineSetSpec)
        self.truth.learn(resource.spec)
        self.fleet.store.apply(resource)
        return resource.spec

    def roll(self, engine_set: str, *, policy: str, waves: list[dict[str, Any]], classes: tuple[str, ...] = ()) -> None:
        """Point the rollout at a set."""
        spec = {
            "model": ALIAS,
            "engineSet": engine_set,
            "policyRef": policy,
            "selector": {"classes": list(classes)},
            "waves": waves,
            "correlation": {"nodes": 2, "window": "10m"},
        }
        meta = {"name": ALIAS}
        self.apply({"apiVersion": API_VERSION, "kind": "EngineRollout", "metadata": meta, "spec": spec})

    def rollout(self) -> RolloutStatus:
        """Return the rollout's status, empty while it observes an older generation."""
        found = self.fleet.store.get(Ref(kind="EngineRollout", name=ALIAS, namespace="default"))
        if found is None or not isinstance(found.status, RolloutStatus):
            return RolloutStatus()
        return found.status if found.status.observed_generation == found.meta.generation else RolloutStatus()

    def node(self, name: str) -> ModelStatus:
        """Return what a node's agent says of the model."""
        found = self.fleet.store.get(Ref(kind="NodeEngine", name=name))
        models = found.status.models if found and isinstance(found.status, NodeEngineStatus) else ()
        return next((m for m in models if m.name == ALIAS), ModelStatus(name=ALIAS))

    def route(self, node: str) -> Route | None:
        """Return what the node's gateway is told to serve."""
        return read_routing(node_folder(self.fleet.root, node) / ROUTING_FILE).models.get(ALIAS)

    def serving(self) -> dict[str, str]:
        """Return node -> digest of the engine that answers."""
        return {n.name: route.active.digest for n in self.nodes() if (route := self.route(n.name))}

    def wait(self, done: Callable[[], bool], timeout_s: float, what: str) -> float:
        """Poll until `done()`; return the seconds it took. Raises NodeError saying what did not happen and why."""
        started = time.monotonic()
        if not came_true(done, timeout_s):
            ready = "; ".join(f"{c.type}={c.status} {c.reason}: {c.message}" for c in self.rollout().conditions)
            states = ", ".join(
                f"{n.name}: {c.phase} {c.reason} {c.message}" if (c := self.node(n.name).candidate) else n.name
                for n in self.nodes()
            )
            message = f"{what} did not happen within {timeout_s:.0f} s ({ready}) ({states})"
            raise NodeError(Reason.PROGRESS_DEADLINE_EXCEEDED, message, where=str(self.fleet.root / "logs"))
        return time.monotonic() - started

    def watch_answers(self, nodes: tuple[str, ...], count: int, timeout_s: float = 60.0) -> None:
        """Wait until each of the cameras has `count` answers waiting."""
        self.wait(lambda: all(self.cameras[n].count() >= count for n in nodes), timeout_s, f"{count} answers")

    def take(self) -> list[Answer]:
        """Return all answers since the last call, in order of sending."""
        return sorted((a for c in self.cameras.values() for a in c.take()), key=lambda a: a.sent)

    def close(self, act: Act, answers: list[Answer], *, started: float) -> None:
        """Fill in what the clients saw during the act, and the promise that no request failed."""
        act.requests = len(answers)
        act.failed = sum(bool(a.failed) for a in answers)
        act.retried = sum(a.retries for a in answers)
        act.bad_frames_served = len(self.truth.damaged(answers))
        act.worst_error = self.truth.worst_error(answers)
        act.seconds = round(time.monotonic() - started, 1)
        lost = next((a.failed for a in answers if a.failed), "")
        act.promise("no request failed", act.failed == 0 and act.requests > 0, lost or f"{act.requests} requests")


def reduced(spec: EngineSetSpec, device_class: str) -> Variant:
    """Return the engine of the set that a rollout picks for a class: the reduced one, else the FP32 one."""
    of_class = [v for v in spec.variants if v.target.device_class == device_class]
    return next((v for v in of_class if v.precision != "FP32"), of_class[0])


def candidate(variant: Variant) -> dict[str, str]:
    """Return `{digest, precision, class}` of a variant."""
    target = variant.target
    return {"digest": variant.artifact.digest, "precision": variant.precision, "class": target.device_class}
