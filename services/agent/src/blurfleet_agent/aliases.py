"""An alias's mechanics on the real Triton, step by step, and the proof that flips work on this node."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from blurfleet.api.contract import ContractSpec
from blurfleet.api.record import BuildRecord, Tensor
from blurfleet.errors import BlurfleetError
from blurfleet.serving.triton import TritonClient
from blurfleet_agent.config_text import alias_config
from blurfleet_agent.control import RepositoryControl
from blurfleet_agent.flip import await_version, ensure_engine_ready, verify_alias
from blurfleet_agent.repository import ModelRepository

PROOF_SUFFIX = "-proof"
PROOF_FLIPS = 3
VERIFY_TIMEOUT_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Face:
    """What clients see of an alias: tensors, contract, `probe` (float32 [1,3,H,W]) to ask it with, the network's id."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    contract: ContractSpec
    contract_hash: str
    probe: NDArray[np.float32] = field(repr=False, compare=False)
    model_id: str = ""


def face_of(record: BuildRecord, contract: ContractSpec, contract_hash: str) -> Face:
    """Return the face that an engine's record and the model's contract give."""
    return Face(
        inputs=record.inputs,
        outputs=record.outputs,
        contract=contract,
        contract_hash=contract_hash,
        probe=probe_for(record, contract),
        model_id=record.model_id,
    )


def probe_for(record: BuildRecord, contract: ContractSpec) -> NDArray[np.float32]:
    """Return a zero float32 tensor of the engine's input shape, free axes filled from the contract's optimum."""
    free = (1, 3, contract.height.opt, contract.width.opt)
    shape = record.inputs[0].shape
    return np.zeros(tuple(free[i] if n < 0 else n for i, n in enumerate(shape)), np.float32)


@dataclass(frozen=True, kw_only=True)
class Proof:
    """A flip under probe traffic: how many requests, how many failed, how many answered from an old epoch."""

    requests: int
    failed: int
    stale: int

    @property
    def passed(self) -> bool:
        """Tell whether requests were made and none failed or came from an old epoch."""
        return self.requests > 0 and self.failed == 0 and self.stale == 0


class AliasMechanics:
    """The steps 3 to 6 of the swap, each on its own so that a crash between any two can be tried."""

    def __init__(self, repository: ModelRepository, control: RepositoryControl, client: TritonClient) -> None:
        self._repository = repository
        self._control = control
        self._client = client

    def ensure(self, engine: str) -> None:
        """Raise EngineError(EngineNotReady) unless `engine` answers; else the alias would go down with it."""
        ensure_engine_ready(self._client, engine)

    def prepare(self, alias: str, engine: str, epoch: int, face: Face) -> None:
        """Make version folder `epoch` and replace the config. Raises OSError."""
        config = alias_config(alias, engine, epoch, inputs=face.inputs, outputs=face.outputs)
        self._repository.write_alias(alias, epoch, config)

    def load(self, alias: str, *, within_s: float) -> None:
        """Load the weightless alias. Raises EngineError, EngineTimeout."""
        self._control.load(alias, timeout_s=within_s)

    def await_ready(self, alias: str, epoch: int, *, within_s: float) -> None:
        """Return once the index shows `epoch` READY. Raises EngineTimeout(AliasStale)."""
        await_version(self._control, alias, epoch, deadline_s=within_s)

    def verify(self, alias: str, epoch: int, face: Face, *, within_s: float = VERIFY_TIMEOUT_S) -> None:
        """Ask once and see that `epoch` answers. Raises EngineError(AliasStale)."""
        verify_alias(self._client, alias, epoch, face.probe, timeout_s=within_s)

    def prune(self, alias: str, epoch: int) -> None:
        """Remove the version folders of other epochs. Raises OSError."""
        self._repository.prune_alias(alias, keep=epoch)

    def is_ready(self, alias: str, epoch: int) -> bool:
        """Tell whether `epoch` of `alias` is READY. Raises EngineError, EngineTimeout."""
        return self._control.ready(alias, epoch)

    def prove(self, alias: str, engine: str, face: Face) -> Proof:
        """Flip a scratch alias over `engine` under probe traffic; clients of `alias` never see it.

        Raises EngineError when the scratch alias cannot be made at all.
        """
        scratch = alias + PROOF_SUFFIX
        traffic = _Traffic(self._client, scratch, face)
        try:
            first = max((0, *self._repository.alias_epochs(scratch))) + 1
            self._flip(scratch, engine, first, face)
            traffic.start()
            for epoch in range(first + 1, first + 1 + PROOF_FLIPS):
                self._flip(scratch, engine, epoch, face)
                traffic.expect(epoch)
        finally:
            proof = traffic.stop()
            self._control.unload(scratch)
        return proof

    def _flip(self, alias: str, engine: str, epoch: int, face: Face) -> None:
        self.prepare(alias, engine, epoch, face)
        self.load(alias, within_s=VERIFY_TIMEOUT_S)
        self.await_ready(alias, epoch, within_s=VERIFY_TIMEOUT_S)
        self.verify(alias, epoch, face)
        self.prune(alias, epoch)


class _Traffic:
    """One thread that asks without a pause and counts what must not happen."""

    def __init__(self, client: TritonClient, alias: str, face: Face) -> None:
        self._client = client
        self._alias = alias
        self._probe = face.probe
        self._least = 0
        self._stop = threading.Event()
        self._answered = threading.Event()
        self._thread: threading.Thread | None = None
        self._counts = [0, 0, 0]

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="swap-proof", daemon=True)
        self._thread.start()

    def expect(self, epoch: int) -> None:
        self._least = epoch
        self._answered.clear()
        self._answered.wait(VERIFY_TIMEOUT_S)

    def stop(self) -> Proof:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(VERIFY_TIMEOUT_S)
        requests, failed, stale = self._counts
        return Proof(requests=requests, failed=failed, stale=stale)

    def _run(self) -> None:
        while not self._stop.is_set():
            least = self._least
            self._counts[0] += 1
            try:
                answer = self._client.infer(self._alias, self._probe, timeout_s=VERIFY_TIMEOUT_S)
                self._counts[2] += answer.model_version < least
            except BlurfleetError:
                self._counts[1] += 1
            self._answered.set()
