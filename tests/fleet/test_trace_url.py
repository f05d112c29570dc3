"""A fleet's collector: chosen at `up`, kept, and read by every process of a node."""

from __future__ import annotations

from pathlib import Path

import pytest

from blurfleet.errors import InvalidInput
from blurfleet_agent.settings import AgentSettings
from blurfleet_cli.commands.fleet import collector_address
from blurfleet_cli.commands.run import TritonProcessSettings
from blurfleet_cli.fleet.local import LocalFleet
from blurfleet_cli.fleet.plan import programs
from blurfleet_preprocess.settings import GatewaySettings

URL = "http://127.0.0.1:4318/v1/traces"


def test_every_process_of_a_node_reads_the_collectors_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = LocalFleet(tmp_path, nodes=(("orin-0", "jetson-orin"),))._prepare({"BLURFLEET_TRACE_URL": URL})
    read = {}
    for program, kind in (("triton", TritonProcessSettings), ("agent", AgentSettings), ("gateway", GatewaySettings)):
        [found] = [p for p in programs(tmp_path, plan) if p.name == f"{program}-orin-0"]
        with monkeypatch.context() as patch:
            for key, value in found.environment.items():
                patch.setenv(key, value)
            read[program] = kind().trace_url
    assert read == {"triton": URL, "agent": URL, "gateway": URL}


def test_it_is_kept_for_later_starts_and_can_be_taken_off(tmp_path: Path) -> None:
    fleet = LocalFleet(tmp_path, nodes=(("orin-0", "jetson-orin"),))
    first = fleet._prepare({"BLURFLEET_TRACE_URL": URL})
    assert fleet._prepare({}) == first == fleet.plan
    off = fleet._prepare({"BLURFLEET_TRACE_URL": ""})
    assert off.environment == {"BLURFLEET_TRACE_URL": ""}
    assert (off.nodes, off.socket) == (first.nodes, first.socket)


@pytest.mark.parametrize(
    "url",
    [
        "collector:4318",
        "file:///tmp/x",
        "http://",
        "http://a b/v1/traces",
        "http://me:secret@a/v1/traces",
        'http://a/"',
    ],
)
def test_what_is_no_address_is_refused_by_name(url: str) -> None:
    with pytest.raises(InvalidInput, match="--trace-url"):
        collector_address(url)
