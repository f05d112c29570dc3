"""Pictures and replays of the evidence that agents kept: what was fed, what came out, what it should have been."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from blurfleet.api.contract import ContractSpec
from blurfleet.errors import BlurfleetError
from blurfleet.quality.evidence import VERDICT_FILE, FrameArrays, load_evidence, load_frame
from blurfleet.quality.pictures import heatmap, matte_picture, to_picture
from blurfleet.quality.replay import replay_evidence
from blurfleet.store.atomic import write_atomic
from blurfleet_cli.demo.stage import Stage
from blurfleet_cli.fleet.plan import node_folder

_GAP = 6
_EVIDENCE_S = 20.0
_MOST_PICTURES = 3


def evidence_folder(stage: Stage, evidence: str, node: str = "") -> Path:
    """Return where an agent keeps the evidence that its status names, once it is complete.

    An agent tells of a trip before it has written the evidence: the swap does not wait for a disk.
    """
    path = Path(evidence)
    folder = path if path.is_absolute() else node_folder(stage.fleet.root, node) / "evidence" / evidence
    stage.wait((folder / VERDICT_FILE).exists, _EVIDENCE_S, f"evidence in {folder.name}")
    return folder


def replays(stage: Stage, evidence: str, *, node: str = "") -> bool:
    """Tell whether the evidence recomputes to the recorded verdict."""
    try:
        return bool(evidence) and replay_evidence(evidence_folder(stage, evidence, node)).same
    except BlurfleetError:
        return False


def evidence_pictures(stage: Stage, evidence: str, label: str, *, node: str = "") -> list[str]:
    """Write sheets (fed frame | engine | oracle | difference) of the evidence's worst frames; return their names."""
    if not evidence:
        return []
    folder = evidence_folder(stage, evidence, node)
    kept = load_evidence(folder)
    frames = [load_frame(folder, s) for s in kept.samples if s.file]
    worst = sorted((f for f in frames if f.oracle is not None), key=_difference, reverse=True)[:_MOST_PICTURES]
    (stage.out / "pictures").mkdir(exist_ok=True)
    names = []
    for number, frame in enumerate(worst):
        name = f"pictures/{label}-{number}.png"
        write_atomic(stage.out / name, to_picture(_sheet(frame, stage.contract)), sync=False)
        names.append(name)
    return names


def _difference(frame: FrameArrays) -> float:
    assert frame.oracle is not None
    with np.errstate(invalid="ignore"):
        difference = np.abs(frame.candidate - frame.oracle)
    return float(np.nan_to_num(difference, nan=np.inf, posinf=np.inf).max())


def _sheet(frame: FrameArrays, contract: ContractSpec) -> npt.NDArray[np.uint8]:
    assert frame.oracle is not None
    parts = [matte_picture(frame.candidate), matte_picture(frame.oracle), heatmap(frame.candidate, frame.oracle)]
    if frame.tensor is not None:
        parts.insert(0, _fed(frame.tensor, contract))
    gap = np.full((parts[0].shape[0], _GAP, 3), 255, np.uint8)
    row = [part for picture in parts for part in (picture, gap)][:-1]
    return np.ascontiguousarray(np.concatenate(row, axis=1))


def _fed(tensor: npt.NDArray[np.floating], contract: ContractSpec) -> npt.NDArray[np.uint8]:
    """Undo the normalisation, to show what was really fed."""
    planes = tensor.reshape(3, *tensor.shape[-2:]).astype(np.float64)
    mean = np.array([float(v) for v in contract.mean])[:, None, None]
    std = np.array([float(v) for v in contract.std])[:, None, None]
    pixels = ((planes * std + mean) * float(contract.scale)).clip(0, 255)
    return np.ascontiguousarray(np.rint(pixels).transpose(1, 2, 0), dtype=np.uint8)
