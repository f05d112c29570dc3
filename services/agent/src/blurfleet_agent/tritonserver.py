"""One Triton server process: its command line, its start, its stop. It never outlives its owner."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from blurfleet.deadline import came_true
from blurfleet.errors import EngineError, EngineTimeout, NodeError
from blurfleet.reasons import Reason
from blurfleet.serving.triton import TritonClient
from blurfleet_agent import tritonkeeper
from blurfleet_agent.tritoncommand import (
    LOOPBACK,
    Ports,
    TritonSettings,
    check_ports_free,
    keeper_command,
    new_key,
    new_shm_prefix,
    pick_ports,
)
from blurfleet_agent.tritonenv import TritonEnvironment

__all__ = [
    "Ports",
    "StopReport",
    "TritonServer",
    "TritonSettings",
    "check_ports_free",
    "new_key",
    "new_shm_prefix",
    "pick_ports",
]

_START_POLL_S = 0.05
PORT_WAIT_S = 5.0
_LOADING = re.compile(r'"loading: ([^":]+):\d+"')
_NOISE = re.compile(r"CUDA|Cuda|pinned_memory")


def _await_ports(ports: Ports, wait_s: float) -> None:
    def free() -> bool:
        with contextlib.suppress(NodeError):
            check_ports_free(ports)
            return True
        return False

    if not came_true(free, wait_s, poll_s=_START_POLL_S):
        check_ports_free(ports)


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

            def ready() -> bool:
                if not self.running():
                    raise EngineError(
                        Reason.SERVER_NOT_READY, f"the Triton server ended: {self.last_words()}", where=str(self.log)
                    )
                return client.server_ready(timeout_s=1.0)

            if came_true(ready, timeout_s, poll_s=_START_POLL_S):
                return time.monotonic() - began
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
