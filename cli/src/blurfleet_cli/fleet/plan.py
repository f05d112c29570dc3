"""What a local fleet consists of, as data: nodes, ports, processes and the supervisor's configuration."""

from __future__ import annotations

import configparser
import io
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import Field

from blurfleet.api.base import Model

RUNTIME_VERSION = "onnxruntime-1.32.0"
PLATFORM = "linux-x86_64-cpu"
_RESTARTS = 1_000_000
_STABLE_S = 2


class NodePlan(Model):
    """One node: its class and the loopback ports of its processes."""

    name: str
    device_class: str
    triton_http: int
    triton_grpc: int
    triton_metrics: int
    gateway: int
    agent_metrics: int
    gateway_grpc: int = 0  # a fleet of an earlier version has none: a free one at each start


class FleetPlan(Model):
    """A fleet as `fleet.json` keeps it: what `up` chose once and restarts keep."""

    schema_version: int = 1
    nodes: tuple[NodePlan, ...]
    socket: str
    environment: dict[str, str] = Field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Program:
    """One supervised process: name, command, environment, where its output goes, when to start it."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    log: Path
    priority: int = 100
    stop_wait_s: int = 30
    directory: Path = field(default_factory=Path.cwd)


def node_folder(root: Path, node: str) -> Path:
    """Return a node's folder: journal, routing file, model repository, evidence."""
    return root / "nodes" / node


def programs(root: Path, plan: FleetPlan) -> list[Program]:
    """Return the fleet's processes in the order they are started."""
    found = [
        Program(
            name="controller",
            command=(sys.executable, "-m", "blurfleet_cli", "controller"),
            environment={"BLURFLEET_STORE": str(root / "store"), **plan.environment},
            log=root / "logs/controller.log",
        )
    ]
    for node in plan.nodes:
        environment = node_environment(root, node) | plan.environment
        found += [
            Program(
                name=f"{kind}-{node.name}",
                command=(sys.executable, "-m", "blurfleet_cli", kind),
                environment=environment,
                log=root / f"logs/{kind}-{node.name}.log",
                priority=priority,
            )
            for kind, priority in (("triton", 10), ("agent", 20), ("gateway", 30))
        ]
    return found


def node_environment(root: Path, node: NodePlan) -> dict[str, str]:
    """Return the `BLURFLEET_` settings that a node's Triton, agent and gateway read."""
    folder = node_folder(root, node.name)
    return {
        "BLURFLEET_NODE": node.name,
        "BLURFLEET_DEVICE_CLASS": node.device_class,
        "BLURFLEET_NODE_DIR": str(folder),
        "BLURFLEET_STORE": str(root / "store"),
        "BLURFLEET_MODEL_REPOSITORY": str(folder / "models"),
        "BLURFLEET_TRITON_GRPC": f"127.0.0.1:{node.triton_grpc}",
        "BLURFLEET_TRITON_HTTP_PORT": str(node.triton_http),
        "BLURFLEET_TRITON_GRPC_PORT": str(node.triton_grpc),
        "BLURFLEET_TRITON_METRICS_PORT": str(node.triton_metrics),
        "BLURFLEET_TRITON_KEY_FILE": str(folder / "control.key"),
        "BLURFLEET_METRICS_PORT": str(node.agent_metrics),
        "BLURFLEET_GATEWAY_PORT": str(node.gateway),
        "BLURFLEET_GATEWAY_GRPC_PORT": str(node.gateway_grpc),
        "BLURFLEET_SIMULATED": "true",
        "BLURFLEET_PLATFORM": PLATFORM,
        "BLURFLEET_RUNTIME_VERSION": RUNTIME_VERSION,
    }


class _CaseKept(configparser.RawConfigParser):
    def optionxform(self, optionstr: str) -> str:
        return optionstr  # names in the environment keep their case


def supervisor_config(root: Path, plan: FleetPlan) -> str:
    """Return supervisord's configuration: every process restarted for ever, its whole group stopped with it.

    supervisord restarts at once what had run for 2 s, and waits 1, 2, 3, ... s between starts that failed sooner.
    """
    config = _CaseKept()
    config["unix_http_server"] = {"file": plan.socket, "chmod": "0600"}
    config["rpcinterface:supervisor"] = {
        "supervisor.rpcinterface_factory": "supervisor.rpcinterface:make_main_rpcinterface"
    }
    config["supervisord"] = {
        "nodaemon": "true",
        "logfile": str(root / "logs/supervisord.log"),
        "pidfile": str(root / "supervisord.pid"),
        "childlogdir": str(root / "logs"),
        "minfds": "1024",
        "silent": "true",
    }
    for program in programs(root, plan):
        config[f"program:{program.name}"] = {
            "command": " ".join(map(_quoted, program.command)),
            "directory": _escaped(str(program.directory)),
            "environment": ",".join(f'{k}="{_escaped(v)}"' for k, v in sorted(program.environment.items())),
            "priority": str(program.priority),
            "startsecs": str(_STABLE_S),
            "startretries": str(_RESTARTS),
            "autorestart": "true",
            "stopsignal": "TERM",
            "stopwaitsecs": str(program.stop_wait_s),
            "stopasgroup": "false",
            "killasgroup": "true",
            "redirect_stderr": "true",
            "stdout_logfile": _escaped(str(program.log)),
            "stdout_logfile_maxbytes": "10MB",
            "stdout_logfile_backups": "1",
        }
    text = io.StringIO()
    config.write(text)
    return text.getvalue()


def _escaped(text: str) -> str:
    return text.replace("%", "%%")


def _quoted(word: str) -> str:
    return '"' + _escaped(word).replace('"', '\\"') + '"'
