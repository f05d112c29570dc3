"""The mechanics of one alias flip: replace the config, load the weightless alias, wait for READY, prove it.

Journal and routing file come before, pruning after; the agent drives them. A crash between any two steps leaves a state
that running all of them again repairs.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from blurfleet.api.record import Tensor
from blurfleet.deadline import came_true
from blurfleet.errors import EngineError, EngineTimeout
from blurfleet.reasons import Reason
from blurfleet.serving.triton import TritonClient
from blurfleet_agent.config_text import alias_config
from blurfleet_agent.control import RepositoryControl
from blurfleet_agent.repository import ModelRepository

_READY_POLL_S = 0.002


@dataclass(frozen=True, kw_only=True)
class FlipTimes:
    """How long each step took, milliseconds; `until_ready_ms` is the first three together.

    `replace_ms` holds the check that the engine is ready, unless the caller made it.
    """

    replace_ms: float
    load_ms: float
    ready_ms: float
    verify_ms: float

    @property
    def until_ready_ms(self) -> float:
        """From the start of the flip to the new version READY."""
        return self.replace_ms + self.load_ms + self.ready_ms


def flip_alias(
    *,
    repository: ModelRepository,
    control: RepositoryControl,
    client: TritonClient,
    alias: str,
    engine: str,
    epoch: int,
    inputs: tuple[Tensor, ...],
    outputs: tuple[Tensor, ...],
    probe: npt.NDArray[np.float32],
    deadline_s: float,
    ensured: bool = False,
) -> FlipTimes:
    """Point `alias` at the loaded `engine` as version `epoch`, and prove it with one inference of `probe`.

    Loads exactly one model, the alias. Raises EngineError(EngineNotReady) before anything is touched when the engine
    does not answer, EngineTimeout(AliasStale) when the new version is not READY within `deadline_s`, EngineError
    otherwise (`ensured` says that the caller asked already, before it moved the routing file, as a swap does); the old
    version keeps serving until the new one is READY. Call
    `repository.prune_alias(alias, keep=epoch)` afterwards.
    """
    began = time.perf_counter()
    if not ensured:
        ensure_engine_ready(client, engine)
    repository.write_alias(alias, epoch, alias_config(alias, engine, epoch, inputs=inputs, outputs=outputs))
    replaced = time.perf_counter()
    control.load(alias, timeout_s=deadline_s)
    loaded = time.perf_counter()
    await_version(control, alias, epoch, deadline_s=deadline_s - (loaded - began))
    ready = time.perf_counter()
    verify_alias(client, alias, epoch, probe, timeout_s=max(0.1, deadline_s))
    verified = time.perf_counter()
    return FlipTimes(
        replace_ms=(replaced - began) * 1e3,
        load_ms=(loaded - replaced) * 1e3,
        ready_ms=(ready - loaded) * 1e3,
        verify_ms=(verified - ready) * 1e3,
    )


def ensure_engine_ready(client: TritonClient, engine: str) -> None:
    """Raise EngineError(EngineNotReady) unless `engine` can be asked now. To be called before the routing file moves.

    Loading an alias whose step names an engine that is not loaded takes the alias's old version away too.
    """
    if not client.model_ready(engine):
        raise EngineError(
            Reason.ENGINE_NOT_READY, "the engine is not loaded; nothing was swapped", where=engine, fix="load it first"
        )


def await_version(control: RepositoryControl, name: str, version: int, *, deadline_s: float) -> None:
    """Return once the index says that `version` of `name` is READY. Raises EngineTimeout(AliasStale) after that."""
    until = time.monotonic() + deadline_s

    def ready() -> bool:
        return control.ready(name, version, timeout_s=max(0.1, until - time.monotonic()))

    if not came_true(ready, deadline_s, poll_s=_READY_POLL_S):
        raise EngineTimeout(Reason.ALIAS_STALE, f"version {version} is not READY in the index", where=name)


def verify_alias(
    client: TritonClient, alias: str, epoch: int, probe: npt.NDArray[np.float32], *, timeout_s: float
) -> None:
    """Ask the alias once. Raises EngineError(AliasStale) when another version than `epoch` answers."""
    answer = client.infer(alias, probe, timeout_s=timeout_s)
    if answer.model_version != epoch:
        raise EngineError(
            Reason.ALIAS_STALE, f"version {answer.model_version} answered instead of {epoch}", where=alias
        )
