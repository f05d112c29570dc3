"""Printer columns of the seven kinds: what `kubectl get` and `blurfleet get` show; CRDs get theirs from here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

_FILTER = re.compile(r"^(\w+)\[\?\(@\.type==['\"](\w+)['\"]\)\]$")
_STEP = re.compile(r"(\w+\[\?\(@\.\w+==['\"]\w+['\"]\)\]|\w+)")


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column: heading, JSONPath into the object, and its type in a CRD. `wide` columns show with `-o wide`."""

    name: str
    path: str
    type: Literal["string", "integer", "date"] = "string"
    wide: bool = False


def _column(name: str, path: str, *, wide: bool = False) -> Column:
    return Column(name=name, path=path, wide=wide)


def _condition(name: str, kind: str) -> Column:
    return Column(name=name, path=f'.status.conditions[?(@.type=="{kind}")].status')


AGE = Column(name="AGE", path=".metadata.creationTimestamp", type="date")

COLUMNS: dict[str, tuple[Column, ...]] = {
    "EngineSet": (
        _column("MODEL", ".spec.model"),
        _condition("VERIFIED", "Verified"),
        _condition("COMPATIBLE", "Compatible"),
        AGE,
    ),
    "PreprocessContract": (_column("RESIZE", ".spec.resize"), _column("HASH", ".status.hash"), AGE),
    "QualityPolicy": (_condition("READY", "Ready"), AGE),
    "EngineRollout": (
        _column("PHASE", ".status.phase"),
        _column("SET", ".status.set"),
        _column("WAVE", ".status.wave"),
        _column("NODES", ".status.nodes"),
        Column(name="TRIPPED", path=".status.tripped", type="integer"),
        _column("FALLBACK", ".status.fallback"),
        _column("REASON", '.status.conditions[?(@.type=="Ready")].reason', wide=True),
        AGE,
    ),
    "NodeEngine": (
        _column("CLASS", ".spec.deviceClass", wide=True),
        _column("ACTIVE", ".status.active"),
        _column("PRECISION", ".status.precision"),
        _column("FALLBACK", ".status.fallback"),
        _column("ARMED", ".status.armed"),
        _column("LAST-SWAP", ".status.lastSwap"),
        _column("CONNECTED", ".status.connected"),
        AGE,
    ),
    "QualityRun": (
        _column("NODE", ".spec.node"),
        _column("STAGE", ".spec.stage"),
        _column("VERDICT", ".spec.verdict"),
        _column("REASON", ".spec.reason"),
        Column(name="VALID", path=".spec.samplesValid", type="integer"),
        AGE,
    ),
    "EngineQuarantine": (
        _column("DIGEST", ".spec.digest"),
        _column("CLASS", ".spec.class"),
        _column("REASON", ".spec.reason"),
        AGE,
    ),
}


def look_up(body: Mapping[str, Any], path: str) -> Any:
    """Return what `path` (dots and one `[?(@.type=="X")]` filter) finds in `body`, None where there is nothing."""
    found: Any = body
    for step in _STEP.findall(path):
        match = _FILTER.match(step)
        key = match.group(1) if match else step
        if not isinstance(found, Mapping) or key not in found:
            return None
        found = found[key]
        if match:
            items = found if isinstance(found, list) else []
            found = next((i for i in items if i.get("type") == match.group(2)), None)
    return found
