"""Holds a stream's matte steady where the picture stands still, and measures how much it flickers. Pure.

Compared is the tensor that the engine was fed: it lies pixel on pixel with the matte. Each pixel's past counts with the
chosen strength where the picture there stands still and not at all where it moves, so that an edge that moves leaves
no ghost. The picture's own past is carried along with the same weights: a slow movement adds up until it is seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import cv2
import numpy as np
import numpy.typing as npt

from blurfleet.api.contract import ContractSpec
from blurfleet.pixels import Tensor
from blurfleet.quality.sentinel import Matte

STILL_LEVELS, MOVING_LEVELS = 6.0, 18.0
"""Change of the channel that changes most, of 255: camera and JPEG noise stay below 6 after the resize to the
network's size; from 18 on a pixel counts as moving."""
CUT_SHARE = 0.5
"""With more than this share of moving pixels it is another scene."""
_LEAST_STILL = 64

Plane = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Sight:
    """One answered frame: its matte [H,W] and the tensor by `spec` it was made from. `made_by` tells engines apart."""

    matte: Matte
    tensor: Tensor
    spec: ContractSpec
    made_by: str


@dataclass(frozen=True, kw_only=True)
class Past:
    """What the next frame is compared with: the last matte sent and the engine's own, and the carried picture."""

    sent: Matte
    own: Matte
    levels: Plane
    made_by: str


@dataclass(frozen=True, kw_only=True)
class Steady:
    """The matte to send; its flicker and the engine's own, None where nothing compares; whether the scene is new."""

    matte: Matte
    flicker: float | None = None
    engine_flicker: float | None = None
    cut: bool = False


def steadied(past: Past | None, sight: Sight, strength: float) -> tuple[Past, Steady]:
    """Return what the next frame needs and the matte to send: the sight's own where `strength` is 0.

    The past does not count over a scene cut, another size, or another engine (whose mattes may be why it was swapped).
    """
    levels = _levels(sight.tensor, sight.spec)
    if past is None or past.levels.shape != levels.shape or past.sent.shape != sight.matte.shape:
        return _begun(sight, levels), Steady(matte=sight.matte)
    motion = _motion(levels, past.levels)
    if np.count_nonzero(motion > MOVING_LEVELS) > CUT_SHARE * motion.size:
        return _begun(sight, levels), Steady(matte=sight.matte, cut=True)
    keep = np.float32(strength if past.made_by == sight.made_by else 0.0) * (1 - _moving(motion))
    matte = _carried(sight.matte, past.sent, _at(keep, sight.matte.shape)) if strength > 0 else sight.matte
    still = _at(motion, sight.matte.shape) <= STILL_LEVELS
    now = Past(sent=matte, own=sight.matte, levels=_carried(levels, past.levels, keep[None]), made_by=sight.made_by)
    return now, Steady(
        matte=matte, flicker=flicker(matte, past.sent, still), engine_flicker=flicker(sight.matte, past.own, still)
    )


def flicker(now: Matte, before: Matte, still: npt.NDArray[np.bool_]) -> float | None:
    """Return mean |now - before| over the pixels [H,W] that stood still, in [0,1]; None for fewer than 64 of them."""
    if np.count_nonzero(still) < _LEAST_STILL:
        return None
    return float(cv2.mean(cv2.absdiff(now, before), still.view(np.uint8))[0])


def _begun(sight: Sight, levels: Plane) -> Past:
    return Past(sent=sight.matte, own=sight.matte, levels=levels, made_by=sight.made_by)


def _levels(tensor: Tensor, spec: ContractSpec) -> Plane:
    """Return the tensor as [3,H,W] in levels of 255, up to a constant: only differences matter."""
    planes = tensor[0] if spec.layout == "NCHW" else tensor[0].transpose(2, 0, 1)
    step = np.asarray(spec.std, dtype=np.float32) * np.float32(255.0)
    return np.ascontiguousarray(planes * step[:, None, None])


def _motion(now: Plane, before: Plane) -> Plane:
    """Return the change around every pixel [H,W] in levels: averaged over 3x3, spread to 5x5 for soft edges."""
    first, second, third = (cv2.absdiff(one, other) for one, other in zip(now, before, strict=True))
    change: Any = cv2.blur(cv2.max(cv2.max(first, second), third), (3, 3))
    return cast("Plane", cv2.dilate(change, np.ones((5, 5), np.uint8)))


def _moving(motion: Plane) -> Plane:
    share = np.clip((motion - STILL_LEVELS) / (MOVING_LEVELS - STILL_LEVELS), 0.0, 1.0)
    return cast("Plane", share * share * (3 - 2 * share))


def _at(plane: Plane, shape: tuple[int, ...]) -> Plane:
    if plane.shape == shape:
        return plane
    return cast("Plane", cv2.resize(plane, (shape[1], shape[0]), interpolation=cv2.INTER_LINEAR))


def _carried(now: Any, before: Any, keep: Any) -> Any:
    """Return `now` with the share `keep` of `before`; between the two, so a matte stays in [0,1]."""
    return (now + keep * (before - now)).astype(np.float32)
