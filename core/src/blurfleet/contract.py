"""The identity of a preprocessing contract: a canonical hash, and what differs between two of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any

from blurfleet.api.contract import ContractSpec
from blurfleet.identity import digest_bytes

CANONICAL_VERSION = 1  # grows when the meaning of a field changes, so that old hashes stop matching
_DECIMAL_FIELDS = frozenset({"scale", "mean", "std"})


@dataclass(frozen=True, kw_only=True)
class ContractDifference:
    """One field (dotted, as on the wire) that two contracts disagree on, with both values in canonical form."""

    field: str
    left: Any
    right: Any


def _decimal(text: str) -> str:
    number = Decimal(text)
    return format(number.normalize(), "f") if number else "0"


def _canonical(value: Any, *, decimal: bool = False) -> Any:
    if isinstance(value, dict):
        return {key: _canonical(item, decimal=key in _DECIMAL_FIELDS) for key, item in value.items()}
    if isinstance(value, list):
        return [_canonical(item, decimal=decimal) for item in value]
    return _decimal(value) if decimal else value


def canonical(spec: ContractSpec) -> dict[str, Any]:
    """Return the contract as plain data in which equal meaning is equal text ("0.50" is "0.5", "2.55E2" is "255")."""
    return {"canonicalVersion": CANONICAL_VERSION, **_canonical(spec.wire())}


@lru_cache(maxsize=64)
def contract_hash(spec: ContractSpec) -> str:
    """Return `sha256:<64 hex>` of the contract's canonical JSON (sorted keys, no spaces, ASCII)."""
    text = json.dumps(canonical(spec), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return digest_bytes(text.encode())


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {prefix: value}
    return {
        name: leaf
        for key, item in value.items()
        for name, leaf in _flat(item, f"{prefix}.{key}" if prefix else key).items()
    }


def contract_diff(left: ContractSpec, right: ContractSpec) -> tuple[ContractDifference, ...]:
    """Return the fields whose canonical values differ, sorted by name; empty exactly where the hashes are equal."""
    ours, theirs = _flat(canonical(left)), _flat(canonical(right))
    return tuple(
        ContractDifference(field=name, left=ours.get(name), right=theirs.get(name))
        for name in sorted(ours.keys() | theirs.keys())
        if ours.get(name) != theirs.get(name)
    )
