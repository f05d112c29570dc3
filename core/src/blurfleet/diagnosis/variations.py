"""Well-known variations of a contract: a hash that a client declares tells nothing unless one of them has it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import combinations
from typing import Any, get_args

from blurfleet.api.contract import DEFAULT_CONTRACT, ContractSpec, ResizeKernel, SizeRange
from blurfleet.contract import ContractDifference, contract_diff, contract_hash

SIZES = (128, 160, 192, 224, 256, 288, 320, 384, 448, 512, 640, 768, 1024)
_Change = tuple[str, dict[str, Any]]


def differences_of(served: ContractSpec, declared: str) -> tuple[ContractDifference, ...] | None:
    """Return how the contract with the hash `declared` differs from `served` (left), None where it is not known.

    Known are one or two usual changes of the served contract: colour order, kernel, fit, layout, size, constants
    exchanged, misordered or missing; and the same of the default contract.
    """
    known = _known(served).get(declared)
    return None if known is None else contract_diff(served, known)


@lru_cache(maxsize=4)
def _known(served: ContractSpec) -> dict[str, ContractSpec]:
    """Return well-known contracts by hash; 300 to 500 of them, 40 ms once for each contract served."""
    found: dict[str, ContractSpec] = {}
    for base in (served, DEFAULT_CONTRACT):
        for spec in _variations(base):
            found.setdefault(contract_hash(spec), spec)
    found.pop(contract_hash(served), None)
    return found


def _variations(base: ContractSpec) -> Iterator[ContractSpec]:
    yield base
    changes = list(_changes(base))
    for _, change in changes:
        yield base.model_copy(update=change)
    for (one, first), (other, second) in combinations(changes, 2):
        if one != other:
            yield base.model_copy(update={**first, **second})


def _changes(base: ContractSpec) -> Iterator[_Change]:
    """Yield (what is changed, the change): two changes of one kind exclude each other."""
    yield "colour", {"color_order": "BGR" if base.color_order == "RGB" else "RGB"}
    yield "layout", {"layout": "NHWC" if base.layout == "NCHW" else "NCHW"}
    for kernel in get_args(ResizeKernel):
        if kernel != base.resize:
            yield "kernel", {"resize": kernel}
    for fit in ("stretch", "letterbox", "crop"):
        if fit != base.fit:
            yield "fit", {"fit": fit}
    for size in SIZES:
        axis = SizeRange(min=size, opt=size, max=size)
        if (axis, axis) != (base.height, base.width):
            yield "size", {"height": axis, "width": axis}
    yield "constants", {"mean": base.mean[::-1], "std": base.std[::-1]}
    if all(float(value) > 0 for value in base.mean):
        yield "constants", {"mean": base.std, "std": base.mean}
    for scale, mean, std in (("255", "0", "1"), ("1", "0", "1"), ("255", "0.5", "0.5"), ("255", "0.5", "1")):
        yield "constants", {"scale": scale, "mean": (mean,) * 3, "std": (std,) * 3}
    if base.orientation == "apply":
        yield "orientation", {"orientation": "ignore"}
