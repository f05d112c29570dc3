"""The seven kinds, how each is named, and how an object is parsed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from pydantic import ValidationError

from blurfleet.api.base import API_VERSION, Model
from blurfleet.api.contract import ContractSpec, ContractStatus
from blurfleet.api.engineset import EngineSetSpec, EngineSetStatus
from blurfleet.api.meta import ObjectMeta
from blurfleet.api.nodeengine import NodeEngineSpec, NodeEngineStatus
from blurfleet.api.policy import PolicySpec, PolicyStatus
from blurfleet.api.qualityrun import QualityRunSpec, QualityRunStatus
from blurfleet.api.quarantine import QuarantineSpec, QuarantineStatus
from blurfleet.api.rollout import RolloutSpec, RolloutStatus
from blurfleet.errors import InvalidSpec
from blurfleet.reasons import Reason

M = TypeVar("M", bound=Model)


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind: names, scope, models, and whether its spec may change after creation."""

    name: str
    plural: str
    short: str
    namespaced: bool
    immutable: bool
    spec: type[Model]
    status: type[Model]


def _kind(name: str, plural: str, short: str, spec: type[Model], status: type[Model], **flags: bool) -> Kind:
    return Kind(
        name=name,
        plural=plural,
        short=short,
        spec=spec,
        status=status,
        namespaced=flags.get("namespaced", True),
        immutable=flags.get("immutable", False),
    )


KINDS: dict[str, Kind] = {
    k.name: k
    for k in (
        _kind("EngineSet", "enginesets", "es", EngineSetSpec, EngineSetStatus, immutable=True),
        _kind("PreprocessContract", "preprocesscontracts", "ppc", ContractSpec, ContractStatus, immutable=True),
        _kind("QualityPolicy", "qualitypolicies", "qp", PolicySpec, PolicyStatus),
        _kind("EngineRollout", "enginerollouts", "er", RolloutSpec, RolloutStatus),
        _kind("NodeEngine", "nodeengines", "ne", NodeEngineSpec, NodeEngineStatus, namespaced=False),
        _kind("QualityRun", "qualityruns", "qr", QualityRunSpec, QualityRunStatus, immutable=True),
        _kind("EngineQuarantine", "enginequarantines", "eq", QuarantineSpec, QuarantineStatus, namespaced=False),
    )
}


@dataclass(frozen=True, kw_only=True)
class Resource:
    """One object: kind, metadata, parsed spec and status."""

    kind: str
    meta: ObjectMeta
    spec: Model
    status: Model

    @property
    def key(self) -> str:
        """Return `Kind/namespace/name` or `Kind/name`."""
        return "/".join(p for p in (self.kind, self.meta.namespace, self.meta.name) if p)

    def with_status(self, status: Model) -> Resource:
        """Return a copy with another status."""
        return replace(self, status=status)

    def wire(self) -> dict[str, Any]:
        """Return the object as it is written."""
        meta = {k: v for k, v in self.meta.wire().items() if v not in ("", 0, {})}
        body = {"apiVersion": API_VERSION, "kind": self.kind, "metadata": meta, "spec": self.spec.wire()}
        status = self.status.wire()
        return body if status == type(self.status)().wire() else {**body, "status": status}


def find_kind(word: str) -> Kind:
    """Return the kind that `word` names: `EngineSet`, `engineset`, `enginesets` or `es`. Raises InvalidSpec."""
    lower = word.lower()
    for kind in KINDS.values():
        if lower in (kind.name.lower(), kind.plural, kind.short):
            return kind
    known = ", ".join(sorted(KINDS))
    raise InvalidSpec(Reason.UNKNOWN_KIND, f"{word!r} is no kind of blurfleet", fix=f"one of {known}")


def parse_resource(body: object, *, where: str = "", default_namespace: str = "default") -> Resource:
    """Return the parsed object. Raises InvalidSpec naming the field, what is wrong and the file (`where`)."""
    if not isinstance(body, Mapping):
        raise InvalidSpec(Reason.UNPARSEABLE, "not an object with apiVersion, kind, metadata and spec", where=where)
    if body.get("apiVersion") != API_VERSION:
        message = f"apiVersion is {body.get('apiVersion')!r}, not {API_VERSION!r}"
        raise InvalidSpec(Reason.UNKNOWN_KIND, message, where=where)
    kind = find_kind(str(body.get("kind", "")))
    known = set(ObjectMeta.model_json_schema(by_alias=True)["properties"])
    raw_meta = body.get("metadata")
    meta = {k: v for k, v in raw_meta.items() if k in known and v is not None} if isinstance(raw_meta, Mapping) else {}
    if kind.namespaced:
        meta["namespace"] = meta.get("namespace") or default_namespace
    place = f"{where}: " if where else ""
    label = f"{place}{kind.name}/{meta.get('name', '?')}"
    return Resource(
        kind=kind.name,
        meta=_parse(ObjectMeta, meta, f"{label} metadata"),
        spec=_parse(kind.spec, body.get("spec") or {}, f"{label} spec"),
        status=_parse(kind.status, body.get("status") or {}, f"{label} status"),
    )


def _parse(model: type[M], raw: object, where: str) -> M:
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        raise invalid(error, where) from error


def invalid(error: ValidationError, where: str) -> InvalidSpec:
    """Return the InvalidSpec for pydantic's `error`: every field named, in words a person can act on."""
    parts = []
    for item in error.errors(include_url=False):
        field = ".".join(str(p) for p in item["loc"])
        text = item["msg"].removeprefix("Value error, ")
        parts.append(f"{field}: {text}" if field else text)
    return InvalidSpec(Reason.INVALID_SPEC, "; ".join(parts), where=where)
