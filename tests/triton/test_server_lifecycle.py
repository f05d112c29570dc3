"""A Triton that is started, killed, hung or orphaned leaves nothing behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from blurfleet.errors import EngineError, EngineTimeout, NodeError
from blurfleet.reasons import Reason
from blurfleet_agent.tritonenv import TritonEnvironment
from blurfleet_agent.tritonserver import (
    Ports,
    TritonServer,
    TritonSettings,
    check_ports_free,
    new_key,
    new_shm_prefix,
    pick_ports,
)
from blurfleet_cli.swap_bench import SwapBench

SMALL = 32
ProcessesOf = Callable[[int], list[str]]
SharedMemoryOf = Callable[[str], list[str]]
WaitUntil = Callable[..., None]


@pytest.fixture
def own_triton(triton_environment: TritonEnvironment, tmp_path: Path) -> SwapBench:
    """A server of this test's own, not started, that is given 2 s to stop."""
    bench = SwapBench(triton_environment, tmp_path, size=SMALL)
    settings = TritonSettings(
        model_repository=bench.repository.models,
        key=new_key(),
        ports=pick_ports(),
        shm_prefix=new_shm_prefix(),
        exit_timeout_s=1,
        kill_after_s=4.0,
    )
    bench.server = TritonServer(triton_environment, settings, log=tmp_path / "triton.log")
    return bench


def test_a_stop_leaves_no_process_and_no_shared_memory(
    own_triton: SwapBench, processes_of: ProcessesOf, shared_memory_of: SharedMemoryOf
) -> None:
    with own_triton:
        group = own_triton.server.pid
        assert group is not None
        assert len(processes_of(group)) == 3  # the server and a stub for each engine
        assert len(shared_memory_of(own_triton.server.settings.shm_prefix)) >= 2
        report = own_triton.server.stop()
        assert report.clean
        assert own_triton.server.stop().clean  # twice is fine
    assert processes_of(group) == []
    assert shared_memory_of(own_triton.server.settings.shm_prefix) == []


def test_a_killed_server_leaves_nothing_and_can_be_started_again(
    own_triton: SwapBench, processes_of: ProcessesOf, shared_memory_of: SharedMemoryOf, until: WaitUntil
) -> None:
    with own_triton:
        server = own_triton.server
        group = server.pid
        assert group is not None
        server.kill()
        until(lambda: not server.running())
        assert server.returncode() != 0
        assert server.loads_logged() == {engine.name: 1 for engine in own_triton.engines}
        assert processes_of(group) == []
        assert shared_memory_of(server.settings.shm_prefix) == []
        server.start()
        server.wait_ready(30.0)
        assert server.loads_logged() == {}
        own_triton.control.load(own_triton.engines[0].name, timeout_s=30.0)
        answer = own_triton.client.infer(own_triton.engines[0].name, own_triton.probe, timeout_s=30.0)
        assert float(answer.matte[0, 0, 0, 0]) == own_triton.engines[0].scale


OWNER = """
import sys, threading
from dataclasses import replace
from pathlib import Path
from blurfleet.cache import cache_dir
from blurfleet.errors import EngineTimeout
from blurfleet_agent.tritonenv import ensure_environment
from blurfleet_agent.tritonserver import TritonServer
from blurfleet_cli.swap_bench import SwapBench
folder, hang = Path(sys.argv[1]), sys.argv[2] == "hang"
env = ensure_environment(cache_dir())
bench = SwapBench(env, folder, size=32)
bench.server = TritonServer(env, replace(bench.server.settings, exit_timeout_s=1, kill_after_s=3.0), log=folder / "log")
# started by a thread that ends: a death signal tied to that thread would take the server along
thread = threading.Thread(target=bench.__enter__)
thread.start()
thread.join()
if hang:
    model = bench.repository.models / "bokeh__hanging00000"
    (model / "1").mkdir(parents=True)
    text = (bench.repository.models / bench.engines[0].name / "config.pbtxt").read_text()
    (model / "config.pbtxt").write_text(text.replace(bench.engines[0].name, model.name))
    try:
        bench.control.load(model.name, timeout_s=1.0)
    except EngineTimeout:
        pass
print(bench.server.pid, bench.server.settings.shm_prefix, bench.client.server_ready(), flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("number", "doing"),
    [
        pytest.param(signal.SIGKILL, "serve", id="killed while it serves"),
        pytest.param(signal.SIGTERM, "serve", id="terminated while it serves"),
        pytest.param(signal.SIGKILL, "hang", id="killed while a load hangs"),
    ],
)
def test_a_server_whose_owner_dies_goes_with_it(
    number: signal.Signals,
    doing: str,
    triton_environment: TritonEnvironment,
    tmp_path: Path,
    processes_of: ProcessesOf,
    shared_memory_of: SharedMemoryOf,
    until: WaitUntil,
) -> None:
    argv = [sys.executable, "-c", OWNER, str(tmp_path), doing]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pid, prefix, ready = owner.stdout.readline().split()
        assert ready == "True"
        assert len(processes_of(int(pid))) >= 3
        owner.send_signal(number)
    until(lambda: processes_of(int(pid)) == [])
    until(lambda: shared_memory_of(prefix) == [])


def test_a_load_that_hangs_ends_at_its_deadline_and_the_server_can_still_be_stopped(
    own_triton: SwapBench, processes_of: ProcessesOf, shared_memory_of: SharedMemoryOf
) -> None:
    """A version without model.py hangs its load for ever; others keep serving; a stop has to kill."""
    with own_triton:
        group = own_triton.server.pid
        assert group is not None
        hanging = own_triton.repository.models / "bokeh__hanging00000"
        (hanging / "1").mkdir(parents=True)
        text = (own_triton.repository.models / own_triton.engines[0].name / "config.pbtxt").read_text()
        (hanging / "config.pbtxt").write_text(text.replace(own_triton.engines[0].name, hanging.name))
        with pytest.raises(EngineError) as named:
            own_triton.repository.ensure_loadable(hanging.name)
        assert named.value.reason is Reason.MISSING_FILE
        with pytest.raises(EngineTimeout) as caught:
            own_triton.control.load(hanging.name, timeout_s=1.5)
        assert caught.value.reason is Reason.LOAD_TIMEOUT
        flip = own_triton.flip()
        answer = own_triton.client.infer(own_triton.alias, own_triton.probe, timeout_s=30.0)
        assert answer.model_version == flip.epoch
        assert own_triton.client.server_ready()
        own_triton.server.stop()
        assert processes_of(group) == []
        assert shared_memory_of(own_triton.server.settings.shm_prefix) == []


def test_a_server_that_cannot_start_says_why(triton_environment: TritonEnvironment, tmp_path: Path) -> None:
    settings = TritonSettings(
        model_repository=tmp_path / "absent", key=new_key(), ports=pick_ports(), shm_prefix=new_shm_prefix()
    )
    with TritonServer(triton_environment, settings, log=tmp_path / "t.log") as server:
        with pytest.raises(EngineError) as caught:
            server.wait_ready(30.0)
        assert caught.value.reason is Reason.SERVER_NOT_READY
        assert "absent" in caught.value.message


def test_a_taken_port_is_refused_before_the_start_with_its_number() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        free = pick_ports()
        with pytest.raises(NodeError) as caught:
            check_ports_free(Ports(http=free.http, grpc=port, metrics=free.metrics))
        assert caught.value.reason is Reason.PORT_IN_USE
        assert str(port) in caught.value.message


def test_a_start_waits_for_the_ports_of_a_predecessor_and_then_refuses(own_triton: SwapBench) -> None:
    server = own_triton.server
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", server.settings.ports.http))
        taken.listen()
        with pytest.raises(NodeError) as caught:
            server.start(port_wait_s=0.1)
        assert caught.value.reason is Reason.PORT_IN_USE
        threading.Timer(0.3, taken.close).start()
        server.start(port_wait_s=10.0)
    try:
        server.wait_ready(30.0)
    finally:
        server.stop()


def test_the_keeper_alone_being_killed_takes_the_server_along(
    own_triton: SwapBench, processes_of: ProcessesOf, shared_memory_of: SharedMemoryOf, until: WaitUntil
) -> None:
    with own_triton:
        group = own_triton.server.pid
        assert group is not None
        parent = int(Path(f"/proc/{group}/stat").read_text().rsplit(")", 1)[1].split()[1])
        os.kill(parent, signal.SIGKILL)
        until(lambda: processes_of(group) == [])
        own_triton.server.stop()
        assert shared_memory_of(own_triton.server.settings.shm_prefix) == []
