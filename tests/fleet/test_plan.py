"""The local fleet as data: who runs, with which settings, kept how."""

from __future__ import annotations

import configparser
from pathlib import Path

import pytest

from blurfleet_agent.settings import AgentSettings
from blurfleet_cli.fleet.keeper import next_pause
from blurfleet_cli.fleet.plan import FleetPlan, NodePlan, programs, supervisor_config
from blurfleet_cli.ports import free_ports
from blurfleet_preprocess.settings import GatewaySettings


def node(name: str, device_class: str, first_port: int) -> NodePlan:
    ports = range(first_port, first_port + 6)
    names = ("triton_http", "triton_grpc", "triton_metrics", "gateway", "agent_metrics", "gateway_grpc")
    return NodePlan(name=name, device_class=device_class, **dict(zip(names, ports, strict=True)))


PLAN = FleetPlan(
    nodes=(node("a100-0", "a100", 20000), node("orin-0", "jetson-orin", 20010)),
    socket="/tmp/x/supervisor.sock",
    environment={"BLURFLEET_SAMPLE_SHARE": "0.5"},
)


def test_a_node_has_a_triton_an_agent_and_a_gateway_and_the_fleet_one_controller() -> None:
    names = [p.name for p in programs(Path("/fleet"), PLAN)]
    assert names == [
        "controller",
        "triton-a100-0",
        "agent-a100-0",
        "gateway-a100-0",
        "triton-orin-0",
        "agent-orin-0",
        "gateway-orin-0",
    ]


def test_the_agents_settings_are_readable_from_what_the_plan_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = next(p for p in programs(Path("/fleet"), PLAN) if p.name == "agent-orin-0")
    for key, value in agent.environment.items():
        monkeypatch.setenv(key, value)
    settings = AgentSettings()
    assert (settings.node, settings.device_class, settings.simulated) == ("orin-0", "jetson-orin", True)
    assert settings.triton_grpc == "127.0.0.1:20011"
    assert settings.metrics_port == 20014
    assert settings.sample_share == 0.5
    assert settings.node_dir == Path("/fleet/nodes/orin-0")


def test_a_gateway_keeps_its_ports_over_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = next(p for p in programs(Path("/fleet"), PLAN) if p.name == "gateway-orin-0")
    for key, value in gateway.environment.items():
        monkeypatch.setenv(key, value)
    settings = GatewaySettings()
    assert (settings.gateway_port, settings.gateway_grpc_port) == (20013, 20015)


def test_every_process_is_restarted_for_ever_and_stopped_with_its_group() -> None:
    config = configparser.RawConfigParser()
    config.read_string(supervisor_config(Path("/fleet"), PLAN))
    kept = [config[s] for s in config.sections() if s.startswith("program:")]
    assert len(kept) == 7
    assert {(k["autorestart"], k["killasgroup"], k["startretries"]) for k in kept} == {("true", "true", "1000000")}


def test_percent_signs_in_paths_survive_the_supervisors_expansion() -> None:
    text = supervisor_config(Path("/fl%eet"), PLAN)
    assert 'BLURFLEET_STORE="/fl%%eet/store"' in text


@pytest.mark.parametrize(
    ("pause_s", "ran_s", "expected"),
    [
        pytest.param(0.5, 0.1, 1.0, id="a process that died at once waits twice as long"),
        pytest.param(20.0, 0.1, 30.0, id="the pause never exceeds 30 s"),
        pytest.param(30.0, 31.0, 0.5, id="a long run resets the pause"),
    ],
)
def test_the_keepers_pause(pause_s: float, ran_s: float, expected: float) -> None:
    assert next_pause(pause_s, ran_s) == expected


def test_free_ports_are_all_different() -> None:
    assert len(set(free_ports(15))) == 15
