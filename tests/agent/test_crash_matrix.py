"""kill -9 between every two steps of a swap: the next life serves one consistent thing, and swaps only once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from blurfleet_agent.crash import SWAP_POINTS

SCRIPT = Path(__file__).with_name("crash_process.py")
Live = Callable[..., tuple[int, Any]]


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    """Run one life; returns the signal that ended it (0 for none) and what it serves."""
    with subprocess.Popen(
        [sys.executable, str(SCRIPT)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def run(node: Path, point: str = "-", act: str = "-") -> tuple[int, Any]:
            process.stdin.write(json.dumps([str(node), point, act]) + "\n")
            process.stdin.flush()
            status, said = json.loads(process.stdout.readline())
            return os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status), said

        yield run
        process.stdin.close()


@pytest.mark.parametrize("point", SWAP_POINTS)
def test_a_kill_after(point: str, live: Live, tmp_path: Path) -> None:
    status, _ = live(tmp_path, point, "trip")
    assert status == signal.SIGKILL
    _, found = live(tmp_path)
    swapped = point != "swap-decided"
    engine, epoch = ("bokeh__b", 2) if swapped else ("bokeh__a", 1)
    expected = {
        "served": [engine, epoch, True],
        "routed": [engine, epoch],
        "alias": [engine, epoch],
        "folders": [str(epoch)],
        "journal": [epoch, True, int(swapped), int(swapped), int(swapped)],
    }
    assert found == expected
    assert live(tmp_path)[1] == expected


def test_without_a_kill_the_trip_ends_in_the_same_state(live: Live, tmp_path: Path) -> None:
    status, found = live(tmp_path, "-", "trip")
    assert status == 0
    assert found["served"] == ["bokeh__b", 2, True]
    assert live(tmp_path)[1] == found


@pytest.mark.parametrize("keep", [0, 1, 7, 50])
def test_a_torn_journal_after_a_whole_swap_is_made_good_by_the_routing_file(
    keep: int, live: Live, tmp_path: Path
) -> None:
    live(tmp_path, "-", "trip")
    journal = tmp_path / "journal.bin"
    journal.write_bytes(journal.read_bytes()[:keep])
    _, found = live(tmp_path)
    assert found["served"] == ["bokeh__b", 2, True]
    assert found["journal"][:2] == [2, True]
