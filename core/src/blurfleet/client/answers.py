"""What a gateway answers, typed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from blurfleet.api.contract import ContractSpec
from blurfleet.pixels import Tensor

_STAGE = re.compile(r"([\w-]+);dur=([0-9.]+)")


@dataclass(frozen=True, kw_only=True)
class MadeBy:
    """Who answered, all from one moment of the node's routing.

    `role` is Primary or Fallback. `withheld` is why the served engine's own matte was not given out,
    `unchecked` why it is in doubt where the fallback could not say; else empty.
    `simulated` nodes emulate their precision. `trace` finds the request in logs and traces, `frame` in the guard's
    evidence. `stages` are the gateway's milliseconds.
    """

    engine: str
    digest: str
    precision: str
    role: str
    epoch: int
    contract: str
    trace: str
    frame: str = ""
    simulated: bool = False
    withheld: str = ""
    unchecked: str = ""
    stages: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class MatteAnswer:
    """A matte [H,W] float32 in [0,1]: 1 is the subject."""

    matte: npt.NDArray[np.float32]
    by: MadeBy


@dataclass(frozen=True, kw_only=True)
class TensorAnswer:
    """The network's output [1,1,H,W] float32 in [0,1] on a tensor that the caller made."""

    matte: Tensor
    by: MadeBy


@dataclass(frozen=True, kw_only=True)
class PictureAnswer:
    """An encoded picture, upright and untagged."""

    data: bytes
    media_type: str
    by: MadeBy

    @property
    def rgb(self) -> npt.NDArray[np.uint8]:
        """Return the pixels: uint8 [H,W,3] RGB, [H,W,4] RGBA where the background is transparent."""
        return pixels_of(self.data)


@dataclass(frozen=True, kw_only=True)
class ContractAnswer:
    """The contract that a gateway serves, and its hash."""

    alias: str
    hash: str
    spec: ContractSpec


def made_by(headers: Mapping[str, str]) -> MadeBy:
    """Return who answered, by an answer's headers. What an older gateway does not say is empty."""

    def said(name: str) -> str:
        return headers.get(f"x-blurfleet-{name}", "")

    return MadeBy(
        engine=said("engine"),
        digest=said("digest"),
        precision=said("precision"),
        role=said("role"),
        epoch=int(said("epoch") or 0),
        contract=said("contract"),
        trace=said("trace"),
        frame=said("frame"),
        simulated=said("simulated") == "true",
        withheld=said("withheld"),
        unchecked=said("unchecked"),
        stages={name: float(value) for name, value in _STAGE.findall(headers.get("server-timing", ""))},
    )


def pixels_of(data: bytes) -> npt.NDArray[np.uint8]:
    """Return the pixels of an answered picture: uint8 [H,W] grey, [H,W,3] RGB or [H,W,4] RGBA. Raises ValueError."""
    found: Any = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    if found is None:
        raise ValueError("the answer is not a picture")
    order = {3: cv2.COLOR_BGR2RGB, 4: cv2.COLOR_BGRA2RGBA}
    return np.asarray(cv2.cvtColor(found, order[found.shape[2]]) if found.ndim == 3 else found)
