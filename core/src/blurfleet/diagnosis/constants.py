"""The ways in which pixels become numbers: the contract's, and the well-known wrong ones, each as gain and offset.

All are written for a pixel v = level / 255: value = gain * v + offset, per slot of the tensor. A slot's constants are
those that the contract gives that slot, whatever channel lies in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from blurfleet.api.contract import ContractSpec
from blurfleet.reasons import Reason

Three = npt.NDArray[np.float64]
CRITICAL_DISTANCE = 0.6
"""L2 distance of (mean, std) beyond which what the engine sees is another picture altogether."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Normalisation:
    """One way: `reason` is None for the contract's own. `gain` and `offset` have one number per slot."""

    reason: Reason | None
    name: str
    gain: Three
    offset: Three

    @property
    def mean(self) -> Three:
        """Return the mean that these numbers amount to, for pixels of 0..1."""
        return -self.offset / self.gain

    @property
    def std(self) -> Three:
        """Return the std that these numbers amount to, for pixels of 0..1."""
        return 1.0 / self.gain

    def distance(self, other: Normalisation) -> float:
        """Return the L2 distance of the six normalisation parameters, for pixels of 0..1."""
        return float(np.linalg.norm(np.concatenate([self.mean - other.mean, self.std - other.std])))


def contracts_own(spec: ContractSpec) -> Normalisation:
    """Return the contract's way."""
    return normalisations(spec)[0]


@lru_cache(maxsize=32)
def normalisations(spec: ContractSpec) -> tuple[Normalisation, ...]:
    """Return the contract's own way, then the wrong ones that differ from it and from each other.

    They were collected from issue threads of serving and segmentation projects: constants exchanged or in the order of
    the other colour order, none at all, other ranges, no division by the scale, everything twice, and the right
    constants in the wrong order of operations.
    """
    mean, std = np.array([float(m) for m in spec.mean]), np.array([float(s) for s in spec.std])
    per, ones, zeros = 255.0 / float(spec.scale), np.ones(3), np.zeros(3)
    ways = [
        (None, "as the contract says", per / std, -mean / std),
        (Reason.CONSTANTS_MISORDERED, "constants in the order of the other colour order", (per / std)[::-1],
         (-mean / std)[::-1]),
        (Reason.NOT_NORMALISED, "values of 0..1 that were not normalised", ones, zeros),
        (Reason.WRONG_SCALE, "values of -1..1", 2 * ones, -ones),
        (Reason.WRONG_SCALE, "pixel levels of 0..255 that were not normalised", 255 * ones, zeros),
        (Reason.WRONG_SCALE, "normalised without dividing by the scale", 255 / std, -mean / std),
        (Reason.WRONG_SCALE, "divided by 255 twice, then normalised", per / 255 / std, -mean / std),
        (Reason.NORMALISED_TWICE, "normalised twice", per / std / std, -mean / std / std - mean / std),
        (Reason.STD_BEFORE_MEAN, "divided by std before the mean was subtracted", per / std, -mean),
        (Reason.OTHER_CONSTANTS, "the mean was not subtracted", per / std, zeros),
        (Reason.OTHER_CONSTANTS, "not divided by std", per * ones, -mean),
    ]  # fmt: skip
    if (mean > 0).all():
        ways.insert(1, (Reason.CONSTANTS_EXCHANGED, "mean and std exchanged for each other", per / mean, -std / mean))
    found: list[Normalisation] = []
    for reason, name, gain, offset in ways:
        known = any(np.allclose(n.gain, gain) and np.allclose(n.offset, offset) for n in found)
        if not known:
            found.append(Normalisation(reason=reason, name=name, gain=gain, offset=offset))
    return tuple(found)
