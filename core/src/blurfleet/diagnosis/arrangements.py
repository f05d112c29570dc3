"""How a tensor's numbers may lie: other layouts, orientations and channel orders, each with its way back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import numpy as np
import numpy.typing as npt

from blurfleet.api.contract import ContractSpec

Planes = npt.NDArray[np.float32]
Order = tuple[int, ...]

RIGHT_ORDER: Order = (0, 1, 2)
REVERSED: Order = (2, 1, 0)
ORDERS: tuple[Order, ...] = tuple(permutations(range(3)))
# What makes a picture upright again whose EXIF orientation tag was left out: planes [3,H,W] -> [3,H',W'].
UPRIGHT: dict[int, Callable[[Any], Any]] = {
    1: lambda p: p,
    2: lambda p: p[:, :, ::-1],
    3: lambda p: p[:, ::-1, ::-1],
    4: lambda p: p[:, ::-1],
    5: lambda p: p.transpose(0, 2, 1),
    6: lambda p: np.rot90(p, -1, (1, 2)),
    7: lambda p: p.transpose(0, 2, 1)[:, ::-1, ::-1],
    8: lambda p: np.rot90(p, 1, (1, 2)),
}
TURNS = {
    1: "upright",
    2: "mirrored",
    3: "upside down",
    4: "mirrored upside down",
    5: "rows and columns exchanged",
    6: "turned a quarter to the left",
    7: "rows and columns exchanged, upside down",
    8: "turned a quarter to the right",
}


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One way to read the numbers: [3,H,W] as they would lie by the contract. `layout` names a fault, empty where none.

    `orientation` is the EXIF value whose turn was missing, 1 for an upright picture.
    """

    layout: str
    orientation: int
    planes: Planes


def slots_of(tensor: npt.NDArray[Any], spec: ContractSpec) -> Planes:
    """Return a contract's tensor [1,3,H,W] or [1,H,W,3] as [3,H,W]: one plane per slot."""
    picture = tensor[0] if spec.layout == "NCHW" else tensor[0].transpose(2, 0, 1)
    return np.ascontiguousarray(picture, dtype=np.float32)


def readings(observed: npt.NDArray[Any], shape: tuple[int, int], spec: ContractSpec) -> Iterator[Reading]:
    """Yield every reading of `observed` that gives planes of `shape` (height, width), the contract's own first."""
    for layout, planes in _layouts(observed, spec):
        for orientation, turn in UPRIGHT.items():
            upright = turn(planes)
            if upright.shape[1:] == shape:
                yield Reading(layout=layout, orientation=orientation, planes=np.ascontiguousarray(upright, np.float32))


def _layouts(observed: npt.NDArray[Any], spec: ContractSpec) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """Yield (fault or "", [3,h,w]) for a tensor of one picture, with or without its batch axis."""
    one = observed if observed.ndim == 3 else observed[0] if observed.ndim == 4 and len(observed) == 1 else None
    if one is None or one.size == 0:
        return
    first, last = one.shape[0] == 3, one.shape[2] == 3
    wants_first = spec.layout == "NCHW"
    if first:
        yield ("" if wants_first else "channels first instead of last"), one
    if last:
        yield ("channels last instead of first" if wants_first else ""), one.transpose(2, 0, 1)
    flat = np.ascontiguousarray(one).reshape(-1)
    if first and wants_first:
        text = "channels-last numbers under a channels-first shape"
        yield text, flat.reshape(one.shape[1], one.shape[2], 3).transpose(2, 0, 1)
    if last and not wants_first:
        text = "channels-first numbers under a channels-last shape"
        yield text, flat.reshape(3, one.shape[0], one.shape[1])
