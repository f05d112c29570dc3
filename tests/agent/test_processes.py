"""The agent as a process beside its own Triton: kill -9 of either, and both, comes back serving what it served."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.agent.conftest import Site
from tests.agent.tiny import engine, golden, picture, tensor_of

from blurfleet.api.nodeengine import EngineRef
from blurfleet.serving.frames import FrameSender
from blurfleet_agent.journal import parse
from blurfleet_agent.tritonenv import TritonEnvironment
from blurfleet_agent.tritonserver import TritonServer

SCRIPT = Path(__file__).with_name("agent_process.py")
Until = Callable[..., None]


@contextmanager
def agent_process(site: Site, crash: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """Run the agent as its own process; it is stopped in the end, however it fares."""
    s = site.settings
    names = ("node", "device_class", "node_dir", "store", "triton_grpc", "model_repository", "simulated")
    more = ("metrics_port", "sample_share", "sample_hz", "tick_s", "memory_reserve_bytes", "storage_reserve_bytes")
    environ = {f"BLURFLEET_{name.upper()}": str(getattr(s, name)) for name in (*names, *more)}
    environ |= {"BLURFLEET_TRITON_KEY": s.key(), "BLURFLEET_TEST_CRASH": crash, "PATH": os.environ["PATH"]}
    with (site.folder / "agent.log").open("ab") as log:
        process = subprocess.Popen([sys.executable, str(SCRIPT)], env=environ, stderr=log)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


@pytest.fixture
def bright_breaker(site: Site) -> tuple[EngineRef, EngineRef]:
    """A primary that answers NaN on bright pictures, and its sound FP32; written as the wish of the node."""
    fp32 = engine(site.shelf, "sound", set_name="one", precision="FP32", salt=site.alias)
    risky = engine(site.shelf, "nan-when-bright", set_name="one", salt=site.alias)
    site.want(site.model(primary=risky, fallback=fp32, oracle=fp32, golden=golden(site.shelf)))
    return risky, fp32


def test_a_clean_stop_exits_with_zero_and_metrics_are_served_until_then(
    site: Site, until: Until, bright_breaker: tuple[EngineRef, EngineRef]
) -> None:
    risky, _ = bright_breaker
    with agent_process(site) as process:
        until(lambda: (site.settings.node_dir / "agent.json").exists())
        said = json.loads((site.settings.node_dir / "agent.json").read_text())
        assert said["pid"] == process.pid
        until(lambda: site.serves(risky.digest))
        with urllib.request.urlopen(f"http://{said['metrics']}/metrics", timeout=60) as answer:
            text = answer.read().decode()
        labels = f'device_type="jetson-orin",model="{site.alias}",node="orin-0"'
        assert f"blurfleet_serving_epoch{{{labels}}} 1.0" in text
        assert f"blurfleet_fallback_ready{{{labels}}} 1.0" in text
        assert 'blurfleet_journal_unsynced{node="orin-0"} 0.0' in text
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
    assert not site.settings.frames_socket.exists()


@pytest.mark.parametrize("point", ["journal-written", "alias-prepared"])
def test_an_agent_killed_in_the_middle_of_a_trip_comes_back_swapped_once(
    site: Site, until: Until, bright_breaker: tuple[EngineRef, EngineRef], point: str
) -> None:
    risky, fp32 = bright_breaker
    with agent_process(site, crash=f"{point}:2") as process:
        until(lambda: site.serves(risky.digest) and site.condition("FallbackReady").status == "True")
        sender = FrameSender(site.settings.frames_socket)
        until(lambda: site.frame(tensor_of(picture(5, bright=True)), sender) is not None and process.poll() is not None)
        sender.close()
        assert process.wait() == -signal.SIGKILL
    with agent_process(site):
        until(lambda: site.serves(fp32.digest, "Fallback"))
        until(lambda: site.condition("Ready").status == "True")
        assert site.route().epoch == 2
        assert site.ask(tensor_of(picture(5))).model_version == 2
        assert site.model_status().trips == 1
        assert site.condition("Armed").reason == "Latched"


def test_a_restarted_triton_gets_its_engines_and_its_alias_back_at_the_same_epoch(
    site: Site, until: Until, triton_environment: TritonEnvironment, bright_breaker: tuple[EngineRef, EngineRef]
) -> None:
    risky, _ = bright_breaker
    tensor = tensor_of(picture(6))
    with TritonServer(triton_environment, site.second_triton(), log=site.folder / "triton.log") as first:
        first.wait_ready(60.0)
        with agent_process(site):
            until(lambda: site.serves(risky.digest) and site.condition("FallbackReady").status == "True")
            until(lambda: site.condition("SwapProven").status == "True")
            epoch = site.route().epoch
            first.kill()
            until(lambda: not first.running())
            until(lambda: site.condition("TritonReachable").status == "False")
            with TritonServer(triton_environment, first.settings, log=site.folder / "triton.log") as second:
                second.wait_ready(60.0)
                until(lambda: site.condition("Ready").status == "True", seconds=60)
                assert site.ask(tensor).model_version == epoch == site.route().epoch
                assert site.serves(risky.digest)


def test_a_power_cut_after_a_trip_comes_back_serving_the_standby(
    site: Site, until: Until, triton_environment: TritonEnvironment, bright_breaker: tuple[EngineRef, EngineRef]
) -> None:
    risky, fp32 = bright_breaker
    with TritonServer(triton_environment, site.second_triton(), log=site.folder / "triton.log") as first:
        first.wait_ready(60.0)
        with agent_process(site) as process:
            until(lambda: site.serves(risky.digest) and site.condition("FallbackReady").status == "True")
            sender = FrameSender(site.settings.frames_socket)
            until(
                lambda: (
                    site.frame(tensor_of(picture(5, bright=True)), sender) is not None
                    and site.serves(fp32.digest, "Fallback")
                )
            )
            sender.close()
            epoch = site.route().epoch
            process.kill()
            first.kill()
            process.wait()
            until(lambda: not first.running())
    site.spec_file.write_text("the store is not readable either")
    with TritonServer(triton_environment, first.settings, log=site.folder / "triton.log") as second:
        second.wait_ready(60.0)
        with agent_process(site):
            until(lambda: site.answers() == epoch, seconds=60)
            assert site.route().active.digest == fp32.digest
            assert site.route().epoch == epoch
    trip = parse(site.settings.journal_file.read_bytes()).state.of(site.alias).last_trip
    assert trip is not None
    assert (trip.reason, trip.digest, trip.epoch) == ("NonFiniteOutput", risky.digest, epoch)
