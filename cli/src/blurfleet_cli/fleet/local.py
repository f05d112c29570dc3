"""Starts, watches and stops a local fleet."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import sys
import tempfile
import xmlrpc.client
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import psutil
from pydantic import ValidationError
from supervisor.xmlrpc import SupervisorTransport

from blurfleet.api.base import API_VERSION
from blurfleet.api.kinds import parse_resource
from blurfleet.cache import cache_dir
from blurfleet.deadline import came_true
from blurfleet.errors import InvalidInput, NodeError
from blurfleet.reasons import Reason
from blurfleet.store.atomic import write_atomic
from blurfleet.store.folder import FolderStore
from blurfleet_agent.tritonenv import ensure_environment
from blurfleet_agent.tritonserver import new_key
from blurfleet_cli.fleet.plan import FleetPlan, NodePlan, node_folder, supervisor_config
from blurfleet_cli.ports import free_ports

NODES: tuple[tuple[str, str], ...] = (("a100-0", "a100"), ("orin-0", "jetson-orin"), ("orin-1", "jetson-orin"))
_PORTS_PER_NODE = 6
_STOP_S = 60.0


class LocalFleet:
    """A fleet in the folder `root`. `up` may be called on a running one, `down` on a stopped one.

    `nodes` are (name, class); they are chosen at the first `up` and kept in `fleet.json`.
    """

    def __init__(self, root: Path, nodes: tuple[tuple[str, str], ...] = NODES) -> None:
        self.root = root.resolve()
        self._nodes = nodes
        self._started: subprocess.Popen[bytes] | None = None

    @property
    def store(self) -> FolderStore:
        """Return the fleet's store."""
        return FolderStore(self.root / "store")

    @property
    def plan(self) -> FleetPlan:
        """Return what `up` chose. Raises NodeError where no fleet was started here."""
        path = self.root / "fleet.json"
        try:
            return FleetPlan.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            raise NodeError(
                Reason.NOT_FOUND, "no fleet was started here", where=str(path), fix="run `blurfleet up`"
            ) from error

    def running(self) -> bool:
        """Tell whether the fleet's root process is alive."""
        return self._keeper() is not None

    def up(
        self, *, environment: Mapping[str, str] | None = None, tell: Callable[[str], None] = lambda _: None
    ) -> FleetPlan:
        """Prepare folders, objects and the Triton environment, start everything, return once processes are started.

        `environment` is for every process, and kept for later starts. Raises InvalidInput where a fleet runs that was
        started with another.
        """
        if self.running():
            if not (environment or {}).items() <= self.plan.environment.items():
                raise InvalidInput(
                    Reason.INVALID_REQUEST,
                    "the fleet runs with other settings",
                    where=str(self.root),
                    fix="run `blurfleet down` first",
                )
            return self.plan
        tell("preparing the Triton environment")
        ensure_environment(cache_dir(), progress=tell)
        plan = self._prepare(environment or {})
        config = self.root / "supervisord.conf"
        write_atomic(config, supervisor_config(self.root, plan).encode(), mode=0o600)
        Path(plan.socket).parent.mkdir(exist_ok=True, mode=0o700)
        tell(f"starting {len(plan.nodes)} nodes")
        with (self.root / "logs/keeper.log").open("ab") as log:
            keeper = self._started = subprocess.Popen(
                [sys.executable, "-m", "blurfleet_cli.fleet.keeper", str(config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        write_atomic(self.root / "keeper.pid", f"{keeper.pid} {psutil.Process(keeper.pid).create_time()}\n".encode())
        self._wait(lambda: self.processes() != {}, 30.0, "supervisord did not answer; see logs/keeper.log")
        return plan

    def down(self) -> bool:
        """Stop every process of the fleet and wait for their end; tell whether it was running."""
        keeper = self._keeper()
        if keeper is None:
            self._reap()
            return False
        family = keeper.children(recursive=True)
        keeper.send_signal(signal.SIGTERM)
        _, alive = psutil.wait_procs([keeper, *family], timeout=_STOP_S)
        for process in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._reap()
        shutil.rmtree(Path(self.plan.socket).parent, ignore_errors=True)
        (self.root / "keeper.pid").unlink(missing_ok=True)
        return True

    def _reap(self) -> None:
        """Collect the root's exit status where this process started it."""
        if self._started is not None:
            self._started.wait(_STOP_S)

    def processes(self) -> dict[str, dict[str, Any]]:
        """Return supervisord's view: name -> {state, pid, spawnerr}; empty where it does not answer."""
        try:
            with self._rpc() as rpc:
                infos = cast(list[dict[str, Any]], rpc.supervisor.getAllProcessInfo())
        except (OSError, xmlrpc.client.Error):
            return {}
        return {i["name"]: {"state": i["statename"], "pid": i["pid"], "error": i["spawnerr"]} for i in infos}

    def _rpc(self) -> xmlrpc.client.ServerProxy:
        transport = SupervisorTransport(None, None, f"unix://{self.plan.socket}")
        return xmlrpc.client.ServerProxy("http://127.0.0.1", transport=transport)

    def _wait(self, done: Callable[[], bool], timeout_s: float, what: str) -> None:
        if not came_true(done, timeout_s):
            states = ", ".join(f"{n} {p['state']}" for n, p in self.processes().items())
            raise NodeError(Reason.TRITON_UNREACHABLE, f"{what} ({states})", where=str(self.root / "logs"))

    def _keeper(self) -> psutil.Process | None:
        try:
            pid, created = (self.root / "keeper.pid").read_text().split()
            process = psutil.Process(int(pid))
            same = abs(process.create_time() - float(created)) < 1.0
            return process if same and process.status() != psutil.STATUS_ZOMBIE else None
        except (OSError, ValueError, psutil.NoSuchProcess):
            return None

    def _prepare(self, environment: Mapping[str, str]) -> FleetPlan:
        (self.root / "logs").mkdir(parents=True, exist_ok=True)
        for name, device_class in self._nodes:
            folder = node_folder(self.root, name)
            (folder / "models").mkdir(parents=True, exist_ok=True)
            if not (folder / "control.key").exists():
                write_atomic(folder / "control.key", new_key().encode(), mode=0o600)
            self._register(name, device_class)
        path = self.root / "fleet.json"
        plan = self.plan if path.exists() else _new_plan(self._nodes)
        plan = plan.model_copy(update={"environment": {**plan.environment, **environment}})
        write_atomic(path, plan.model_dump_json(by_alias=True, indent=1).encode())
        return plan

    def _register(self, name: str, device_class: str) -> None:
        body = {"apiVersion": API_VERSION, "kind": "NodeEngine", "metadata": {"name": name}}
        known = {o.meta.name for o in self.store.objects("NodeEngine")}
        if name not in known:
            self.store.apply(parse_resource({**body, "spec": {"deviceClass": device_class}}))


def _new_plan(chosen: tuple[tuple[str, str], ...]) -> FleetPlan:
    ports = free_ports(_PORTS_PER_NODE * len(chosen))
    nodes = []
    for index, (name, device_class) in enumerate(chosen):
        mine = ports[index * _PORTS_PER_NODE : (index + 1) * _PORTS_PER_NODE]
        http, grpc, metrics, gateway, agent, gateway_grpc = mine
        nodes.append(
            NodePlan(
                name=name,
                device_class=device_class,
                triton_http=http,
                triton_grpc=grpc,
                triton_metrics=metrics,
                gateway=gateway,
                agent_metrics=agent,
                gateway_grpc=gateway_grpc,
            )
        )
    # A Unix socket's path must stay below 108 bytes, wherever the fleet's folder lies.
    socket_dir = tempfile.mkdtemp(prefix="blurfleet-")
    return FleetPlan(nodes=tuple(nodes), socket=f"{socket_dir}/supervisor.sock")
