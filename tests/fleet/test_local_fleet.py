"""A local fleet of one node, with the real Triton: any of its processes may be killed, and nothing outlives it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from blurfleet.cache import cache_dir
from blurfleet.errors import NodeError
from blurfleet_agent.tritonenv import ensure_environment
from blurfleet_cli.fleet.local import LocalFleet

NODE = "orin-0"
PROGRAMS = {"controller", f"agent-{NODE}", f"gateway-{NODE}", f"triton-{NODE}"}
DEADLINE_S = 60.0


def wait_for(done: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not done():
        assert time.monotonic() < deadline, f"{what} did not happen in {DEADLINE_S:.0f} s"
        time.sleep(0.05)


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
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFleet]:
    ensure_environment(cache_dir())
    local = LocalFleet(tmp_path_factory.mktemp("fleet"), nodes=((NODE, "jetson-orin"),))
    local.up()
    wait_for(lambda: set(running(local)) == PROGRAMS, "start of every process")
    yield local
    local.down()


def test_a_fleet_that_was_never_started_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(NodeError, match="blurfleet up"):
        _ = LocalFleet(tmp_path).plan


def test_up_on_a_running_fleet_changes_nothing(fleet: LocalFleet) -> None:
    before = running(fleet)
    assert fleet.up() == fleet.plan
    assert running(fleet) == before


@pytest.mark.parametrize("program", sorted(PROGRAMS))
def test_a_killed_process_comes_back_and_the_others_are_left_alone(fleet: LocalFleet, program: str) -> None:
    wait_for(lambda: set(running(fleet)) == PROGRAMS, "calm")
    before = running(fleet)
    os.kill(before[program], signal.SIGKILL)
    wait_for(lambda: running(fleet).get(program, before[program]) != before[program], f"return of {program}")
    after = running(fleet)
    assert {n: p for n, p in after.items() if n != program} == {n: p for n, p in before.items() if n != program}


def test_a_killed_tritonserver_comes_back(fleet: LocalFleet) -> None:
    wait_for(lambda: set(running(fleet)) == PROGRAMS, "calm")

    def servers() -> list[int]:
        try:
            children = psutil.Process(running(fleet)[f"triton-{NODE}"]).children(recursive=True)
            return [p.pid for p in children if p.name() == "tritonserver"]
        except (KeyError, psutil.NoSuchProcess):
            return []

    wait_for(lambda: len(servers()) == 1, "start of tritonserver")
    (old,) = servers()
    os.kill(old, signal.SIGKILL)
    wait_for(lambda: servers() not in ([], [old]), "return of tritonserver")


def test_a_killed_supervisor_comes_back_with_every_process(fleet: LocalFleet) -> None:
    wait_for(lambda: set(running(fleet)) == PROGRAMS, "calm")
    before = running(fleet)
    os.kill(int((fleet.root / "supervisord.pid").read_text()), signal.SIGKILL)
    wait_for(
        lambda: set(running(fleet)) == PROGRAMS and not set(running(fleet).values()) & set(before.values()), "return"
    )


def test_down_leaves_no_process_and_no_shared_memory_and_up_starts_it_again(fleet: LocalFleet) -> None:
    assert fleet.down() is True
    assert [p.cmdline() for p in family(fleet.root)] == []
    assert fleet.down() is False
    fleet.up()
    wait_for(lambda: set(running(fleet)) == PROGRAMS, "second start")


def test_a_killed_root_stops_everything(fleet: LocalFleet) -> None:
    wait_for(lambda: set(running(fleet)) == PROGRAMS, "calm")
    os.kill(int((fleet.root / "keeper.pid").read_text().split()[0]), signal.SIGKILL)
    wait_for(lambda: not fleet.running(), "end of the root")
    wait_for(lambda: family(fleet.root) == [], "end of every process")
    assert fleet.running() is False
