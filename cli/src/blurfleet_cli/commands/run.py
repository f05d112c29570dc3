"""`blurfleet agent`, `gateway`, `triton`, `controller`: one process each, settings from `BLURFLEET_` variables."""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path

import click
from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from blurfleet.cache import cache_dir
from blurfleet.errors import NodeError
from blurfleet.reasons import Reason
from blurfleet.serving.trace import TraceUrl
from blurfleet.store.folder import FolderStore
from blurfleet_cli.fleet.keeper import die_with_parent
from blurfleet_cli.process_settings import settings_of


class ControllerSettings(BaseSettings):
    """What the controller of a folder store is started with."""

    model_config = SettingsConfigDict(env_prefix="BLURFLEET_", frozen=True, extra="ignore")

    store: Path = Field(description="root of the store folder")


class TritonProcessSettings(BaseSettings):
    """What a local node's Triton is started with: its folder, repository, key and ports on loopback."""

    model_config = SettingsConfigDict(env_prefix="BLURFLEET_", frozen=True, extra="ignore")

    node: str
    node_dir: Path
    model_repository: Path
    triton_key_file: Path
    triton_http_port: int
    triton_grpc_port: int
    triton_metrics_port: int
    trace_url: TraceUrl = Field(default="", description="OTLP/HTTP traces address of a collector; empty: no spans")


def _until_told() -> threading.Event:
    stopped = threading.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: stopped.set())
    die_with_parent()
    return stopped


@click.command()
def agent() -> None:
    """Run one node's agent until SIGTERM. Settings: BLURFLEET_NODE, _DEVICE_CLASS, _NODE_DIR, _STORE, ...

    Example: BLURFLEET_NODE=orin-0 BLURFLEET_DEVICE_CLASS=jetson-orin ... blurfleet agent
    """
    from blurfleet_agent.main import run_agent
    from blurfleet_agent.settings import AgentSettings

    die_with_parent()
    run_agent(settings_of(AgentSettings, "agent"))


@click.command()
def gateway() -> None:
    """Run one node's gateway until SIGTERM. Settings: BLURFLEET_NODE_DIR, _TRITON_GRPC, _GATEWAY_PORT, ...

    Example: BLURFLEET_NODE_DIR=... BLURFLEET_TRITON_GRPC=127.0.0.1:8001 blurfleet gateway
    """
    from blurfleet_preprocess.main import serve
    from blurfleet_preprocess.settings import GatewaySettings

    die_with_parent()
    serve(settings_of(GatewaySettings, "gateway"))


@click.command()
def controller() -> None:
    """Run the rollout controller over a store folder until SIGTERM. Setting: BLURFLEET_STORE.

    Example: BLURFLEET_STORE=out/fleet/store blurfleet controller
    """
    from blurfleet.logs import log_json
    from blurfleet_operator.controller import run

    log_json(service="controller")
    settings = settings_of(ControllerSettings, "controller")
    stopped = _until_told()
    run(FolderStore(settings.store), stopped=stopped.is_set)


@click.command()
def triton() -> None:
    """Run one node's real Triton until SIGTERM; exit code 1 if it ends by itself.

    Example: BLURFLEET_NODE=orin-0 BLURFLEET_NODE_DIR=... blurfleet triton
    """
    from blurfleet.store.atomic import write_atomic
    from blurfleet_agent.settings import RUNTIME_NAMES, read_key
    from blurfleet_agent.tritonenv import ensure_environment
    from blurfleet_agent.tritonserver import Ports, TritonServer, TritonSettings, new_shm_prefix

    chosen = settings_of(TritonProcessSettings, "triton")
    stopped = _until_told()
    ports = Ports(http=chosen.triton_http_port, grpc=chosen.triton_grpc_port, metrics=chosen.triton_metrics_port)
    settings = TritonSettings(
        model_repository=chosen.model_repository,
        key=read_key(chosen.triton_key_file),
        ports=ports,
        shm_prefix=new_shm_prefix(),
        trace_url=chosen.trace_url or None,
        node=chosen.node,
    )
    environment = ensure_environment(cache_dir())
    write_atomic(chosen.node_dir / RUNTIME_NAMES, "\n".join(environment.packages()).encode())
    with TritonServer(environment, settings, log=chosen.node_dir / "triton.log") as server:
        while not stopped.wait(0.2):
            if not server.running():
                raise NodeError(Reason.TRITON_UNREACHABLE, f"ended by itself: {server.last_words()}", where=chosen.node)
    sys.exit(0)
