"""Search for a precision map: which nodes may compute in FP16 while every calibration frame stays within a budget.

A unit is a convolution with its Relu. Each unit's own error is measured first; units are then tried by error squared
per multiply-accumulate, large ones before small ones. Errors do not add, so a unit (or a batch of small ones) is kept
only if the whole graph with it, as measured, is within the budget on every calibration frame.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray

from blurfleet_forge.backends.onnxruntime import Session
from blurfleet_forge.fold import to_bytes
from blurfleet_forge.macs import count_macs
from blurfleet_forge.precision import Halves, emulated_graph, spread_exact

Tensor = NDArray[np.float32]
Progress = Callable[[str, int, int], None]

LARGE_SHARE = 0.02  # of all multiply-accumulates: such units are tried first, one by one
BATCH = 8  # small units tried at once; a batch over budget is halved
SWEEP_FRAMES = 6  # calibration frames a unit's own error is measured on


@dataclass(frozen=True, kw_only=True)
class Unit:
    """A convolution and its Relu, with its multiply-accumulates and its own largest error."""

    nodes: tuple[str, ...]
    macs: int
    error: float = float("nan")

    @property
    def cost(self) -> float:
        """Error squared per multiply-accumulate; what is not finite costs infinity."""
        return self.error**2 / self.macs if np.isfinite(self.error) else float("inf")


class Trials:
    """Runs maps on calibration frames. The frame that broke the budget last is tried first next time."""

    def __init__(self, model: onnx.ModelProto, tensors: Sequence[Tensor], halves: Halves) -> None:
        oracle = Session(to_bytes(model))
        self._model = model
        self._halves = halves
        self._frames = [(t, oracle.run(t)) for t in tensors]

    def largest_error(self, nodes: frozenset[str], frames: int) -> float:
        """Return the largest absolute error over `frames` frames spread over all; NaN if any output is not finite."""
        session = self._session(nodes)
        step = max(1, len(self._frames) // frames)
        return max((float(np.abs(session.run(t) - r).max()) for t, r in self._frames[::step][:frames]), default=0.0)

    def within(self, nodes: frozenset[str], budget: float) -> bool:
        """Tell whether every frame is within `budget`; stops at the first that is not."""
        session = self._session(nodes)
        for i, (tensor, reference) in enumerate(self._frames):
            if not (float(np.abs(session.run(tensor) - reference).max()) <= budget):
                self._frames.insert(0, self._frames.pop(i))
                return False
        return True

    def _session(self, nodes: frozenset[str]) -> Session:
        return Session(to_bytes(emulated_graph(self._model, spread_exact(self._model, nodes), self._halves)))


def units_of(model: onnx.ModelProto) -> list[Unit]:
    """Return one unit per convolution; its Relu joins it where nothing else reads the convolution."""
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in model.graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    macs = count_macs(model)
    units = []
    for node in model.graph.node:
        if node.op_type == "Conv":
            after = readers.get(node.output[0], [])
            relu = (after[0].name,) if len(after) == 1 and after[0].op_type == "Relu" else ()
            units.append(Unit(nodes=(node.name, *relu), macs=macs[node.name]))
    return units


def candidates(model: onnx.ModelProto, *, thorough: bool) -> list[Unit]:
    """Return the units a search tries: all if `thorough`, else those that hold at least 2 % of the work."""
    every = units_of(model)
    total = sum(u.macs for u in every)
    return every if thorough else [u for u in every if u.macs >= LARGE_SHARE * total]


def rank(units: Sequence[Unit]) -> tuple[list[Unit], list[Unit]]:
    """Return (large, small) units, each in the order they are tried."""
    total = sum(u.macs for u in units)
    ordered = sorted(units, key=lambda u: (u.cost, u.nodes))
    large = [u for u in ordered if u.macs >= LARGE_SHARE * total]
    return large, [u for u in ordered if u.macs < LARGE_SHARE * total]


def search(
    model: onnx.ModelProto,
    tensors: Sequence[Tensor],
    halves: Halves,
    budget: float,
    progress: Progress = lambda *_: None,
    *,
    thorough: bool = False,
) -> frozenset[str]:
    """Return the FP16 nodes of the best map found, with weights from `halves`.

    No calibration frame exceeds `budget`, the largest absolute error on the matte. Small units are tried only if
    `thorough`: on U2-Net-p 109 of 119 convolutions share a ninth of the work and take most of the time.
    """
    trials = Trials(model, tensors, halves)
    units = []
    bare = candidates(model, thorough=thorough)
    for i, unit in enumerate(bare):
        progress("sensitivity", i, len(bare))
        error = trials.largest_error(frozenset(unit.nodes), SWEEP_FRAMES)
        units.append(Unit(nodes=unit.nodes, macs=unit.macs, error=error))
    large, small = rank(units)
    batches = [[u] for u in large] + [small[i : i + BATCH] for i in range(0, len(small), BATCH)]
    chosen: frozenset[str] = frozenset()
    for i, batch in enumerate(batches):
        progress("search", i, len(batches))
        chosen = _admit(trials, chosen, batch, budget)
    return spread_exact(model, chosen)


def _admit(trials: Trials, chosen: frozenset[str], batch: Sequence[Unit], budget: float) -> frozenset[str]:
    """Return `chosen` with as much of `batch` as stays within the budget, halving what does not."""
    tried = chosen.union(*(u.nodes for u in batch))
    if trials.within(tried, budget):
        return tried
    if len(batch) == 1:
        return chosen
    half = len(batch) // 2
    return _admit(trials, _admit(trials, chosen, batch[:half], budget), batch[half:], budget)
