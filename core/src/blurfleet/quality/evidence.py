"""What a verdict leaves behind: a folder from which it can be recomputed.

`verdict.json` holds who was judged, the rules in numbers, the guard's state before the first kept sample and every kept
sample's figures; `frame_<n>.npz` hold the arrays `candidate`, `oracle` and `tensor` of sample n, as far as known.
"""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, TypeAdapter, ValidationError

from blurfleet.api.base import Model
from blurfleet.api.kinds import invalid
from blurfleet.api.nodeengine import Figure
from blurfleet.api.policy import MetricName
from blurfleet.check import dumps, finite_json
from blurfleet.errors import ArtifactRefused, InvalidInput, NodeError
from blurfleet.identity import digest_bytes
from blurfleet.quality.metrics import Figures
from blurfleet.quality.rules import BoundRule
from blurfleet.quality.state import GuardPolicy, Sample
from blurfleet.quality.verdict import badness
from blurfleet.reasons import Reason
from blurfleet.store.atomic import sync_folder

MAX_FRAMES = 16
"""Frames whose arrays are kept per verdict: twice the reorder buffer, some 6 MB at 160x160."""
VERDICT_FILE = "verdict.json"


class EvidenceSample(Model):
    """One judged frame. `figures` are numbers in full precision as text, "" where not measurable; `at` in seconds."""

    stream: str
    frame: int
    at: float = 0.0
    valid: bool = True
    trace: str = ""
    period_s: float | None = None
    figures: dict[str, str] = Field(default_factory=dict)
    file: str = ""
    file_digest: str = ""


class Evidence(Model):
    """Everything behind one verdict. `rules` are judged at stage Golden; `policy` and `state_before` otherwise.

    Where samples were left out, `state_before` is the guard's state just before the first one kept.
    """

    schema_version: Literal[1] = 1
    stage: Literal["Golden", "Shadow", "Live"]
    node: str
    device_class: str
    model: str
    engine_set: str = ""
    digest: str
    attempt: str = ""
    epoch: int = 0
    verdict: Literal["Pass", "Fail", "Inconclusive"]
    reason: Reason
    message: str = ""
    at: str = ""
    simulated: bool = False
    kind: Literal["matte", "depth"] = "matte"
    fallback_ready: bool = True
    rules: tuple[dict[str, Any], ...] = ()
    policy: dict[str, Any] | None = None
    state_before: dict[str, Any] | None = None
    figures: tuple[Figure, ...] = ()
    identities: dict[str, str] = Field(default_factory=dict)
    times: dict[str, float] = Field(default_factory=dict)
    samples: tuple[EvidenceSample, ...] = ()


@dataclass(frozen=True, kw_only=True)
class FrameArrays:
    """The arrays of one frame: the matte under test, the oracle's, and the tensor both were computed from."""

    candidate: npt.NDArray[np.floating]
    oracle: npt.NDArray[np.floating] | None = None
    tensor: npt.NDArray[np.floating] | None = None


_RULES = TypeAdapter(tuple[BoundRule, ...])
_POLICY = TypeAdapter(GuardPolicy)


def rules_json(rules: tuple[BoundRule, ...]) -> tuple[dict[str, Any], ...]:
    """Return rules as they are kept in evidence."""
    return tuple(finite_json(item) for item in _RULES.dump_python(rules))


def rules_from_json(data: tuple[dict[str, Any], ...]) -> tuple[BoundRule, ...]:
    """Return the rules that `rules_json` wrote. Raises pydantic's ValidationError."""
    return _RULES.validate_python(data)


def policy_json(policy: GuardPolicy) -> dict[str, Any]:
    """Return a resolved policy as it is kept in evidence."""
    found = finite_json(_POLICY.dump_python(policy))
    assert isinstance(found, dict)
    return found


def policy_from_json(data: Mapping[str, Any]) -> GuardPolicy:
    """Return the policy that `policy_json` wrote. Raises pydantic's ValidationError."""
    return _POLICY.validate_python(data)


def evidence_sample(sample: Sample, at: float) -> EvidenceSample:
    """Return what evidence keeps of one guard sample that arrived at `at` (seconds)."""
    return EvidenceSample(
        stream=sample.stream,
        frame=sample.frame,
        at=at,
        valid=sample.valid,
        trace=sample.trace,
        period_s=sample.period_s,
        figures=figures_text(sample.figures),
    )


def figures_text(figures: Mapping[MetricName, float | None]) -> dict[str, str]:
    """Return figures as text that reads back to the same numbers; "" stands for not measurable."""
    return {name.value: "" if value is None else str(finite_json(float(value))) for name, value in figures.items()}


def figures_from_text(figures: Mapping[str, str]) -> Figures:
    """Return the figures that `figures_text` wrote. Raises ValueError on an unknown metric or a malformed number."""
    return {MetricName(name): float(text) if text else None for name, text in figures.items()}


def write_evidence(folder: Path, evidence: Evidence, frames: Mapping[int, FrameArrays]) -> Path:
    """Write the evidence as `folder`, whole or not at all, and return it.

    `frames` maps an index into `evidence.samples` to that frame's arrays. `MAX_FRAMES` are kept: the worst at stage
    Golden, else the last. Everything is built beside, on disk, then renamed. Raises NodeError (EvidenceUnwritten) with
    the partial folder removed.
    """
    building = folder.parent / f".{folder.name}.{os.getpid()}.partial"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        building.mkdir()
        samples = list(evidence.samples)
        for index in _kept(evidence, frames):
            name, data = f"frame_{index}.npz", _pack(frames[index])
            _write_synced(building / name, data)
            samples[index] = samples[index].model_copy(update={"file": name, "file_digest": digest_bytes(data)})
        body = evidence.model_copy(update={"samples": tuple(samples)}).wire()
        _write_synced(building / VERDICT_FILE, dumps(body).encode())
        sync_folder(building)
        building.rename(folder)
        sync_folder(folder.parent)
    except OSError as error:
        shutil.rmtree(building, ignore_errors=True)
        message = f"evidence could not be written: {error.strerror or error}"
        raise NodeError(Reason.EVIDENCE_UNWRITTEN, message, where=str(folder)) from error
    return folder


def _kept(evidence: Evidence, frames: Mapping[int, FrameArrays]) -> list[int]:
    order = sorted(frames)
    if evidence.stage == "Golden":
        metric = MetricName.MAX_ABS_ERROR
        order.sort(key=lambda i: badness(metric, float(evidence.samples[i].figures.get(metric) or "nan")))
    return order[-MAX_FRAMES:]


def _write_synced(path: Path, data: bytes) -> None:
    with path.open("wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())


def _pack(frame: FrameArrays) -> bytes:
    arrays: dict[str, Any] = {"candidate": frame.candidate, "oracle": frame.oracle, "tensor": frame.tensor}
    stream = io.BytesIO()
    np.savez_compressed(stream, **{k: v for k, v in arrays.items() if v is not None})
    return stream.getvalue()


def load_evidence(folder: Path) -> Evidence:
    """Return the evidence of `folder` (or of its verdict.json). Raises InvalidInput naming what is wrong."""
    path = folder if folder.name == VERDICT_FILE else folder / VERDICT_FILE
    try:
        return Evidence.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        fix = "name a folder that an agent kept, as lastTrip.evidence in a NodeEngine's status does"
        raise InvalidInput(Reason.UNREADABLE_FILE, error.strerror or str(error), where=str(path), fix=fix) from error
    except ValidationError as error:
        raise invalid(error, str(path)) from error
    except (ValueError, RecursionError) as error:
        raise InvalidInput(Reason.UNPARSEABLE, f"not evidence: {error}", where=str(path)) from error


def load_frame(folder: Path, sample: EvidenceSample) -> FrameArrays:
    """Return the arrays of one sample; its bytes must match the digest. Raises InvalidInput or ArtifactRefused."""
    path = folder / Path(sample.file).name
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InvalidInput(Reason.MISSING_FILE, error.strerror or str(error), where=str(path)) from error
    if digest_bytes(data) != sample.file_digest:
        raise ArtifactRefused(Reason.DIGEST_MISMATCH, "the frame's bytes are not those judged", where=str(path))
    with np.load(io.BytesIO(data), allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    return FrameArrays(candidate=arrays["candidate"], oracle=arrays.get("oracle"), tensor=arrays.get("tensor"))
