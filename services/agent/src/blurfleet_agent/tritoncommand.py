"""What a Triton server is started with: its settings, its command line, the ports it takes."""

from __future__ import annotations

import secrets
import socket
import sys
from dataclasses import dataclass, field
from pathlib import Path

from blurfleet.errors import NodeError
from blurfleet.reasons import Reason
from blurfleet_agent import tritonkeeper
from blurfleet_agent.tritonenv import TritonEnvironment

LOOPBACK = "127.0.0.1"
KEY_HEADER = "x-blurfleet-key"
SHM_PREFIX = "blurfleet_triton_"
FORWARDED_HEADERS = "(traceparent|tracestate|x-blurfleet-.*)"


@dataclass(frozen=True, kw_only=True)
class Ports:
    """The server's three ports on the loopback interface."""

    http: int
    grpc: int
    metrics: int

    def all(self) -> tuple[int, int, int]:
        """Return the ports in the order http, grpc, metrics."""
        return (self.http, self.grpc, self.metrics)


@dataclass(frozen=True, kw_only=True)
class TritonSettings:
    """What a server is started with.

    `key` opens the model repository API. It is visible in this user's process list, which is as far as a loopback-only
    server has to defend. `trace_url` is an OTLP/HTTP traces address, None for no tracing; `trace_rate` 0 traces only
    requests that carry a trace context. `service_name` and `node` are the service and the instance that its spans name.
    `exit_timeout_s` is how long running requests may take at a stop; the process
    is killed `kill_after_s` after the stop began.
    """

    model_repository: Path
    key: str = field(repr=False)
    ports: Ports
    shm_prefix: str
    load_models: tuple[str, ...] = ()
    trace_url: str | None = None
    trace_rate: int = 0
    service_name: str = "blurfleet-triton"
    node: str = ""
    exit_timeout_s: int = 10
    kill_after_s: float = 15.0
    load_threads: int = 4


def new_key() -> str:
    """Return a fresh random key for the repository API: 32 hex digits."""
    return secrets.token_hex(16)


def new_shm_prefix() -> str:
    """Return a prefix for shared-memory names that no other server has."""
    return f"{SHM_PREFIX}{secrets.token_hex(6)}_"


def pick_ports() -> Ports:
    """Return three different ports that are free now. Raises NodeError if the machine has none."""
    sockets = [socket.socket() for _ in range(3)]
    try:
        for one in sockets:
            one.bind((LOOPBACK, 0))
        http, grpc, metrics = (one.getsockname()[1] for one in sockets)
    except OSError as error:
        raise NodeError(Reason.PORT_IN_USE, f"no free port on {LOOPBACK}: {error}") from error
    finally:
        for one in sockets:
            one.close()
    return Ports(http=http, grpc=grpc, metrics=metrics)


def check_ports_free(ports: Ports) -> None:
    """Raise NodeError naming the first port that somebody listens on: a client would talk to that server, silently."""
    for port in ports.all():
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((LOOPBACK, port))
            except OSError as error:
                raise NodeError(
                    Reason.PORT_IN_USE,
                    f"port {port} on {LOOPBACK} is taken",
                    where=f"{LOOPBACK}:{port}",
                    fix="stop what listens there or choose another port",
                ) from error


def server_command(env: TritonEnvironment, settings: TritonSettings) -> tuple[list[str], dict[str, str]]:
    """Return the server's argument list and its whole environment (nothing is inherited)."""
    ports = settings.ports
    argv = [
        str(env.server_bin),
        f"--model-repository={settings.model_repository}",
        f"--backend-directory={env.backend_dir}",
        f"--cache-directory={env.caches_dir}",
        "--model-control-mode=explicit",
        "--strict-readiness=false",  # else one failed candidate makes the serving engines NotReady
        "--allow-gpu-metrics=false",
        "--log-format=ISO8601",
        f"--exit-timeout-secs={settings.exit_timeout_s}",
        f"--model-load-thread-count={settings.load_threads}",
        f"--backend-config=python,shm-region-prefix-name={settings.shm_prefix}",
        f"--grpc-restricted-protocol=model-repository:{KEY_HEADER}={settings.key}",
        f"--http-restricted-api=model-repository:{KEY_HEADER}={settings.key}",
        f"--grpc-header-forward-pattern={FORWARDED_HEADERS}",
        f"--http-header-forward-pattern={FORWARDED_HEADERS}",
    ]
    for protocol, port in (("http", ports.http), ("grpc", ports.grpc), ("metrics", ports.metrics)):
        argv += [f"--{protocol}-address={LOOPBACK}", f"--{protocol}-port={port}"]
    argv += [f"--load-model={name}" for name in settings.load_models]
    if settings.trace_url is not None:
        argv += [
            "--trace-config=mode=opentelemetry",
            "--trace-config=level=TIMESTAMPS",
            f"--trace-config=rate={settings.trace_rate}",
            f"--trace-config=opentelemetry,url={settings.trace_url}",
            f"--trace-config=opentelemetry,resource=service.name={settings.service_name}",
            *([f"--trace-config=opentelemetry,resource=service.instance.id={settings.node}"] if settings.node else []),
            "--trace-config=opentelemetry,bsp_schedule_delay=500",
        ]
    environ = {
        "PATH": f"{env.python.parent}:/usr/bin:/bin",  # the stub takes the first python3 on it
        "LD_LIBRARY_PATH": str(env.lib_path),
        "PYTHONDONTWRITEBYTECODE": "1",  # for stubs that honour it; see BYTECODE_BLOCKER for the one that does not
        "PYTHONUNBUFFERED": "1",
        "LANG": "C.UTF-8",
    }
    return argv, environ


def keeper_command(env: TritonEnvironment, settings: TritonSettings) -> tuple[list[str], dict[str, str]]:
    """Return `server_command` wrapped in the keeper: what a supervisor runs so that a stop leaves nothing behind.

    SIGTERM stops it in order; give it `kill_after_s` and 5 s more before SIGKILL.
    """
    argv, environ = server_command(env, settings)
    keeper = [sys.executable, "-I", "-S", str(Path(tritonkeeper.__file__))]
    return [*keeper, settings.shm_prefix, str(settings.kill_after_s), *argv], environ
