"""What makes `blurfleet bench swap` fail, and what it prints."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from blurfleet.errors import EngineError
from blurfleet_cli import door_bench
from blurfleet_cli.commands import bench as command

SOUND: dict[str, Any] = {"failed": 0, "stale": 0, "mixed": 0, "loads_per_flip": 1.0, "flip_p99_ms": 500.0}


@pytest.mark.parametrize(
    ("change", "code"),
    [
        pytest.param({}, 0, id="slow flips are reported, not judged"),
        pytest.param({"failed": 1}, 1, id="one failed request fails"),
        pytest.param({"stale": 1}, 1, id="one stale answer fails"),
        pytest.param({"mixed": 1}, 1, id="one mixed answer fails"),
        pytest.param({"loads_per_flip": 1.01}, 1, id="one engine reloaded in a hundred flips fails"),
        pytest.param({"loads_per_flip": float("nan")}, 1, id="loads that were not counted fail"),
    ],
)
def test_the_exit_code_follows_the_promises(change: dict[str, Any], code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "measure_swap", lambda **_: SOUND | change)
    result = CliRunner().invoke(command.bench, ["swap", "--flips", "1", "--json"])
    assert result.exit_code == code
    assert '"flip_p99_ms": 500.0' in result.stdout


def test_no_flips_are_wrong_usage() -> None:
    assert CliRunner().invoke(command.bench, ["swap", "--flips", "0"]).exit_code == 2


def test_the_metrics_bench_times_ssim_apart_from_the_rest() -> None:
    result = CliRunner().invoke(command.bench, ["metrics", "--json"])
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    assert 0.0 < report["without_ssim_ms"] < report["all_ms"]


def test_the_door_bench_pairs_every_transport_and_refuses_a_wrong_matte() -> None:
    result = CliRunner().invoke(command.bench, ["door", "--pairs", "4", "--json"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    for way in ("grpc", "grpc_shared_memory", "http"):
        figures = report[way]
        assert 0 < figures["bare_p50_ms"] <= figures["bare_p99_ms"]
        assert 0 < figures["door_p50_ms"] <= figures["door_p99_ms"]
        assert 0 < figures["gateway_cpu_ms"] < 1000
    ones, halves = np.ones((1, 1, 2, 2), np.float32), np.full((1, 1, 2, 2), 0.5, np.float32)
    with pytest.raises(EngineError, match="door"):
        door_bench.in_turns(lambda: ones, lambda: halves, ones, 1)
