"""Golden inference: the set's fixed frames through Triton by engine name, against stored FP32 answers.

The golden pictures are run through the contract too: where they no longer give the golden tensors, preprocessing is at
fault, and no engine is to blame.
"""

from __future__ import annotations

import contextlib
import io
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from blurfleet.api.contract import ContractSpec
from blurfleet.api.nodeengine import Figure
from blurfleet.api.policy import PolicySpec
from blurfleet.errors import ArtifactRefused, BlurfleetError, EngineError, EngineTimeout, InvalidInput
from blurfleet.pixels import decode, to_tensor
from blurfleet.quality.golden import judge_golden
from blurfleet.quality.metrics import Measurement, measure
from blurfleet.quality.rules import bind, resolve
from blurfleet.quality.sentinel import sentinel
from blurfleet.reasons import Reason
from blurfleet_agent.view import GoldenResult, Role

Matte = NDArray[np.float32]
Infer = Callable[[str, Matte], Matte]

# One grey level of one channel is 1/255/0.225 = 0.0174 after normalisation; half of it is beyond any rounding.
PICTURE_TOLERANCE = 0.0087
MAX_FRAMES = 64
_WAITS = frozenset({Reason.TRITON_UNREACHABLE, Reason.INFER_TIMEOUT})


@dataclass(frozen=True, kw_only=True)
class GoldenFrames:
    """N golden frames: tensors float32 [1,3,S,S], FP32 answers float32 [1,1,S,S] in [0,1], picture files as bytes."""

    names: tuple[str, ...]
    tensors: tuple[Matte, ...]
    references: tuple[Matte, ...]
    pictures: tuple[bytes, ...]


@dataclass(frozen=True, kw_only=True)
class GoldenRun:
    """The answers of one engine on golden frames, and what they measured."""

    frames: GoldenFrames
    mattes: tuple[Matte, ...]
    measurements: tuple[Measurement, ...]


def read_golden(path: Path) -> GoldenFrames:
    """Return the bundle in `path`. Raises ArtifactRefused(Unparseable) where it is not one."""
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as arrays:
            names = tuple(str(n) for n in arrays["names"])[:MAX_FRAMES]
            tensors, references = arrays["tensors"], arrays["references"]
            pictures = [arrays[f"picture_{i}"].tobytes() for i in range(len(names)) if f"picture_{i}" in arrays.files]
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise ArtifactRefused(Reason.UNPARSEABLE, f"no golden bundle: {error}", where=str(path)) from error
    if not names or len(tensors) < len(names) or len(references) < len(names):
        raise ArtifactRefused(Reason.UNPARSEABLE, "golden bundle names more frames than it holds", where=str(path))
    if tensors.ndim != 4 or references.shape[1:] != (1, *tensors.shape[2:]) or not np.isfinite(references).all():
        text = f"golden answers are {list(references.shape)} to tensors of {list(tensors.shape)}, or hold no numbers"
        raise ArtifactRefused(Reason.UNPARSEABLE, text, where=str(path))
    rows = range(len(names))
    return GoldenFrames(
        names=names,
        tensors=tuple(np.ascontiguousarray(tensors[i : i + 1], np.float32) for i in rows),
        references=tuple(np.ascontiguousarray(references[i : i + 1], np.float32) for i in rows),
        pictures=tuple(pictures),
    )


def run_golden(infer: Infer, engine: str, frames: GoldenFrames) -> GoldenRun:
    """Ask `engine` for every golden frame. Raises EngineError (also where it answers no matte), EngineTimeout."""
    mattes = tuple(infer(engine, tensor) for tensor in frames.tensors)
    pairs = zip(frames.references, mattes, strict=True)
    with _answer_of(engine):
        return GoldenRun(frames=frames, mattes=mattes, measurements=tuple(measure(r, m) for r, m in pairs))


@contextlib.contextmanager
def _answer_of(engine: str) -> Iterator[None]:
    """Blame `engine` for an answer that cannot be measured: it was asked rightly, so asking again mends nothing."""
    try:
        yield
    except InvalidInput as error:
        raise EngineError(error.reason, f"its answer is no matte: {error.message}", where=engine) from error


def judge_run(run: GoldenRun, policy: PolicySpec, device_class: str, role: Role, now: float) -> GoldenResult:
    """Return the verdict of `policy` on a run. Raises UnknownName (class)."""
    rules = bind(resolve(policy, device_class, role), "Golden")
    verdict = judge_golden(rules, dict(zip(run.frames.names, run.measurements, strict=True)))
    return GoldenResult(
        verdict=verdict.verdict.value,
        reason=verdict.reason,
        message=verdict.message,
        at=now,
        figures=verdict.figures,
    )


def change_from(infer: Infer, engine: str, frames: GoldenFrames) -> float | None:
    """Return the largest |difference| between the set's stored FP32 answers and `engine`, the FP32 of another set.

    None where it cannot be told: nobody answers, or the other set takes other shapes. NaN where it answers NaN.
    """
    try:
        run = run_golden(infer, engine, frames)
    except BlurfleetError:
        return None
    return float(np.max([m.max_abs_error for m in run.measurements]))


def judge_alive(infer: Infer, engine: str, tensor: Matte, now: float) -> GoldenResult:
    """Return what the sentinels say of one answer: all that can be told where the set's golden frames are not known."""
    answer = infer(engine, tensor)
    with _answer_of(engine):
        found = sentinel(answer)
    bad = found.withhold
    reason = Reason.NON_FINITE_OUTPUT if found.non_finite else Reason.OUT_OF_RANGE_OUTPUT
    figure = Figure(
        metric="NonFinite",
        value=str(found.non_finite),
        limit="0",
        verdict="Fail" if found.non_finite else "Pass",
    )
    return GoldenResult(
        verdict="Fail" if bad else "Pass",
        reason=reason if bad else Reason.GOLDEN_PASSED,
        message="golden frames of its set are not known here; one answer was finite and in range"
        if not bad
        else "its answer is not a matte",
        at=now,
        figures=(figure,),
    )


def from_error(error: BlurfleetError, now: float) -> GoldenResult:
    """Return what an inference that raised means: nobody answered is Inconclusive, an engine that refuses is a Fail."""
    waits = isinstance(error, EngineTimeout) or error.reason in _WAITS or not isinstance(error, EngineError)
    return GoldenResult(verdict="Inconclusive" if waits else "Fail", reason=error.reason, message=str(error), at=now)


def pictures_differ(frames: GoldenFrames, contract: ContractSpec) -> str:
    """Return how the golden pictures, run through `contract`, miss the golden tensors; empty where they fit."""
    for name, picture, tensor in zip(frames.names, frames.pictures, frames.tensors, strict=False):
        try:
            made = to_tensor(decode(picture, contract), contract)
        except BlurfleetError as error:
            return f"golden picture {name} is refused by the contract: {error.message}"
        if made.shape != tensor.shape:
            return f"golden picture {name} becomes {list(made.shape)}, its tensor is {list(tensor.shape)}"
        worst = float(np.abs(made - tensor).max())
        if not (worst <= PICTURE_TOLERANCE):
            return f"golden picture {name} misses its tensor by {worst:.4f}: preprocessing differs, not the engine"
    return ""
