"""A few regions of memory shared with a Triton on this machine: tensor and matte do not travel through the socket.

A region's name is gone from /dev/shm as soon as Triton has it open, so whoever dies leaves no file behind; what Triton
still holds of a gateway that died, the next one with the same owner lets go at its start. A region whose request ended
before its answer is not lent again, nor let go while Triton may still write to it. Where sharing fails, bytes are sent.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt
import structlog
from tritonclient.grpc import service_pb2

FOLDER = Path("/dev/shm")
RETRY_S = 30.0  # how long bytes are sent before sharing is tried again
RETIRED_S = 60.0  # longer than any inference: Triton no longer writes to a region whose request was given up
REGISTER_S = 1.0
_LOST = "shared memory region"  # in what Triton says of a region it does not know: it has been restarted


@dataclass(frozen=True, kw_only=True)
class SharedSettings:
    """`owner` names whoever shares (a node's folder): regions of an earlier owner of that name are let go."""

    owner: str
    regions: int = 8
    folder: Path = FOLDER

    @property
    def prefix(self) -> str:
        """What all of this owner's regions are called."""
        return f"blurfleet_gateway_{hashlib.sha256(self.owner.encode()).hexdigest()[:12]}_"


class SharedRegion:
    """Half of it takes a tensor, half a matte; each half holds `half` bytes."""

    def __init__(self, name: str, memory: mmap.mmap, *, half: int, era: int) -> None:
        self.name = name
        self.half = half
        self.era = era
        self.sound = True
        self._bytes: npt.NDArray[np.uint8] = np.frombuffer(memory, dtype=np.uint8)

    def put(self, image: npt.NDArray[np.float32], request: Any) -> None:
        """Write the tensor, and let `request` say that it lies here and that the matte goes here."""
        here = self._bytes[: image.nbytes].view(np.float32).reshape(image.shape)
        np.copyto(here, image)
        for tensor, offset, size in (
            (request.inputs[0], 0, image.nbytes),
            (request.outputs[0], self.half, self.half),
        ):
            tensor.parameters["shared_memory_region"].string_param = self.name
            tensor.parameters["shared_memory_offset"].int64_param = offset
            tensor.parameters["shared_memory_byte_size"].int64_param = size

    def matte(self, byte_size: int) -> bytes:
        """Return the matte's bytes; the region may be lent again afterwards."""
        return self._bytes[self.half : self.half + byte_size].tobytes()


class SharedTensors:
    """Lends regions, makes them when they are first needed. Safe for many threads."""

    def __init__(self, stub: Any, settings: SharedSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._stub = stub
        self._settings = settings
        self._clock = clock
        self._lock = threading.Lock()
        self._free: list[SharedRegion] = []
        self._made = 0
        self._era = 0  # of Triton's memory: a region of an earlier one is not counted, nor lent again
        self._retired: list[tuple[float, SharedRegion]] = []
        self._not_before = float("-inf")
        self._swept = False
        self._log = structlog.get_logger("blurfleet.triton")

    @contextlib.contextmanager
    def lent(self, byte_size: int) -> Iterator[SharedRegion | None]:
        """Yield a region for a tensor of `byte_size`; None where there is none, and bytes are to be sent.

        A block that raises before its answer came says so by `region.sound = False`.
        """
        region = self._take(byte_size)
        try:
            yield region
        finally:
            if region is not None:
                self._give(region)

    def lost(self, region: SharedRegion, error: grpc.RpcError) -> bool:
        """Tell whether Triton no longer knows `region`; if so, none of its time is lent again."""
        if _LOST not in str(error.details()) and error.code() is not grpc.StatusCode.UNAVAILABLE:
            return False
        with self._lock:
            if region.era == self._era:  # else another request has said so already, and regions were made since
                self._retired += [(self._clock(), free) for free in self._free]
                self._free.clear()
                self._made = 0
                self._era += 1
        return error.code() is not grpc.StatusCode.UNAVAILABLE

    def close(self) -> None:
        """Let go of every region that is not lent."""
        with self._lock:
            names = [r.name for r in self._free] + [r.name for _, r in self._retired]
            self._free.clear()
            self._retired.clear()
        for name in names:
            self._let_go(name)

    def _take(self, byte_size: int) -> SharedRegion | None:
        with self._lock:
            now = self._clock()
            stale = [region for at, region in self._retired if now - at > RETIRED_S]
            self._retired = [(at, region) for at, region in self._retired if now - at <= RETIRED_S]
            small = [region for region in self._free if region.half < byte_size]
            self._free = [region for region in self._free if region.half >= byte_size]
            self._made -= sum(region.era == self._era for region in (*stale, *small))
            found = self._free.pop() if self._free else None
            # Until what an earlier owner left is gone, one region at a time: a sweep would take the others for its.
            most = self._settings.regions if self._swept else 1
            making = found is None and self._made < most and now >= self._not_before
            self._made += making
            era = self._era
        for region in (*stale, *small):
            self._let_go(region.name)
        return self._make(byte_size, era) if making else found

    def _give(self, region: SharedRegion) -> None:
        with self._lock:
            if region.sound and region.era == self._era:
                self._free.append(region)
            else:
                self._retired.append((self._clock(), region))

    def _make(self, byte_size: int, era: int) -> SharedRegion | None:
        half = -(-byte_size // mmap.PAGESIZE) * mmap.PAGESIZE
        try:
            if not self._swept:
                self._sweep()
                self._swept = True
            return SharedRegion(*self._registered(2 * half), half=half, era=era)
        except (OSError, grpc.RpcError) as error:
            said = str(error.details()) if isinstance(error, grpc.RpcError) else str(error)
            with self._lock:
                self._made -= era == self._era
                self._not_before = self._clock() + RETRY_S
            self._log.warning("triton.not_shared", error=said[:200], retry_s=RETRY_S)
            return None

    def _registered(self, size: int) -> tuple[str, mmap.mmap]:
        name = f"{self._settings.prefix}{secrets.token_hex(6)}"
        path = self._settings.folder / name
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, size)  # a full /dev/shm is an error here, and a SIGBUS later
            memory = mmap.mmap(descriptor, size)
            request = service_pb2.SystemSharedMemoryRegisterRequest(name=name, key=f"/{name}", byte_size=size)
            self._stub.SystemSharedMemoryRegister(request, timeout=REGISTER_S)
        finally:
            os.close(descriptor)
            path.unlink(missing_ok=True)
        return name, memory

    def _sweep(self) -> None:
        """Let go of what an owner of the same name left: regions in Triton, and files of a death while registering."""
        for path in self._settings.folder.glob(f"{self._settings.prefix}*"):
            path.unlink(missing_ok=True)
        status = self._stub.SystemSharedMemoryStatus(service_pb2.SystemSharedMemoryStatusRequest(), timeout=REGISTER_S)
        for name in status.regions:
            if name.startswith(self._settings.prefix):
                self._let_go(name)

    def _let_go(self, name: str) -> None:
        request = service_pb2.SystemSharedMemoryUnregisterRequest(name=name)
        with contextlib.suppress(grpc.RpcError):  # a Triton that is gone holds nothing
            self._stub.SystemSharedMemoryUnregister(request, timeout=REGISTER_S)
