"""Stand-ins for Triton's part of a swap and for a disk, shared by tests; each says what it stands for."""

from __future__ import annotations

import errno
import os

import numpy as np

from blurfleet.api.contract import ContractSpec
from blurfleet.errors import EngineTimeout
from blurfleet.reasons import Reason
from blurfleet.serving.routing import RoutedEngine
from blurfleet_agent.aliases import Face

A = RoutedEngine(engine="bokeh__a", digest="sha256:" + "a" * 64, precision="Mixed", set="one")
B = RoutedEngine(engine="bokeh__b", digest="sha256:" + "b" * 64, precision="FP32", set="one")
FACE = Face(inputs=(), outputs=(), contract=ContractSpec(), contract_hash="h", probe=np.zeros((1, 3, 2, 2), np.float32))


class FlipsStandIn:
    """Stands in for Triton; `fail` names the step that raises `error`."""

    def __init__(self) -> None:
        self.fail = ""
        self.error: Exception = EngineTimeout(Reason.ALIAS_STALE, "not READY")
        self.calls: list[str] = []

    def _step(self, name: str) -> None:
        self.calls.append(name)
        if name == self.fail:
            raise self.error

    def ensure(self, engine: str) -> None:
        self._step("ensure")

    def prepare(self, alias: str, engine: str, epoch: int, face: Face) -> None:
        self._step("prepare")

    def load(self, alias: str) -> None:
        self._step("load")

    def await_ready(self, alias: str, epoch: int) -> None:
        self._step("await_ready")

    def verify(self, alias: str, epoch: int, face: Face) -> None:
        self._step("verify")

    def prune(self, alias: str, epoch: int) -> None:
        self._step("prune")

    def is_ready(self, alias: str, epoch: int) -> bool:
        return True


class FullDisk:
    """Refuses to sync while `full`: stands in for a disk without room."""

    full = False

    def __call__(self, handle: int) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(handle)
