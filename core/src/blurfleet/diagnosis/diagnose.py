"""What did a client do to its tensor? The reference is what the contract makes of the same picture. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from blurfleet.api.contract import ContractSpec, SizeRange
from blurfleet.diagnosis.arrangements import RIGHT_ORDER, TURNS, Planes, readings, slots_of
from blurfleet.diagnosis.constants import CRITICAL_DISTANCE, contracts_own
from blurfleet.diagnosis.hypotheses import Hypothesis, as_good, hypotheses, pixels_of, with_fitted_constants
from blurfleet.diagnosis.sampling_grid import CLEAN_LEVELS, Grid, grid_of
from blurfleet.diagnosis.tone import by_a_curve
from blurfleet.errors import ContractRefused
from blurfleet.pixels import Decoded, Pixels
from blurfleet.reasons import Reason

_UNEXPLAINED = 0.5  # of the reference's own spread: more is another picture, or a fault that is not known here
_FITTED_WINS = 0.4  # of the named explanation's distance, beyond one level
_FAR_WORSE = 4.0  # times the distance by the named constants
_LARGEST = 1e9  # 16-bit pixels over a std of 0.001 reach 7e7; squares of what is far beyond are no numbers any more
_FLAT_LEVELS = 4.0  # spread below which a picture shows next to nothing


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One thing that was done, in the terms of its reason; `facts` holds what a script may want to know of it."""

    reason: Reason
    message: str
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """The faults, in the order in which undoing them gives the reference; none where the tensors are the same.

    `before` and `after` are root mean square distances to the reference in the tensor's own units (`before` is None
    where the shapes differ), `levels` is `after` in grey levels. `parameter_distance` is the L2 distance of mean and
    std for pixels of 0..1; beyond 0.6 it is `critical`. `untold` names what this picture cannot tell, and why.
    """

    faults: tuple[Fault, ...]
    before: float | None
    after: float
    levels: float
    parameter_distance: float
    untold: Mapping[str, str] = field(default_factory=dict)

    @property
    def critical(self) -> bool:
        """Tell whether the constants are so far off that the engine sees another picture altogether."""
        return not (self.parameter_distance <= CRITICAL_DISTANCE)


def diagnose(
    reference: npt.NDArray[np.float32],
    observed: npt.NDArray[Any],
    spec: ContractSpec,
    picture: Pixels | None = None,
    reduced: Decoded | None = None,
) -> Diagnosis:
    """Return what was done to `observed`, if the contract makes `reference` of the same picture.

    `reference` is [1,3,H,W] or [1,H,W,3] float32 by `spec`, `observed` any array of numbers. With `picture` (upright
    RGB [H,W,3], uint8 or float32 of 0..255) resize kernels are told by name, `linear-antialias-reduced` where `reduced`
    is the picture as that decodes it. Raises ContractRefused (NonFiniteInput,
    ImpossibleInput for values beyond 1e9, WrongShape where no reading of `observed` has the reference's size).
    """
    if not np.isfinite(observed).all():
        raise ContractRefused(Reason.NON_FINITE_INPUT, "the observed tensor holds NaN or infinity", where="observed")
    if observed.size and not (float(observed.min()) >= -_LARGEST and float(observed.max()) <= _LARGEST):
        text = f"values from {float(observed.min()):g} to {float(observed.max()):g}: nobody's constants reach 1e9"
        raise ContractRefused(Reason.IMPOSSIBLE_INPUT, text, where="observed", fix="send what goes into the engine")
    truth = slots_of(reference, spec)
    pixels = pixels_of(truth, spec)
    found = list(readings(observed, (truth.shape[1], truth.shape[2]), spec))
    if not found:
        text = f"the observed shape {list(observed.shape)} is no reading of the reference's {list(reference.shape)}"
        raise ContractRefused(Reason.WRONG_SHAPE, text, where="observed", fix="resize to the contract's size")
    named = list(hypotheses(found, pixels, spec))
    best, pool = _simplest(named)
    spread = 255.0 * float(np.sqrt(pixels.reshape(3, -1).var(axis=1).mean()))
    fitted = min(with_fitted_constants(found, pixels), key=lambda h: h.distance, default=best)
    fits = spread > _FLAT_LEVELS and best.distance > 1.0 and fitted.distance <= _FITTED_WINS * best.distance
    curved = _curved(named, best, fitted, pixels)
    if curved is not None:
        best = curved
    elif fits:
        best, pool = _simplest(list(with_fitted_constants(found, pixels)))
    before = _distance(observed, reference) if observed.shape == reference.shape else None
    if curved is None and best.distance > max(_UNEXPLAINED * spread, 2 * _FLAT_LEVELS):
        return _unexplained(before, best, spec)
    grid, levels = None, best.distance
    if not best.source.name:
        undone = best.undone()
        levels = 255.0 * _distance(undone, pixels)
        grid = grid_of(undone, pixels, levels, picture, spec_at(spec, (truth.shape[1], truth.shape[2])), reduced)
    levels = grid.distance if grid is not None else levels
    own = contracts_own(spec)
    return Diagnosis(
        faults=tuple(_faults(best, grid)),
        before=before,
        after=levels / 255.0 * float(np.sqrt(np.mean(own.gain**2))),
        levels=levels,
        parameter_distance=best.constants.distance(own),
        untold=_untold(best, pool),
    )


def _curved(all_of: list[Hypothesis], best: Hypothesis, fitted: Hypothesis, pixels: Planes) -> Hypothesis | None:
    """Return the explanation to which a curve over the levels is to be added, None where none explains the rest.

    A curve takes up wrong constants too, so those are only blamed where the contract's own are far worse.
    """
    if min(best.distance, fitted.distance) <= CLEAN_LEVELS or best.source.name:
        return None
    if by_a_curve(best.undone(), pixels, min(best.distance, fitted.distance)) is None:
        return None
    own = next(
        h
        for h in all_of
        if h.reading is best.reading and h.order == best.order and not h.source.name and h.constants.reason is None
    )
    return best if own.distance > _FAR_WORSE * best.distance else own


def spec_at(spec: ContractSpec, shape: tuple[int, int]) -> ContractSpec:
    """Return the contract with its size fixed at one (height, width) of its profile."""
    height, width = (SizeRange(min=length, opt=length, max=length) for length in shape)
    return spec.model_copy(update={"height": height, "width": width})


def _simplest(all_of: list[Hypothesis]) -> tuple[Hypothesis, list[Hypothesis]]:
    """Return the explanation with the fewest faults among those as good as the best, and all of these."""
    limit = as_good(min(h.distance for h in all_of))
    pool = [h for h in all_of if h.distance <= limit]
    return min(pool, key=lambda h: (h.cost, h.order != RIGHT_ORDER, h.distance)), pool


def _unexplained(before: float | None, best: Hypothesis, spec: ContractSpec) -> Diagnosis:
    own = contracts_own(spec)
    message = (
        f"no known fault explains it: the closest leaves {best.distance:.0f} grey levels. "
        "Is it the tensor of the same picture?"
    )
    return Diagnosis(
        faults=(Fault(reason=Reason.UNEXPLAINED_INPUT, message=message),),
        before=before,
        after=best.distance / 255.0 * float(np.sqrt(np.mean(own.gain**2))),
        levels=best.distance,
        parameter_distance=0.0,
    )


def _faults(best: Hypothesis, grid: Grid | None) -> Iterable[Fault]:
    reading = best.reading
    if reading.layout:
        yield Fault(reason=Reason.WRONG_LAYOUT, message=reading.layout)
    if reading.orientation != 1:
        yield Fault(
            reason=Reason.WRONG_ORIENTATION,
            message=f"{TURNS[reading.orientation]}: as if EXIF orientation {reading.orientation} was not applied",
            facts={"orientation": reading.orientation},
        )
    if best.swapped_whole:
        text = "channels exchanged after normalising (or BGR pixels with constants in BGR order: the same tensor)"
        yield Fault(reason=Reason.CHANNEL_SWAP, message=text, facts={"order": best.order})
    elif best.order != RIGHT_ORDER:
        text = f"channels come in the order {list(best.order)} of the contract's, before the constants are applied"
        yield Fault(reason=Reason.CHANNEL_SWAP, message=text, facts={"order": best.order})
    if best.source.name:
        yield Fault(reason=Reason.INTEGER_DIVISION, message=best.source.name)
    if best.constants.reason is not None and not best.swapped_whole:
        yield Fault(
            reason=best.constants.reason,
            message=best.constants.name,
            facts={"mean": best.constants.mean.round(4).tolist(), "std": best.constants.std.round(4).tolist()},
        )
    if grid is not None:
        yield Fault(reason=grid.reason, message=grid.message, facts={"candidates": grid.names})


def _untold(best: Hypothesis, pool: list[Hypothesis]) -> dict[str, str]:
    """Return what the picture leaves open: aspects in which another explanation, else the same, is as good."""
    aspects: dict[str, Callable[[Hypothesis], object]] = {
        "layout": lambda h: h.reading.layout,
        "orientation": lambda h: h.reading.orientation,
        "channel order": lambda h: h.order,
        "arithmetic": lambda h: h.source.name,
        "constants": lambda h: h.constants.name,
    }
    found: dict[str, set[str]] = {}
    for other in pool:
        differing = [name for name, of in aspects.items() if of(other) != of(best)]
        if len(differing) == 1:
            found.setdefault(differing[0], set()).add(str(aspects[differing[0]](other) or "as it is"))
    return {name: f"as good on this picture: {'; '.join(sorted(others))}" for name, others in found.items()}


def _distance(one: npt.NDArray[Any], other: Planes) -> float:
    return float(np.sqrt(np.mean(np.square(one.astype(np.float64) - other))))
