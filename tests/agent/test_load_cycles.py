"""Loading and unloading engines again and again leaves a real Triton as large as it was."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
from tests.agent.tiny import Shelf, engine

from blurfleet.deadline import came_true
from blurfleet.identity import engine_name
from blurfleet_agent.control import RepositoryControl
from blurfleet_agent.engines import Engines
from blurfleet_agent.repository import ModelRepository
from blurfleet_agent.staging import Staging
from blurfleet_agent.tritonserver import TritonServer

WARM, CYCLES = 6, 10
# Measured: 13 KiB a cycle from the 6th to the 16th, 10 from the 10th to the 30th, 7 from the 20th to the 60th. A stub
# process that stayed behind would be tens of MiB.
MOST_KIB_A_CYCLE = 64


def resident_kib() -> int:
    """Return what this process's children, the server and its stubs, hold in memory."""
    return sum(p.memory_info().rss for p in psutil.Process().children(recursive=True)) >> 10


@pytest.mark.timeout(280)
def test_a_triton_does_not_grow_with_every_engine_that_comes_and_goes(server: TritonServer, tmp_path: Path) -> None:
    (tmp_path / "shelf").mkdir()
    ref = engine(Shelf(folder=tmp_path / "shelf"), "sound", set_name="one", precision="FP32", salt="cycles")
    name = engine_name("cycles", ref.digest)
    with RepositoryControl(server.grpc_address, server.settings.key) as control:
        engines = Engines(
            staging=Staging(tmp_path / "artifacts"),
            repository=ModelRepository(server.settings.model_repository, tmp_path / "staging"),
            control=control,
            memory_reserve=0,
            timeout_s=30.0,
        )

        def cycle() -> None:
            engines.load(ref, "cycles")
            engines.unload(name)
            assert came_true(lambda: name not in engines.ready(), 20.0)

        for _ in range(WARM):
            cycle()
        before = resident_kib()
        for _ in range(CYCLES):
            cycle()
        assert resident_kib() - before < MOST_KIB_A_CYCLE * CYCLES
