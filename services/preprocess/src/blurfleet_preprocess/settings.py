"""What one gateway process is started with."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from blurfleet.serving.routing import ROUTING_FILE
from blurfleet.serving.sharedtensors import SharedSettings
from blurfleet.serving.trace import TraceUrl


class GatewaySettings(BaseSettings):
    """Read once from `BLURFLEET_` variables in the process's main."""

    model_config = SettingsConfigDict(env_prefix="BLURFLEET_", frozen=True, extra="ignore")

    node: str = Field(default="local", description="the node's name: in logs and in stream names")
    node_dir: Path = Field(description="the node folder: routing file, frame socket, gateway.json")
    triton_grpc: str = Field(description="host:port of this node's Triton")
    triton_shared_memory: bool = Field(
        default=True, description="share tensors with a Triton on loopback, not send them"
    )
    gateway_host: str = Field(default="127.0.0.1", min_length=1, description="address that requests are taken on")
    gateway_port: int = Field(default=8090, ge=0, le=65535, description="0 takes a free one, written to gateway.json")
    gateway_grpc_port: int = Field(default=0, ge=0, le=65535, description="KServe v2 over gRPC; 0 takes a free one")
    alias: str = Field(default="bokeh", description="the alias that picture endpoints ask")

    infer_timeout_s: float = Field(default=5.0, gt=0, description="one inference; a 320 frame takes 0.3 s on two cores")
    ready_cache_s: float = Field(default=1.0, ge=0, description="probes share one readiness inference for this long")
    max_body_bytes: int = Field(default=32 << 20, gt=0, description="larger bodies are refused unread")
    held_body_bytes: int = Field(default=256 << 20, gt=0, description="all bodies together; beyond it is answered 503")
    picture_bytes: int = Field(default=2 << 30, gt=0, description="memory of all pictures at work, 13 a pixel")
    body_grace_s: float = Field(default=10.0, gt=0, description="a body takes this long, and a second per 16 KiB")
    request_timeout_s: float = Field(default=30.0, gt=0, description="one request in all; clients may ask for less")
    max_connections: int = Field(
        default=512, ge=1, description="HTTP connections; beyond it the longest idle is closed"
    )
    header_timeout_s: float = Field(default=10.0, gt=0, description="seconds until a request's header must be whole")
    drain_s: float = Field(default=0.0, ge=0, description="seconds between not ready and no new connections at a stop")
    evidence: bool = Field(default=True, description="false: no picture of any client is kept as evidence")
    workers: int = Field(default=8, ge=1, description="requests worked on at once; Triton queues their inferences")
    waiting: int = Field(default=32, ge=0, description="requests that may wait for a worker; more are answered 503")
    tls_cert_file: Path | None = Field(default=None, description="PEM chain, for both protocols; read again on change")
    tls_key_file: Path | None = Field(default=None, description="its key")
    tokens_file: Path | None = Field(default=None, description="lines `client: sha256:<hash of its token>`")
    open_door: bool = Field(default=False, description="serve other machines without TLS or without tokens")
    host_names: str = Field(
        default="", description="names of a proxy before the gateway, by commas: for Host on loopback, and for pages"
    )
    client_rate: float = Field(default=0, ge=0, description="requests a second of one client; 0 is no limit")
    client_burst: int = Field(default=30, ge=1, description="requests of one client at once after a pause")
    client_at_once: int = Field(default=0, ge=0, description="requests of one client under way; 0 is no limit")
    trace_url: TraceUrl = Field(default="", description="OTLP/HTTP traces address of a collector; empty: no spans")
    trace_share: float = Field(default=1.0, ge=0, le=1, description="share of the traces that begin here which is sent")
    streams: int = Field(default=32, ge=0, description="frame streams open at once; each holds three frames at most")
    stream_frame_bytes: int = Field(default=8 << 20, gt=0, description="a WebSocket message that is larger closes it")
    stream_idle_s: float = Field(default=30.0, gt=0, description="a stream without frames is closed after this")
    stream_send_s: float = Field(default=10.0, gt=0, description="so long may a client leave an answer unread")
    frame_queue: int = Field(default=32, ge=1, description="samples kept for the agent; 0.4 MB each at 160x160")

    def shared_memory(self) -> SharedSettings | None:
        """What is shared with Triton: a region for each worker of both protocols."""
        owner = str(self.node_dir.absolute())
        return SharedSettings(owner=owner, regions=2 * self.workers) if self.triton_shared_memory else None

    @property
    def routing_file(self) -> Path:
        """What every request looks at first."""
        return self.node_dir / ROUTING_FILE

    @property
    def frames_socket(self) -> Path:
        """Where the agent listens for samples."""
        return self.node_dir / "frames.sock"

    @property
    def address_file(self) -> Path:
        """Where the address and pid are written once requests are taken."""
        return self.node_dir / "gateway.json"
