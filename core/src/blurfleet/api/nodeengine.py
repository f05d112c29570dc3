"""NodeEngine: what one node is to serve (spec, by the operator) and what it does serve (status, by its agent alone)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from blurfleet.api.base import Digest, Duration, Model, Precision
from blurfleet.api.contract import ContractSpec
from blurfleet.api.engineset import Blob, InputProfile
from blurfleet.api.meta import Condition
from blurfleet.api.policy import PolicySpec

DeviceClass = Literal["a100", "jetson-orin"]
DEVICE_CLASSES: tuple[str, ...] = ("a100", "jetson-orin")


class EngineRef(Model):
    """One engine of one set: all the agent needs to fetch, check, load and judge it."""

    set: str
    variant: str
    digest: Digest
    precision: Precision
    artifact: Blob
    build_record: Blob
    memory_bytes: int = 0


class NodeModel(Model):
    """One served model. `golden`, `profile` and `oracle` are of the set of `candidate`, else of `primary`.

    `attempt` is the rollout's identity and retry token: a latch holds for (model, digest, attempt).
    """

    name: str
    attempt: str = ""
    primary: EngineRef | None = None
    fallback: EngineRef | None = None
    candidate: EngineRef | None = None
    oracle: EngineRef | None = None
    golden: Blob | None = None
    profile: InputProfile = InputProfile()
    policy: PolicySpec = PolicySpec()
    policy_name: str = ""
    contract: ContractSpec = ContractSpec()
    contract_hash: str = ""
    drained: bool = Field(
        default=False,
        description="the node's gateway says it is not ready: the device is suspect and another of its class answers",
    )


class NodeEngineSpec(Model):
    """Desired state of one node."""

    device_class: str = Field(description="class of the device; the policy's limits follow it")
    models: tuple[NodeModel, ...] = Field(default=(), max_length=32)
    quarantined: tuple[str, ...] = Field(default=(), max_length=1024, description="digests this node must never serve")
    answer_after: Duration | None = Field(
        default=None, description="what is no bad news of an order is reported this long after it, or up to twice that"
    )


class Serving(Model):
    """What the alias points at now."""

    digest: str
    engine: str
    set: str = ""
    role: Literal["Primary", "Fallback"]
    precision: Precision
    epoch: int


CandidatePhase = Literal[
    "Staging", "Loading", "Golden", "GoldenPassed", "GoldenFailed", "Shadowing", "Proven", "Refused", "Failed"
]


class Figure(Model):
    """One judged figure: value and limit as JSON-safe text, verdict, and over how many valid samples."""

    metric: str
    value: str
    limit: str = ""
    verdict: Literal["Pass", "Fail", "Inconclusive"]
    samples: int = 1


class CandidateStatus(Model):
    """How far a candidate came on this node."""

    digest: str
    set: str = ""
    attempt: str = ""
    phase: CandidatePhase
    reason: str
    message: str = ""
    oracle_passed: bool | None = None
    samples_valid: int = 0
    samples_required: int = 0
    figures: tuple[Figure, ...] = Field(default=(), max_length=32)
    evidence: str = ""


class TripStatus(Model):
    """The last trip on this node; it stays until another one."""

    digest: str
    set: str = ""
    attempt: str = ""
    reason: str
    stage: Literal["Golden", "Shadow", "Live"] = "Live"
    value: str = ""
    limit: str = ""
    metric: str = ""
    stream: str = ""
    frame: int = 0
    frames_to_detect: int = 0
    epoch: int = 0
    at: str = ""
    swap_ms: float = 0.0
    latched: bool = True
    evidence: str = ""


class ModelStatus(Model):
    """One model on this node."""

    name: str
    serving: Serving | None = None
    guard: str = "Idle"
    candidate: CandidateStatus | None = None
    last_trip: TripStatus | None = None
    trips: int = 0
    samples_valid: int = 0
    conditions: tuple[Condition, ...] = ()


class NodeFacts(Model):
    """What the node is: matched against variants' targets."""

    sm: int = 0
    platform: str = ""
    runtime_version: str = ""
    triton_version: str = ""
    memory_total_bytes: int = 0
    memory_available_bytes: int = 0
    memory_source: str = Field(
        default="", description="NVML, Unified, Host, or HostNoNvml: the machine's, as the GPU's own cannot be read"
    )
    driver_version: str = ""
    agent_version: str = ""
    capabilities: tuple[str, ...] = ()
    metrics_address: str = ""


class NodeEngineStatus(Model):
    """Observed state of one node, written by its agent alone."""

    observed_generation: int = 0
    simulated: bool = False
    heartbeat: str = ""
    facts: NodeFacts = NodeFacts()
    models: tuple[ModelStatus, ...] = ()
    conditions: tuple[Condition, ...] = ()
    active: str = ""
    precision: str = ""
    fallback: str = ""
    armed: str = ""
    last_swap: str = ""
    connected: str = ""
