"""Stand-ins for Triton's part of a swap and for a disk, shared by tests; each says what it stands for."""

from __future__ import annotations

import errno
import os

import numpy as np

from blurfleet.api.base import Precision
from blurfleet.api.contract import ContractSpec
from blurfleet.api.engineset import Blob
from blurfleet.api.nodeengine import EngineRef
from blurfleet.errors import EngineTimeout
from blurfleet.identity import engine_name
from blurfleet.reasons import Reason
from blurfleet.serving.routing import RoutedEngine
from blurfleet_agent.aliases import Face

A = RoutedEngine(engine="bokeh__a", digest="sha256:" + "a" * 64, precision="Mixed", set="one")
B = RoutedEngine(engine="bokeh__b", digest="sha256:" + "b" * 64, precision="FP32", set="one")
FACE = Face(inputs=(), outputs=(), contract=ContractSpec(), contract_hash="h", probe=np.zeros((1, 3, 2, 2), np.float32))


def ref(letter: str, set_name: str, precision: Precision = "Mixed") -> EngineRef:
    digest = "sha256:" + letter * 64
    blob = Blob(uri=f"file:///{letter}", digest=digest, bytes=1)
    record = Blob(uri=f"file:///{letter}.json", digest="sha256:" + "0" * 63 + letter, bytes=1)
    return EngineRef(
        set=set_name, variant=letter, digest=digest, precision=precision, artifact=blob, build_record=record
    )


OLD, OLD32 = ref("a", "old"), ref("b", "old", "FP32")
NEW, NEW32 = ref("c", "new"), ref("d", "new", "FP32")


def name(engine: EngineRef) -> str:
    return engine_name("bokeh", engine.digest)


def routed(engine: EngineRef) -> RoutedEngine:
    return RoutedEngine(engine=name(engine), digest=engine.digest, precision=engine.precision, set=engine.set)


class FlipsStandIn:
    """Stands in for Triton; `fail` names the step that raises `error`."""

    def __init__(self) -> None:
        self.fail = ""
        self.error: Exception = EngineTimeout(Reason.ALIAS_STALE, "not READY")
        self.calls: list[str] = []
        self.given: dict[str, float] = {}

    def _step(self, name: str) -> None:
        self.calls.append(name)
        if name == self.fail:
            raise self.error

    def ensure(self, engine: str) -> None:
        self._step("ensure")

    def prepare(self, alias: str, engine: str, epoch: int, face: Face) -> None:
        self._step("prepare")

    def load(self, alias: str, *, within_s: float) -> None:
        self.given["load"] = within_s
        self._step("load")

    def await_ready(self, alias: str, epoch: int, *, within_s: float) -> None:
        self.given["await_ready"] = within_s
        self._step("await_ready")

    def verify(self, alias: str, epoch: int, face: Face, *, within_s: float) -> None:
        self.given["verify"] = within_s
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
