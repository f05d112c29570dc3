"""The real Triton for these tests: its environment, and one small server that tests share."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from blurfleet.cache import cache_dir
from blurfleet_agent.tritonenv import TritonEnvironment, ensure_environment
from blurfleet_cli.swap_bench import SwapBench

CASES = Path(__file__).resolve().parents[1] / "cases"
SMALL = 32


@pytest.fixture(scope="session")
def triton_environment() -> TritonEnvironment:
    """The built environment; the first run on a machine builds it."""
    return ensure_environment(cache_dir())


@pytest.fixture(scope="module")
def triton(triton_environment: TritonEnvironment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SwapBench]:
    """A running server with two tiny engines loaded, its control, client and repository."""
    with SwapBench(triton_environment, tmp_path_factory.mktemp("triton"), size=SMALL) as running:
        yield running
        running.server.kill()  # a stop in order takes 1 to 3 s, and has tests of its own


@pytest.fixture
def processes_of() -> Callable[[int], list[str]]:
    """List the living processes of a process group."""

    def listed(group: int) -> list[str]:
        out = subprocess.run(["ps", "-o", "stat=,args=", "-g", str(group)], capture_output=True, text=True, check=False)
        return [line for line in out.stdout.splitlines() if not line.startswith("Z")]

    return listed


@pytest.fixture
def shared_memory_of() -> Callable[[str], list[str]]:
    """List the shared-memory files whose names begin with a prefix."""
    return lambda prefix: sorted(path.name for path in Path("/dev/shm").glob(f"{prefix}*"))
