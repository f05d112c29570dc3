"""What a rollout's decision looks at, and what it returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Literal

from blurfleet.api.contract import ContractSpec
from blurfleet.api.engineset import EngineSetSpec
from blurfleet.api.meta import Condition, condition
from blurfleet.api.nodeengine import (
    DEVICE_CLASSES,
    CandidateStatus,
    ModelStatus,
    NodeEngineSpec,
    NodeEngineStatus,
    NodeModel,
)
from blurfleet.api.policy import PolicySpec
from blurfleet.api.quarantine import QuarantineSpec
from blurfleet.api.rollout import RolloutSpec, RolloutStatus
from blurfleet.reasons import Reason

HEARTBEAT_LIMIT_S = 90.0


def instant(text: str) -> float | None:
    """Return an RFC 3339 timestamp in seconds since the epoch, None where it is empty or unreadable."""
    try:
        return datetime.fromisoformat(text).timestamp() if text else None
    except ValueError:
        return None


@dataclass(frozen=True, kw_only=True)
class NodeView:
    """One node as its NodeEngine shows it.

    `heard` tells whether a listener hears it; None where there is none, as on one machine with one clock. `behind` is
    by how many seconds the node's clock is behind the listener's (ahead: negative), 0 where it is right.
    """

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    spec: NodeEngineSpec
    status: NodeEngineStatus
    heard: bool | None = None
    behind: float = 0.0

    @property
    def device_class(self) -> str:
        """Return the node's class."""
        return self.spec.device_class

    @property
    def known_class(self) -> bool:
        """Tell whether the class has limits at all."""
        return self.device_class in DEVICE_CLASSES

    def reachable(self, now: float) -> bool:
        """Tell whether the agent was heard from within 90 s and said what the node is."""
        if not self.status.facts.runtime_version:
            return False
        if self.heard is not None:
            return self.heard
        return self._beat is not None and now - self._beat <= HEARTBEAT_LIMIT_S

    @cached_property
    def _beat(self) -> float | None:
        return instant(self.status.heartbeat)

    @cached_property
    def _observed(self) -> Mapping[str, ModelStatus]:
        return {m.name: m for m in self.status.models}

    def wanted(self, model: str) -> NodeModel | None:
        """Return what the node is told about `model`."""
        return next((m for m in self.spec.models if m.name == model), None)

    def observed(self, model: str) -> ModelStatus | None:
        """Return what the node says about `model`."""
        return self._observed.get(model)

    def candidate(self, model: str, digest: str, attempt: str) -> CandidateStatus | None:
        """Return the candidate's status, only when it is about this digest and attempt."""
        observed = self.observed(model)
        found = observed.candidate if observed else None
        return found if found and found.digest == digest and found.attempt in ("", attempt) else None

    def serving_digest(self, model: str) -> str:
        """Return the digest that answers clients now, empty where none does."""
        observed = self.observed(model)
        return observed.serving.digest if observed and observed.serving else ""

    def stands_on(self, model: str, digest: str) -> bool:
        """Tell whether the digest answers clients as primary: not tripped, or re-proven since."""
        observed = self.observed(model)
        serving = observed.serving if observed else None
        return serving is not None and (serving.digest, serving.role) == (digest, "Primary")

    def said(self, model: str, kind: str) -> Condition | None:
        """Return a condition of the model, else of the node."""
        observed = self.observed(model)
        found = condition(observed.conditions, kind) if observed else None
        return found or condition(self.status.conditions, kind)


@dataclass(frozen=True, kw_only=True)
class RolloutView:
    """One rollout with what identifies and orders it."""

    name: str
    namespace: str
    uid: str = ""
    generation: int = 0
    created: str = ""
    spec: RolloutSpec
    status: RolloutStatus

    @property
    def age_key(self) -> tuple[str, str, str]:
        """Return what orders rollouts, the oldest first."""
        return (self.created, self.namespace, self.name)


@dataclass(frozen=True, kw_only=True)
class Observation:
    """All that the decision about one rollout depends on; sets, policies and contracts are of its namespace.

    `unreadable` names the nodes that are there though this version cannot read what they are told.
    """

    rollout: RolloutView
    others: tuple[RolloutView, ...] = ()
    sets: Mapping[str, EngineSetSpec] = field(default_factory=dict)
    policies: Mapping[str, PolicySpec] = field(default_factory=dict)
    contracts: Mapping[str, ContractSpec] = field(default_factory=dict)
    contract_hashes: Mapping[str, str] = field(default_factory=dict)
    nodes: tuple[NodeView, ...] = ()
    unreadable: tuple[str, ...] = ()
    quarantines: tuple[QuarantineSpec, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Said:
    """One transition for the event log, of the rollout. `reverted` names the class that goes back by it, else empty."""

    reason: Reason
    message: str
    reverted: str = ""
    type: Literal["Normal", "Warning"] = "Normal"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One check's answer: the reason and a sentence a person can act on."""

    reason: Reason
    message: str


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What to write. `models` holds the nodes that are told something; a node that is not there is left alone."""

    status: RolloutStatus
    models: Mapping[str, NodeModel] = field(default_factory=dict)
    quarantines: tuple[QuarantineSpec, ...] = ()
    events: tuple[Said, ...] = ()
    requeue_after: float = 60.0
