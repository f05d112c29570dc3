"""A local fleet of one node, with the real Triton: any of its processes may be killed, and nothing outlives it."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from blurfleet.cache import cache_dir
from blurfleet.errors import InvalidInput, NodeError
from blurfleet_agent.tritonenv import ensure_environment
from blurfleet_cli.fleet.local import LocalFleet

NODE = "orin-0"
PROGRAMS = {"controller", f"agent-{NODE}", f"gateway-{NODE}", f"triton-{NODE}"}
DEADLINE_S = 60.0
NOBODY = "http://127.0.0.1:9/v1/traces"

Until = Callable[..., None]


def running(fleet: LocalFleet) -> dict[str, int]:
    return {n: p["pid"] for n, p in fleet.processes().items() if p["state"] == "RUNNING"}


def family(root: Path) -> list[psutil.Process]:
    mark = str(root)
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and any(mark in word for word in process.cmdline()):
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, until: Until) -> Iterator[LocalFleet]:
    ensure_environment(cache_dir())
    local = LocalFleet(tmp_path_factory.mktemp("fleet"), nodes=((NODE, "jetson-orin"),))
    local.up(environment={"BLURFLEET_TRACE_URL": NOBODY})  # everything here works with a collector that is away
    until(lambda: set(running(local)) == PROGRAMS, DEADLINE_S, "start of every process")
    yield local
    local.down()


def test_a_fleet_that_was_never_started_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(NodeError, match="blurfleet up"):
        _ = LocalFleet(tmp_path).plan


def test_up_on_a_running_fleet_changes_nothing(fleet: LocalFleet) -> None:
    before = running(fleet)
    assert fleet.up() == fleet.plan
    assert running(fleet) == before


def test_a_running_fleet_is_not_given_other_settings_in_silence(fleet: LocalFleet) -> None:
    with pytest.raises(InvalidInput, match="blurfleet down"):
        fleet.up(environment={"BLURFLEET_TRACE_URL": "http://127.0.0.1:4318/v1/traces"})
    assert fleet.plan.environment == {"BLURFLEET_TRACE_URL": NOBODY}


def test_the_fleets_triton_traces_what_its_gateway_passes_on(fleet: LocalFleet, until: Until) -> None:
    def flags() -> list[str]:
        words = []
        for process in family(fleet.root):
            with contextlib.suppress(psutil.NoSuchProcess):
                words += [word for word in process.cmdline() if "--trace-config" in word]
        return words

    until(lambda: f"--trace-config=opentelemetry,url={NOBODY}" in flags(), DEADLINE_S, "a traced Triton")
    assert "--trace-config=rate=0" in flags()
    assert f"--trace-config=opentelemetry,resource=service.instance.id={NODE}" in flags()


@pytest.mark.parametrize("program", sorted(PROGRAMS))
def test_a_killed_process_comes_back_and_the_others_are_left_alone(
    fleet: LocalFleet, until: Until, program: str
) -> None:
    until(lambda: set(running(fleet)) == PROGRAMS, DEADLINE_S, "calm")
    before = running(fleet)
    os.kill(before[program], signal.SIGKILL)
    until(lambda: running(fleet).get(program, before[program]) != before[program], DEADLINE_S, f"return of {program}")
    after = running(fleet)
    assert {n: p for n, p in after.items() if n != program} == {n: p for n, p in before.items() if n != program}


def test_a_killed_tritonserver_comes_back(fleet: LocalFleet, until: Until) -> None:
    until(lambda: set(running(fleet)) == PROGRAMS, DEADLINE_S, "calm")

    def servers() -> list[int]:
        try:
            children = psutil.Process(running(fleet)[f"triton-{NODE}"]).children(recursive=True)
            return [p.pid for p in children if p.name() == "tritonserver"]
        except (KeyError, psutil.NoSuchProcess):
            return []

    until(lambda: len(servers()) == 1, DEADLINE_S, "start of tritonserver")
    (old,) = servers()
    os.kill(old, signal.SIGKILL)
    until(lambda: servers() not in ([], [old]), DEADLINE_S, "return of tritonserver")


def test_a_killed_supervisor_comes_back_with_every_process(fleet: LocalFleet, until: Until) -> None:
    until(lambda: set(running(fleet)) == PROGRAMS, DEADLINE_S, "calm")
    before = running(fleet)
    os.kill(int((fleet.root / "supervisord.pid").read_text()), signal.SIGKILL)

    def all_new() -> bool:
        now = running(fleet)
        return set(now) == PROGRAMS and not set(now.values()) & set(before.values())

    until(all_new, DEADLINE_S, "return of every process")


def test_down_leaves_no_process_and_no_shared_memory_and_up_starts_it_again(fleet: LocalFleet, until: Until) -> None:
    assert fleet.down() is True
    assert [p.cmdline() for p in family(fleet.root)] == []
    assert fleet.down() is False
    fleet.up()
    until(lambda: set(running(fleet)) == PROGRAMS, DEADLINE_S, "second start")


def test_a_killed_root_stops_everything(fleet: LocalFleet, until: Until) -> None:
    until(lambda: set(running(fleet)) == PROGRAMS, DEADLINE_S, "calm")
    os.kill(int((fleet.root / "keeper.pid").read_text().split()[0]), signal.SIGKILL)
    until(lambda: not fleet.running(), DEADLINE_S, "end of the root")
    until(lambda: family(fleet.root) == [], DEADLINE_S, "end of every process")
    assert fleet.running() is False
