"""Layout, orientation, channel order and constants in every combination, scored by what undoing it leaves.

The score of a reading needs nothing but first and second moments of reference and observation, so that some thousand
combinations cost as much as a few dozen sums over the picture. Distances are in grey levels (0..255).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from blurfleet.api.contract import ContractSpec
from blurfleet.diagnosis.arrangements import ORDERS, REVERSED, RIGHT_ORDER, Order, Planes, Reading
from blurfleet.diagnosis.constants import Normalisation, Three, contracts_own, normalisations
from blurfleet.reasons import Reason

MAX_POINTS = 1 << 14  # pixels that the moments are taken over
_ODD_ORDER = 1.5  # what an order other than the reversed one costs: nobody's library makes it
SAME_FACTOR, SAME_LEVELS = 1.08, 0.15
"""Two explanations whose distances differ by less than 8 % and 0.15 levels are as good as each other."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Source:
    """Pixels of 0..1 as the client had them before the constants, [3,H,W]; `name` is empty for the reference's own."""

    name: str
    planes: Planes


@dataclass(frozen=True, kw_only=True, eq=False)
class Hypothesis:
    """One explanation: slot j of the reading holds channel `order[j]` of `source`, by `constants`.

    `distance` is the root mean square in levels between the reference and the observation with all that undone.
    """

    reading: Reading
    source: Source
    order: Order
    constants: Normalisation
    distance: float

    @property
    def swapped_whole(self) -> bool:
        """Tell whether the finished tensor's channels are reversed: order and constants are, so it is one fault."""
        return self.order == REVERSED and self.constants.reason is Reason.CONSTANTS_MISORDERED

    @property
    def cost(self) -> float:
        """Return how many faults it takes."""
        order = 0.0 if self.order == RIGHT_ORDER else 1.0 if self.order == REVERSED else _ODD_ORDER
        constants = 0.0 if self.constants.reason is None or self.swapped_whole else 1.0
        return bool(self.reading.layout) + (self.reading.orientation != 1) + bool(self.source.name) + order + constants

    def undone(self) -> Planes:
        """Return the observation as pixels of 0..1 in the reference's slots, [3,H,W] float32."""
        made = np.empty_like(self.reading.planes)
        for slot, channel in enumerate(self.order):
            made[channel] = (self.reading.planes[slot] - self.constants.offset[slot]) / self.constants.gain[slot]
        return made


@dataclass(frozen=True, kw_only=True, eq=False)
class _Moments:
    seen: Three
    seen_square: Three
    real: Three
    real_square: Three
    cross: Three

    def distance(self, order: Order, way: Normalisation) -> float:
        """Return the distance in levels after undoing `way` and `order`."""
        pick = list(order)
        gain, offset = way.gain, way.offset
        mean = (self.seen - offset) / gain
        square = (self.seen_square - 2 * offset * self.seen + offset**2) / gain**2
        cross = (self.cross[range(3), pick] - offset * self.real[pick]) / gain
        left = square - 2 * cross + self.real_square[pick]
        if not np.isfinite(mean).all():
            return float("inf")
        return 255.0 * float(np.sqrt(max(0.0, left.mean())))

    def fitted(self, order: Order) -> tuple[Three, Three]:
        """Return the gain and offset per slot that bring the reference closest to the observation."""
        pick = list(order)
        spread = self.real_square[pick] - self.real[pick] ** 2
        gain = (self.cross[range(3), pick] - self.seen * self.real[pick]) / np.where(spread > 0, spread, 1.0)
        return gain, self.seen - gain * self.real[pick]


def sources_of(pixels: Planes) -> tuple[Source, ...]:
    """Return the reference's pixels of 0..1, and what integer arithmetic makes of them before the constants."""
    levels = np.rint(255.0 * pixels)
    signed = np.where(levels > 127, levels - 256, levels)
    return (
        Source(name="", planes=pixels),
        Source(name="divided by 255 as whole numbers, which leaves 0 and 1", planes=np.floor(levels / 255)),
        Source(name="read as signed bytes: levels above 127 became negative", planes=signed / np.float32(255)),
    )


def hypotheses(found: list[Reading], pixels: Planes, spec: ContractSpec) -> Iterator[Hypothesis]:
    """Yield every explanation of the readings against the reference's `pixels` of 0..1, [3,H,W]."""
    sources, ways = sources_of(pixels), normalisations(spec)
    for reading in found:
        for source in sources:
            moments = _moments(reading.planes, source.planes)
            for order in ORDERS:
                for way in ways if not source.name else ways[:1]:
                    distance = moments.distance(order, way)
                    yield Hypothesis(reading=reading, source=source, order=order, constants=way, distance=distance)


def with_fitted_constants(found: list[Reading], pixels: Planes) -> Iterator[Hypothesis]:
    """Yield the best explanation of each reading and order by constants that nobody named."""
    source = Source(name="", planes=pixels)
    for reading in found:
        moments = _moments(reading.planes, pixels)
        for order in ORDERS:
            gain, offset = moments.fitted(order)
            if not (np.abs(gain) > 1e-6).all():
                continue
            mean, std = (", ".join(f"{v:.3f}" for v in row) for row in (-offset / gain, 1 / gain))
            name = f"as if by mean {mean} and std {std} of pixels of 0..1, or another exposure of the picture"
            way = Normalisation(reason=Reason.OTHER_CONSTANTS, name=name, gain=gain, offset=offset)
            distance = moments.distance(order, way)
            yield Hypothesis(reading=reading, source=source, order=order, constants=way, distance=distance)


def as_good(best: float) -> float:
    """Return the distance up to which an explanation is as good as one at `best`, both in levels."""
    return best * SAME_FACTOR + SAME_LEVELS


def pixels_of(reference: Planes, spec: ContractSpec) -> Planes:
    """Return the contract's tensor [3,H,W] as pixels of 0..1."""
    own = contracts_own(spec)
    return ((reference - own.offset[:, None, None]) / own.gain[:, None, None]).astype(np.float32)


def _moments(seen: Planes, real: Planes) -> _Moments:
    step = max(1, seen[0].size // MAX_POINTS)
    a = seen.reshape(3, -1)[:, ::step].astype(np.float64)
    b = real.reshape(3, -1)[:, ::step].astype(np.float64)
    count = a.shape[1]
    return _Moments(
        seen=a.mean(axis=1),
        seen_square=(a * a).mean(axis=1),
        real=b.mean(axis=1),
        real_square=(b * b).mean(axis=1),
        cross=a @ b.T / count,
    )
