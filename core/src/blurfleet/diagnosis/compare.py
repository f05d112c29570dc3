"""What tensors made by one contract are to an engine that expects another: told without any tensor. Pure."""

from __future__ import annotations

import numpy as np

from blurfleet.api.contract import ContractSpec
from blurfleet.contract import contract_diff
from blurfleet.diagnosis.constants import Normalisation, contracts_own, normalisations
from blurfleet.diagnosis.diagnose import Fault
from blurfleet.reasons import Reason

_FIELDS = {
    "layout": Reason.WRONG_LAYOUT,
    "resize": Reason.WRONG_KERNEL,
    "fit": Reason.WRONG_KERNEL,
    "orientation": Reason.WRONG_ORIENTATION,
}
_CONSTANTS = ("scale", "mean", "std", "colorOrder")


def compare_contracts(reference: ContractSpec, observed: ContractSpec) -> tuple[tuple[Fault, ...], float]:
    """Return the faults of tensors by `observed` where `reference` is served, and the L2 distance of their constants.

    The distance is over mean and std for pixels of 0..1, slot by slot of the tensor; beyond 0.6 it is critical.
    """
    right, wrong = contracts_own(reference), contracts_own(observed)
    faults = [
        Fault(
            reason=_FIELDS.get(change.field, Reason.CONTRACT_CHANGED),
            message=f"{change.field} is {change.right}, not {change.left}",
        )
        for change in contract_diff(reference, observed)
        if change.field not in _CONSTANTS
    ]
    swapped = reference.color_order != observed.color_order
    named = next((way for way in normalisations(reference) if _same(way, wrong)), None)
    if swapped:
        whole = named is not None and named.reason is Reason.CONSTANTS_MISORDERED
        text = "the whole tensor's channels are exchanged" if whole else "channels are exchanged before the constants"
        message = f"{text}: {observed.color_order}, not {reference.color_order}"
        faults.insert(0, Fault(reason=Reason.CHANNEL_SWAP, message=message))
        if whole:
            return tuple(faults), wrong.distance(right)
    if not _same(right, wrong):
        reason = named.reason if named is not None and named.reason is not None else Reason.OTHER_CONSTANTS
        message = named.name if named is not None else "other mean, std or scale"
        facts = {"mean": wrong.mean.round(4).tolist(), "std": wrong.std.round(4).tolist()}
        faults.append(Fault(reason=reason, message=message, facts=facts))
    return tuple(faults), wrong.distance(right)


def _same(one: Normalisation, other: Normalisation) -> bool:
    return bool(np.allclose(one.gain, other.gain) and np.allclose(one.offset, other.offset))
