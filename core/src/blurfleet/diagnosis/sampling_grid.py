"""What is left once layout, order and constants are right: another kernel, grid or tone curve, or nothing.

A kernel cannot be named from two tensors alone: what it took away is in neither. With the picture it can.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast, get_args

import cv2
import numpy as np

from blurfleet.api.contract import ContractSpec, ResizeKernel
from blurfleet.diagnosis.arrangements import Planes, slots_of
from blurfleet.diagnosis.hypotheses import as_good, pixels_of
from blurfleet.diagnosis.tone import by_a_curve
from blurfleet.pixels import Decoded, Pixels, to_tensor
from blurfleet.reasons import Reason
from blurfleet.reduced import KERNEL as REDUCED

CLEAN_LEVELS = 0.6
"""Root mean square, grey levels: two libraries that do the same differ by less (rounding is 0.3, JPEG decoders 0.5)."""
_EDGE = 4  # pixels at the border that a shift cannot fill
_HALF = (0.35, 0.65)
_LEAST_SHIFT = 0.2  # pixels of the tensor
_EXPLAINS = 0.6  # of the distance: a shift or a kernel that takes away less explains nothing


@dataclass(frozen=True, kw_only=True)
class Grid:
    """How the tensor's pixels were taken from the picture; `distance` in levels is what is left then.

    `names` has several entries where they cannot be told apart.
    """

    reason: Reason
    names: tuple[str, ...]
    message: str
    distance: float


def grid_of(
    undone: Planes,
    pixels: Planes,
    distance: float,
    picture: Pixels | None,
    spec: ContractSpec,
    reduced: Decoded | None = None,
) -> Grid | None:
    """Return the fault of the sampling grid, None where `undone` is the reference's `pixels` but for rounding.

    Both are pixels of 0..1, [3,H,W], `distance` their difference in levels; `picture` is what both were made of,
    `reduced` the same as `linear-antialias-reduced` decodes it.
    """
    if distance <= CLEAN_LEVELS:
        return None
    named = _by_picture(undone, distance, picture, spec, reduced) if picture is not None else None
    return (
        named
        or _shifted(undone, pixels, distance)
        or _toned(undone, pixels, distance)
        or _another_kernel(undone, pixels, distance)
    )


def _by_picture(
    undone: Planes, distance: float, picture: Pixels, spec: ContractSpec, reduced: Decoded | None
) -> Grid | None:
    scored = sorted(
        (_distance(undone, planes), reason.value, name)
        for reason, name, planes in _made_otherwise(picture, spec, reduced)
    )
    best, word, name = scored[0]
    if not (best <= max(CLEAN_LEVELS, (1 - _EXPLAINS) * distance)):
        return None
    names = tuple(n for d, r, n in scored if r == word and d <= as_good(best))
    several = f"; not told from {', '.join(names[1:])} on this picture" if len(names) > 1 else ""
    return Grid(reason=Reason(word), names=names, message=f"resized by {name}{several}", distance=best)


def _made_otherwise(
    picture: Pixels, spec: ContractSpec, reduced: Decoded | None
) -> Iterator[tuple[Reason, str, Planes]]:
    """Yield pixels of 0..1 that other kernels, fits and grids make of the picture."""

    def made(change: dict[str, Any], rgb: Pixels | Decoded = picture) -> Planes:
        other = spec.model_copy(update=change)
        return pixels_of(slots_of(to_tensor(rgb, other), other), other)

    for kernel in get_args(ResizeKernel):
        if kernel == spec.resize or (kernel == REDUCED and (reduced is None or reduced.reduced_by == 1)):
            continue  # without reduction there is one kernel less: it is `linear-antialias` then
        source = reduced if kernel == REDUCED and reduced is not None else picture
        yield Reason.WRONG_KERNEL, kernel, made({"resize": kernel}, source)
    for fit in ("stretch", "letterbox", "crop"):
        if fit != spec.fit:
            yield Reason.WRONG_KERNEL, f"the contract's kernel, fit {fit}", made({"fit": fit})
    size = (spec.width.opt, spec.height.opt)
    others = {
        "nearest": cv2.INTER_NEAREST,
        "cubic without antialiasing (OpenCV)": cv2.INTER_CUBIC,
        "lanczos without antialiasing (OpenCV)": cv2.INTER_LANCZOS4,
    }
    if spec.fit == "stretch":
        for name, flag in others.items():
            yield Reason.WRONG_KERNEL, name, made({}, cast("Pixels", cv2.resize(picture, size, interpolation=flag)))
        for name, grid in _grids(picture.shape[:2], (size[1], size[0])).items():
            taken = cv2.warpAffine(picture, grid, size, flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP,
                                   borderMode=cv2.BORDER_REPLICATE)  # fmt: skip
            yield Reason.PIXEL_SHIFT, name, made({}, cast("Pixels", taken))


def _grids(source: tuple[int, ...], target: tuple[int, int]) -> dict[str, Any]:
    """Return tensor -> picture maps that are not centred on pixels as every kernel of the contract is."""
    rows, columns = source[0] / target[0], source[1] / target[1]
    corner_rows = (source[0] - 1) / max(1, target[0] - 1)
    corner_columns = (source[1] - 1) / max(1, target[1] - 1)
    return {
        "linear on a grid without half-pixel centres": np.array([[columns, 0, 0], [0, rows, 0]], np.float64),
        "linear with corners aligned": np.array([[corner_columns, 0, 0], [0, corner_rows, 0]], np.float64),
    }


def _shifted(undone: Planes, pixels: Planes, distance: float) -> Grid | None:
    """Return the shift that brings the reference onto the observation, by least squares on its gradients."""
    down, right = _shift_of(undone, pixels)
    size = float(np.hypot(down, right))
    if not (_LEAST_SHIFT <= size <= _EDGE):
        return None
    left = min(
        _distance(_inner(undone), _inner(_moved(pixels, down, right, flag)))
        for flag in (cv2.INTER_CUBIC, cv2.INTER_LINEAR)
    )
    if not (left <= _EXPLAINS * distance):
        return None
    half = all(_HALF[0] <= abs(d) <= _HALF[1] or abs(d) < _LEAST_SHIFT for d in (down, right))
    word = "half a pixel" if half else "by a part of a pixel" if size < 1 else "by pixels"
    message = f"shifted {word}: {down:+.2f} rows, {right:+.2f} columns of the tensor"
    return Grid(reason=Reason.PIXEL_SHIFT, names=(word,), message=message, distance=left)


def _shift_of(undone: Planes, pixels: Planes) -> tuple[float, float]:
    down = right = 0.0
    for _ in range(4):
        moved = _moved(pixels, down, right, cv2.INTER_CUBIC)
        slope_down, slope_right = np.gradient(moved, axis=(1, 2))
        a = np.stack([-_inner(np.asarray(slope_down)).ravel(), -_inner(np.asarray(slope_right)).ravel()], axis=1)
        b = (_inner(undone) - _inner(moved)).ravel()
        normal = a.T @ a
        if not (np.linalg.cond(normal) < 1e6):
            return 0.0, 0.0
        step = np.linalg.solve(normal, a.T @ b)
        down, right = float(down + step[0]), float(right + step[1])
        if not (abs(down) <= _EDGE and abs(right) <= _EDGE):
            return 0.0, 0.0
    return down, right


def _moved(planes: Planes, down: float, right: float, flag: int) -> Planes:
    """Return the planes moved by fractions of a pixel."""
    by = np.array([[1, 0, right], [0, 1, down]], np.float64)
    size = (planes.shape[2], planes.shape[1])
    moved = [cv2.warpAffine(p, by, size, flags=flag, borderMode=cv2.BORDER_REPLICATE) for p in planes]
    return np.stack([np.asarray(p, np.float32) for p in moved])


def _toned(undone: Planes, pixels: Planes, distance: float) -> Grid | None:
    left = by_a_curve(undone, pixels, distance)
    if left is None:
        return None
    message = "levels were changed by a curve before the constants: gamma, a colour profile, or another exposure"
    return Grid(reason=Reason.TONE_CHANGED, names=(), message=message, distance=left)


def _another_kernel(undone: Planes, pixels: Planes, distance: float) -> Grid:
    ratio = _detail(undone) / max(_detail(pixels), 1e-9)
    word = "sharper" if ratio > 1.02 else "softer" if ratio < 0.98 else "as sharp"
    why = {
        "sharper": "as without antialiasing",
        "softer": "as by a wider kernel",
        "as sharp": "by another kernel or decoder",
    }[word]
    message = f"resized otherwise: {word} than the reference, {why}; give the picture to learn which kernel"
    return Grid(reason=Reason.WRONG_KERNEL, names=(), message=message, distance=distance)


def _detail(planes: Planes) -> float:
    return float(np.mean([np.abs(cv2.Laplacian(p, cv2.CV_32F)).mean() for p in planes]))


def _inner(planes: Planes) -> Planes:
    return planes[:, _EDGE:-_EDGE, _EDGE:-_EDGE]


def _distance(one: Planes, other: Planes) -> float:
    """Return the root mean square difference in grey levels."""
    return 255.0 * float(np.sqrt(np.mean(np.square(one.astype(np.float64) - other))))
