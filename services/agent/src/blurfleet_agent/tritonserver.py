"""One Triton server process: its command line, its start, its stop. It never outlives its owner."""

from __future__ import annotations

import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from blurfleet.errors import EngineError, EngineTimeout, NodeError
from blurfleet.reasons import Reason
from blurfleet.serving.triton import TritonClient
from blurfleet_agent import tritonkeeper
from blurfleet_agent.tritonenv import TritonEnvironment

LOOPBACK = "127.0.0.1"
KEY_HEADER = "x-blurfleet-key"
SHM_PREFIX = "blurfleet_triton_"
FORWARDED_HEADERS = "(traceparent|tracestate|x-blurfleet-.*)"
_START_POLL_S = 0.05
PORT_WAIT_S = 5.0
_LOADING = re.compile(r'"loading: ([^":]+):\d+"')
_NOISE = re.compile(r"CUDA|Cuda|pinned_memory")


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
    requests that carry a trace context. `exit_timeout_s` is how long running requests may take at a stop; the process
    is killed `kill_after_s` after the stop began.
    """

    model_repository: Path
    key: str = field(repr=False)
    ports: Ports
    shm_prefix: str
    load_models: tuple[str, ...] = ()
    trace_url: str | None = None
    trace_rate: int = 0
    service_name: str = "triton"
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


def _await_ports(ports: Ports, wait_s: float) -> None:
    until = time.monotonic() + wait_s
    while True:
        try:
            return check_ports_free(ports)
        except NodeError:
            if not time.monotonic() < until:
                raise
            time.sleep(_START_POLL_S)


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


@dataclass(frozen=True, kw_only=True)
class StopReport:
    """How a stop went: `clean` is false when the process had to be killed."""

    clean: bool
    seconds: float
    swept: tuple[str, ...] = ()


class TritonServer:
    """A running server. Use as a context manager, or call `start` and `stop`; both are safe to call twice."""

    def __init__(self, env: TritonEnvironment, settings: TritonSettings, *, log: Path) -> None:
        self._env = env
        self.settings = settings
        self.log = log
        self._keeper: subprocess.Popen[str] | None = None
        self._pid: int | None = None
        self._log_from = 0

    @property
    def pid(self) -> int | None:
        """The server's process id, which is its group's too; None before the start."""
        return self._pid

    @property
    def grpc_address(self) -> str:
        """`host:port` of the gRPC service."""
        return f"{LOOPBACK}:{self.settings.ports.grpc}"

    @property
    def http_address(self) -> str:
        """`host:port` of the HTTP service."""
        return f"{LOOPBACK}:{self.settings.ports.http}"

    @property
    def metrics_url(self) -> str:
        """Where Prometheus scrapes the server."""
        return f"http://{LOOPBACK}:{self.settings.ports.metrics}/metrics"

    def start(self, *, port_wait_s: float = PORT_WAIT_S) -> None:
        """Start the process; returns before the server is ready.

        Raises NodeError if a port is still taken after `port_wait_s`: a predecessor that was killed lets go of its
        ports only when its own stop is through.
        """
        if self.running():
            return
        self.stop()  # lets go of what a crashed one left
        _await_ports(self.settings.ports, port_wait_s)
        argv, environ = keeper_command(self._env, self.settings)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as out:
            self._log_from = out.tell()
            self._keeper = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=out,
                env=environ,
                start_new_session=True,  # Ctrl-C at a terminal reaches the owner, which then stops the server in order
                text=True,
            )
        assert self._keeper.stdout is not None
        first = self._keeper.stdout.readline().strip()
        if not first.isdigit():
            raise NodeError(Reason.SERVER_NOT_READY, "the Triton server could not be started", where=str(self.log))
        self._pid = int(first)

    def running(self) -> bool:
        """Tell whether the process runs (it may not be ready)."""
        return self._keeper is not None and self._keeper.poll() is None

    def returncode(self) -> int | None:
        """Return the exit status of a server that ended, None while it runs or was never started."""
        return None if self._keeper is None else self._keeper.poll()

    def wait_ready(self, timeout_s: float) -> float:
        """Wait until the server answers; return the seconds it took.

        Raises EngineError with the log's last words if it ends first, EngineTimeout after `timeout_s`.
        """
        began = time.monotonic()
        with TritonClient(self.grpc_address) as client:
            while time.monotonic() - began < timeout_s:
                if not self.running():
                    raise EngineError(
                        Reason.SERVER_NOT_READY, f"the Triton server ended: {self.last_words()}", where=str(self.log)
                    )
                if client.server_ready(timeout_s=1.0):
                    return time.monotonic() - began
                time.sleep(_START_POLL_S)
        raise EngineTimeout(
            Reason.SERVER_NOT_READY, f"the Triton server is not ready after {timeout_s:g} s", where=str(self.log)
        )

    def last_words(self) -> str:
        """Return the last error line of the log that is not about the missing GPU, empty if there is none."""
        try:
            lines = self._log_text().splitlines()
        except OSError:
            return ""
        wrong = [
            line for line in lines if (" E " in line or line.startswith(("error", "E"))) and not _NOISE.search(line)
        ]
        return (wrong or lines or [""])[-1].strip()

    def loads_logged(self) -> Counter[str]:
        """Return how often each model was loaded since the server's start, from its log. Raises OSError."""
        return Counter(_LOADING.findall(self._log_text()))

    def _log_text(self) -> str:
        with self.log.open("rb") as log:
            log.seek(self._log_from)
            return log.read().decode(errors="replace")

    def stop(self) -> StopReport:
        """Stop the server: SIGTERM, then after the settings' deadline SIGKILL to its whole group.

        Afterwards neither a process nor a shared-memory file of it is left, whatever it was doing.
        """
        began = time.monotonic()
        keeper, self._keeper = self._keeper, None
        if keeper is None:
            return StopReport(clean=True, seconds=0.0)
        assert keeper.stdin is not None
        assert keeper.stdout is not None
        keeper.stdin.close()
        try:
            status = keeper.wait(timeout=self.settings.kill_after_s + 10.0)
        except subprocess.TimeoutExpired:
            keeper.kill()  # its death signal takes the server along
            status = keeper.wait()
        keeper.stdout.close()
        swept = tritonkeeper.sweep(self.settings.shm_prefix)
        self._pid = None
        return StopReport(clean=status == 0, seconds=time.monotonic() - began, swept=tuple(swept))

    def kill(self) -> None:
        """Kill the server process at once, as a crash would; the keeper sweeps up after it."""
        if self._keeper is not None and self._pid is not None and self.running():
            os.kill(self._pid, signal.SIGKILL)

    def __enter__(self) -> TritonServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
