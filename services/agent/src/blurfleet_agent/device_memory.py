"""The memory that engines are loaded into: the GPU's own where it has one, else the machine's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import psutil
import structlog

# NVML: the GPU's own memory. Unified: CPU and GPU share it (Orin). Host: there is no GPU. HostNoNvml: there should be a
# GPU of its own memory, but NVML cannot be asked here, so the machine's memory stands in for it.
Source = Literal["NVML", "Unified", "Host", "HostNoNvml"]
_log = structlog.get_logger("blurfleet.memory")


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Bytes in all and bytes that can be had now."""

    total: int
    available: int


@dataclass(frozen=True, kw_only=True)
class DeviceMemory:
    """Reads the memory that engines take; `driver` is the GPU driver's version, empty where it is not known."""

    source: Source
    read: Callable[[], Reading]
    driver: str = ""

    def available(self) -> int:
        """Return the bytes that can be had now."""
        return self.read().available


def host_memory() -> Reading:
    """Return the machine's memory: what can be had without swapping, as the system sees it."""
    found = psutil.virtual_memory()
    return Reading(total=int(found.total), available=int(found.available))


def host_available() -> int:
    """Return the bytes of the machine's memory that can be had without swapping."""
    return host_memory().available


def device_memory(*, sm: int, platform: str, gpu_index: int = 0) -> DeviceMemory:
    """Return where the memory of this node's device is read. `sm` is 0 on CPU nodes; Orin's platform ends in tegra.

    Never raises: where NVML does not answer the machine's memory is read, and `source` says so.
    """
    if sm == 0:
        return DeviceMemory(source="Host", read=host_memory)
    if platform.endswith("tegra"):
        return DeviceMemory(source="Unified", read=host_memory)
    try:
        return nvml_memory(gpu_index)
    except Exception as error:
        # Whatever NVML or its absence raises, the node must start: it can serve without knowing this.
        _log.warning("NVML cannot be asked; the machine's memory stands in for the GPU's", error=str(error))
        return DeviceMemory(source="HostNoNvml", read=host_memory)


def nvml_memory(index: int) -> DeviceMemory:
    """Return the memory of GPU `index` by NVML. Raises what NVML raises: no library, no driver, no such GPU."""
    import pynvml

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    last = _reading(pynvml.nvmlDeviceGetMemoryInfo(handle))

    def read() -> Reading:
        nonlocal last
        try:
            last = _reading(pynvml.nvmlDeviceGetMemoryInfo(handle))
        except pynvml.NVMLError as error:
            _log.warning("NVML did not answer; the last reading stands", error=str(error))
        return last

    return DeviceMemory(source="NVML", read=read, driver=str(pynvml.nvmlSystemGetDriverVersion()))


def _reading(info: Any) -> Reading:
    return Reading(total=int(info.total), available=int(info.free))
