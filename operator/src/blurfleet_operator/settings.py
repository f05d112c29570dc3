"""The operator's settings: one frozen object per process, read from `BLURFLEET_` variables in its main only."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Self

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from blurfleet_operator.decide.observation import HEARTBEAT_LIMIT_S


class ClassRule(BaseModel):
    """Nodes that have all of `labels` (values may hold * and ?) are of `device_class`."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    device_class: str = Field(alias="class")
    labels: dict[str, str] = Field(min_length=1)


# First what a person says, then what GPU feature discovery and JetPack nodes say of themselves. Orin is compute
# capability 8.7; its labels lack gpu.product where only the device plugin runs.
DEFAULT_CLASSES: tuple[ClassRule, ...] = (
    ClassRule(device_class="a100", labels={"blurfleet.dev/class": "a100"}),
    ClassRule(device_class="jetson-orin", labels={"blurfleet.dev/class": "jetson-orin"}),
    ClassRule(device_class="a100", labels={"nvidia.com/gpu.product": "*A100*"}),
    ClassRule(
        device_class="jetson-orin", labels={"nvidia.com/gpu.compute.major": "8", "nvidia.com/gpu.compute.minor": "7"}
    ),
    ClassRule(device_class="jetson-orin", labels={"nvidia.com/gpu.product": "*Orin*"}),
    ClassRule(device_class="jetson-orin", labels={"nvidia.com/device-plugin.config": "jetson-orin*"}),
)


class OperatorSettings(BaseSettings):
    """What the operator is started with. Times are seconds."""

    model_config = SettingsConfigDict(env_prefix="BLURFLEET_", frozen=True, extra="ignore")

    namespace: str = Field(default="blurfleet-system", description="where the agents keep their Leases")
    kubeconfig: Path | None = Field(
        default=None,
        validation_alias=AliasChoices("BLURFLEET_KUBECONFIG", "KUBECONFIG"),
        description="how the API server is reached; absent: the pod's own account",
    )
    classes: tuple[ClassRule, ...] = Field(
        default=DEFAULT_CLASSES, description="which Node is of which class; the first rule that matches holds"
    )
    resync_s: float = Field(default=10.0, gt=0, description="a pass at least this often: time passes too")
    relist_s: float = Field(default=300.0, gt=0, description="everything is listed anew at least this often")
    silent_after_s: float = Field(
        default=HEARTBEAT_LIMIT_S, gt=0, description="a node that says nothing for so long is Unknown"
    )
    gap_s: float = Field(default=0.05, ge=0, description="rest between passes, so that bursts are taken together")
    stale_after_s: float = Field(default=60.0, gt=0, description="no turn for so long: not alive")
    writers: int = Field(default=8, ge=1, le=64, description="nodes that are told something at the same time")
    history_limit: int = Field(default=100, ge=1, le=10000, description="QualityRuns that are kept of each rollout")
    health_address: str = Field(default="127.0.0.1:8080", description="where liveness is asked, as /healthz")
    priority: int | None = Field(
        default=None,
        description="rank among operators of the same `peering`; the highest acts. None: there is no other",
    )
    peering: str = Field(default="blurfleet-operator", description="the ClusterKopfPeering that operators meet in")
    peering_lifetime_s: int = Field(
        default=15,
        ge=12,
        description="after so long without a word an operator is taken for gone; kopf renews 5-10 s ahead",
    )
    identity: str = Field(
        default_factory=lambda: f"{socket.gethostname()}-{os.getpid()}",
        validation_alias=AliasChoices("BLURFLEET_IDENTITY", "POD_ID"),
        description="its name among its peers; a pod gives its own",
    )
    metrics_port: int = Field(default=9100, ge=0, le=65535, description="0 takes a free one")
    metrics_host: str = Field(default="127.0.0.1", description="where metrics are served")

    @model_validator(mode="after")
    def _looks_before_silence(self) -> Self:
        if self.silent_after_s < 2 * self.resync_s:
            # A look that comes later than that begins to listen anew, as after an outage of its own.
            message = f"BLURFLEET_SILENT_AFTER_S ({self.silent_after_s:g}) is less than two of BLURFLEET_RESYNC_S"
            raise ValueError(f"{message} ({self.resync_s:g}): silence would never be noticed")
        return self
