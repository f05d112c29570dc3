"""Which memory engines are measured against. NVML is stood in for: no GPU here."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import psutil
import pytest

from blurfleet_agent.device_memory import device_memory

GIB = 1 << 30


class NvmlError(Exception):
    """Stands in for pynvml.NVMLError."""


class NvmlStandIn:
    """Stands in for the module pynvml on a machine with two GPUs of 80 GiB; `away` makes the driver silent."""

    def __init__(self) -> None:
        self.free = [10 * GIB, 70 * GIB]
        self.away = False

    def module(self) -> SimpleNamespace:
        """Return it under NVML's names."""
        return SimpleNamespace(
            NVMLError=NvmlError,
            nvmlInit=lambda: None,
            nvmlDeviceGetHandleByIndex=self.handle,
            nvmlDeviceGetMemoryInfo=self.memory,
            nvmlSystemGetDriverVersion=lambda: "580.95.05",
        )

    def handle(self, index: int) -> int:
        if index >= len(self.free):
            raise NvmlError("invalid argument")
        return index

    def memory(self, handle: int) -> SimpleNamespace:
        if self.away:
            raise NvmlError("GPU is lost")
        return SimpleNamespace(total=80 * GIB, free=self.free[handle])


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> NvmlStandIn:
    made = NvmlStandIn()
    monkeypatch.setitem(sys.modules, "pynvml", made.module())
    return made


def test_a_discrete_gpu_s_own_memory_is_read_anew_each_time_and_its_driver_is_named(nvml: NvmlStandIn) -> None:
    memory = device_memory(sm=80, platform="linux-x86_64", gpu_index=1)
    assert (memory.source, memory.driver) == ("NVML", "580.95.05")
    assert (memory.read().total, memory.available()) == (80 * GIB, 70 * GIB)
    nvml.free[1] = 3 * GIB
    assert memory.available() == 3 * GIB
    nvml.away = True
    assert memory.available() == 3 * GIB


@pytest.mark.parametrize(
    ("sm", "platform", "source"),
    [
        pytest.param(87, "linux-aarch64-tegra", "Unified", id="Orin: one memory for both"),
        pytest.param(0, "linux-x86_64-cpu", "Host", id="no GPU at all"),
    ],
)
def test_where_there_is_one_memory_the_machine_s_is_read(
    nvml: NvmlStandIn, sm: int, platform: str, source: str
) -> None:
    memory = device_memory(sm=sm, platform=platform)
    assert memory.source == source
    assert memory.read().total == psutil.virtual_memory().total


def test_a_gpu_that_nvml_does_not_know_leaves_the_machine_s_memory_and_says_so(nvml: NvmlStandIn) -> None:
    assert device_memory(sm=80, platform="linux-x86_64", gpu_index=2).source == "HostNoNvml"


def test_the_real_library_without_a_driver_leaves_the_machine_s_memory_and_says_so() -> None:
    memory = device_memory(sm=80, platform="linux-x86_64", gpu_index=63)
    assert (memory.source, memory.read().total) == ("HostNoNvml", psutil.virtual_memory().total)
