"""The agent's settings: one frozen object per process, read from `BLURFLEET_` variables in the process's main only."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from blurfleet.errors import NodeError
from blurfleet.reasons import Reason
from blurfleet.serving.trace import TraceUrl

MIB = 1 << 20
# In the node folder, written by whoever starts Triton: names of its libraries and packages, one a line.
RUNTIME_NAMES = "triton-runtime.txt"


def read_key(path: Path) -> str:
    """Return the key of Triton's repository API that `path` holds. Raises NodeError(UnreadableFile)."""
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise NodeError(
            Reason.UNREADABLE_FILE,
            f"the key of the repository API cannot be read: {error}",
            where=str(path),
            fix="set BLURFLEET_TRITON_KEY_FILE to the file that Triton was started with",
        ) from error


class AgentSettings(BaseSettings):
    """What one node's agent is started with. Times are seconds, sizes bytes, shares 0 to 1."""

    model_config = SettingsConfigDict(env_prefix="BLURFLEET_", frozen=True, extra="ignore")

    node: str = Field(min_length=1, description="name of this node and of its NodeEngine object")
    device_class: str = Field(description="class of the device; its own truth, checked against the NodeEngine's")
    node_dir: Path = Field(description="journal, routing file, artifacts, evidence, sockets: survives a power cut")
    store_kind: Literal["folder", "kube"] = Field(default="folder", description="where desired state is read")
    store: Path | None = Field(default=None, description="root of the store folder")
    kubeconfig: Path | None = Field(
        default=None, description="how the API server is reached; absent: the pod's account"
    )
    token_file: Path | None = Field(default=None, description="bound token, read again every minute")
    namespace: str = Field(default="blurfleet-system", description="where this node's Lease is kept")
    lease_s: float = Field(default=30.0, gt=0, description="the Lease is renewed so often; three missed: Unknown")
    triton_grpc: str = Field(description="host:port of this node's Triton")
    triton_key: SecretStr = SecretStr("")
    triton_key_file: Path | None = Field(default=None, description="holds the key of the repository API; wins over KEY")
    model_repository: Path = Field(description="Triton's model repository; only this agent writes to it")
    artifacts: str = Field(default="", description="where the forge pushes, for example https://host/path; see token")
    artifacts_token: SecretStr = Field(default=SecretStr(""), description="bearer token, shown below `artifacts` only")
    simulated: bool = Field(default=False, description="this machine lacks the device that the class names")
    sm: int = Field(default=0, ge=0, description="compute capability times ten, 0 on CPU")
    platform: str = Field(default="linux-x86_64-cpu", description="matched against the variants' targets")
    runtime_version: str = Field(default="", description="exact version of the engine runtime, for matching")

    runtime_probe: Path | None = Field(
        default=None,
        description="folder of Triton's libraries, or a list of their names; absent: what Triton left here",
    )
    gpu_index: int = Field(default=0, ge=0, description="which GPU Triton uses, as NVML counts them")

    metrics_host: str = Field(default="127.0.0.1", min_length=1, description="address that metrics are served on")
    metrics_port: int = Field(default=9102, ge=0, le=65535, description="0 takes a free one, written to agent.json")
    sample_share: float = Field(default=0.10, gt=0, le=1, description="share of device time the oracle may take")
    sample_hz: float = Field(default=20.0, gt=0, description="most samples per second and stream before a breach")

    infer_timeout_s: float = Field(default=5.0, gt=0, description="one oracle or golden inference")
    load_timeout_s: float = Field(default=60.0, gt=0, description="one engine load; a load without model.py never ends")
    load_attempts: int = Field(default=3, ge=1, description="failed loads leak memory on some backends, so few")
    retry_back_off_s: float = Field(default=2.0, gt=0, description="first wait after a failed attempt; doubles")
    retry_back_off_max_s: float = Field(default=60.0, gt=0)
    alias_ready_s: float = Field(default=2.0, gt=0, description="alias not READY by then: AliasStale, retried")
    unload_after_s: float = Field(default=30.0, ge=0, description="longest request deadline: engines stay that long")
    tick_s: float = Field(default=0.5, gt=0, description="the loop turns at least this often")
    heartbeat_s: float | None = Field(
        default=None, gt=0, description="status is written at least this often: 10 s, or 300 s where a Lease beats"
    )

    trace_url: TraceUrl = Field(default="", description="OTLP/HTTP traces address of a collector; empty: no spans")

    memory_reserve_bytes: int = Field(default=256 * MIB, ge=0, description="left free whatever is loaded")
    storage_reserve_bytes: int = Field(default=64 * MIB, ge=0, description="left free on the node folder's disk")
    artifact_budget_bytes: int = Field(default=8192 * MIB, ge=0, description="unreferenced artifacts go beyond it")
    evidence_budget_bytes: int = Field(default=256 * MIB, ge=0, description="oldest evidence goes beyond it")
    evidence_frames: int = Field(default=8, ge=1, description="frames kept per verdict")
    evidence: bool = Field(default=True, description="false: figures of live frames are kept, their pictures never")

    @model_validator(mode="after")
    def _one_store(self) -> AgentSettings:
        if self.store_kind == "folder" and self.store is None:
            raise ValueError("store: the folder store needs its root; set BLURFLEET_STORE or BLURFLEET_STORE_KIND=kube")
        return self

    @property
    def status_every_s(self) -> float:
        """Return after how many seconds an unchanged status is written again."""
        return self.heartbeat_s or (300.0 if self.store_kind == "kube" else 10.0)

    @property
    def journal_file(self) -> Path:
        """Where swaps and latches are remembered."""
        return self.node_dir / "journal.bin"

    @property
    def runtime_names(self) -> Path:
        """Where the names of the runtime's libraries or packages are read."""
        return self.runtime_probe or self.node_dir / RUNTIME_NAMES

    @property
    def routing_file(self) -> Path:
        """What the gateway reads at every request."""
        return self.node_dir / "routing.json"

    @property
    def artifacts_dir(self) -> Path:
        """Staged files by digest."""
        return self.node_dir / "artifacts"

    @property
    def evidence_dir(self) -> Path:
        """One folder per verdict."""
        return self.node_dir / "evidence"

    @property
    def frames_socket(self) -> Path:
        """Where the gateway sends samples."""
        return self.node_dir / "frames.sock"

    def key(self) -> str:
        """Return the key of the repository API. Raises NodeError where its file cannot be read."""
        if self.triton_key_file is not None:
            return read_key(self.triton_key_file)
        return self.triton_key.get_secret_value()
