"""Pydantic models -> the structural OpenAPI v3 schema that a CustomResourceDefinition takes.

Covers exactly what the kinds use and refuses the rest: no union but `X | None` (an absent field), no recursion, no
open-ended object. Lists and texts are always bounded, because the API server prices every rule by the worst case.
"""

from __future__ import annotations

import re
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import MaxLen, MinLen
from pydantic import TypeAdapter
from pydantic.alias_generators import to_camel
from pydantic.fields import FieldInfo

from blurfleet.api.base import DURATION_PATTERN, FRACTION_PATTERN, Model
from blurfleet.errors import InvalidSpec
from blurfleet.identity import DIGEST_PATTERN
from blurfleet.reasons import Reason

Schema = dict[str, Any]

# Bounds where a model gives none; far above what is ever written, low enough for the cost estimator.
MAX_TEXT = 1024
MAX_ITEMS = 64
MAX_ENTRIES = 64
MAX_REASON = 64

# What a person reads instead of "should match '^([0-9]+h)?...'".
SENTENCES = {
    DURATION_PATTERN: "not a duration; write for example 250ms, 90s, 2m or 1h30m",
    FRACTION_PATTERN: 'not a decimal number; write it as text, for example "0.0035"',
    DIGEST_PATTERN: "not a digest; write sha256: and 64 lower-case hex digits",
}
_FIELD = re.compile(r"`([a-z]+(?:_[a-z]+)+)`")
_LEAF_KEYS = frozenset({"type", "pattern", "minLength", "maxLength", "minimum", "maximum", "format"})


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """How one part of a kind is written.

    `defaults`: the server fills in defaults (spec; a status holds only what was observed). `sentences`: patterns become
    rules with a message; off where lists nest so deep that the rules would exceed the cost budget.
    `keys`: item model -> the field that makes a list of it a map. `atomic`: an object in a field has one writer, who
    writes it as a whole, so that the server need not keep who wrote each field. `floats` are for what was observed.
    Of an `opaque` item only its key is typed: the rest is kept as written, whole, and checked by who reads it.
    """

    defaults: bool
    sentences: bool
    keys: Mapping[type[Model], str]
    atomic: bool = False
    floats: bool = False
    opaque: frozenset[type[Model]] = frozenset()


def object_schema(model: type[Model], dialect: Dialect) -> Schema:
    """Return the schema of `model`. Raises InvalidSpec naming the field that cannot be expressed."""
    properties, required = {}, []
    for name, field in model.model_fields.items():
        alias = field.serialization_alias or field.alias or name
        properties[alias] = _field(field, dialect, f"{model.__name__}.{name}")
        if field.is_required():
            required.append(alias)
    schema: Schema = {"type": "object", "description": _told(model.__doc__ or model.__name__)}
    if model in dialect.opaque:
        return _opaque(schema, properties, dialect.keys[model])
    schema["properties"] = properties
    return {**schema, "required": required} if required else schema


def _opaque(schema: Schema, properties: Mapping[str, Schema], key: str) -> Schema:
    fields = ", ".join(properties)
    return {
        **schema,
        "description": f"{schema['description']} Fields: {fields}; see docs/api.md.",
        "required": [key],
        "properties": {key: properties[key]},
        "x-kubernetes-preserve-unknown-fields": True,
        "x-kubernetes-map-type": "atomic",
    }


def _field(field: FieldInfo, dialect: Dialect, where: str) -> Schema:
    schema = _typed(field.annotation, field.metadata, dialect, where)
    if dialect.atomic and schema.get("properties"):
        schema = {**schema, "x-kubernetes-map-type": "atomic"}
    if field.description:
        schema = {**schema, "description": _told(field.description)}
    default = None if field.is_required() else written(field.get_default(call_default_factory=True))
    if dialect.defaults and default not in (None, "", [], {}):
        schema["default"] = default
    elif dialect.defaults and default == {} and schema.get("properties"):
        schema["default"] = {}
    return schema


def _told(text: str) -> str:
    """Return prose about the models as prose about the wire: one line, field names in camelCase."""
    return _FIELD.sub(lambda found: f"`{to_camel(found.group(1))}`", " ".join(text.split()))


def written(value: Any) -> Any:
    """Return a default as JSON; a model made without arguments is `{}`: the server fills in its fields."""
    if isinstance(value, Model):
        return value.wire() if value.model_fields_set else {}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple | list):
        return [written(item) for item in value]
    return value


def _typed(annotation: Any, metadata: Sequence[Any], dialect: Dialect, where: str) -> Schema:
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _typed(args[0], [*args[1:], *metadata], dialect, where)
    if origin in (Union, types.UnionType):
        kept = [a for a in args if a is not type(None)]
        if len(kept) != 1:
            raise _refuse(where, f"a union of {len(kept)} types")
        return _typed(kept[0], metadata, dialect, where)
    if origin is tuple:
        return _array(args, metadata, dialect, where)
    if origin is dict:
        if args[0] is not str:
            raise _refuse(where, "a map with keys that are no text")
        values = _typed(args[1], (), dialect, where)
        return {"type": "object", "maxProperties": MAX_ENTRIES, "additionalProperties": values}
    if origin is Literal:
        return _choices(args, where)
    if isinstance(annotation, type):
        return _plain(annotation, metadata, dialect, where)
    raise _refuse(where, f"{annotation!r}")


def _plain(kind: type, metadata: Sequence[Any], dialect: Dialect, where: str) -> Schema:
    if issubclass(kind, Model):
        return object_schema(kind, dialect)
    if kind is Reason:
        # Not the closed set itself: an agent newer than the CRD must be able to report its new reason.
        return {"type": "string", "pattern": "^[A-Z][A-Za-z0-9]*$", "maxLength": MAX_REASON}
    if issubclass(kind, Enum):
        return _choices([member.value for member in kind], where)
    if kind is float and not dialect.floats:
        raise _refuse(where, "a float in a spec; fractions are decimal text")
    if kind in (bool, int, float, str):
        return _leaf(kind, metadata, dialect, where)
    raise _refuse(where, kind.__name__)


def _leaf(kind: type, metadata: Sequence[Any], dialect: Dialect, where: str) -> Schema:
    bounded: Any = Annotated[(kind, *metadata)] if metadata else kind
    described: TypeAdapter[Any] = TypeAdapter(bounded)
    schema: Schema = {k: v for k, v in described.json_schema().items() if k not in ("title", "description")}
    if not schema.keys() <= _LEAF_KEYS:
        raise _refuse(where, f"the keywords {sorted(schema.keys() - _LEAF_KEYS)}")
    if kind is int:
        return {**schema, "format": "int64"}
    if kind is not str:
        return schema
    pattern = schema.get("pattern")
    if pattern == DIGEST_PATTERN:
        schema["maxLength"] = len("sha256:") + 64
    if pattern == DURATION_PATTERN:
        schema["minLength"] = 1  # every part of a duration is optional, the whole is not
    schema.setdefault("maxLength", MAX_TEXT)
    if dialect.sentences and pattern in SENTENCES:
        del schema["pattern"]
        quoted = pattern.replace("\\", "\\\\")
        schema["x-kubernetes-validations"] = [{"rule": f"self.matches('{quoted}')", "message": SENTENCES[pattern]}]
    return schema


def _array(args: Sequence[Any], metadata: Sequence[Any], dialect: Dialect, where: str) -> Schema:
    if len(args) == 2 and args[1] is Ellipsis:
        low = max((m.min_length for m in metadata if isinstance(m, MinLen)), default=None)
        high = min((m.max_length for m in metadata if isinstance(m, MaxLen)), default=MAX_ITEMS)
    elif args and all(a is args[0] for a in args):
        low = high = len(args)
    else:
        raise _refuse(where, "a tuple of different types")
    schema: Schema = {"type": "array", "items": _typed(args[0], (), dialect, where), "maxItems": high}
    if low:
        schema["minItems"] = low
    key = dialect.keys.get(args[0])
    return {**schema, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]} if key else schema


def _choices(values: Sequence[Any], where: str) -> Schema:
    words = [v for v in values if v != ""]
    if not all(isinstance(v, str) for v in values):
        raise _refuse(where, "a choice that is no text")
    return {"type": "string", "enum": words if len(words) == len(values) else ["", *words]}


def _refuse(where: str, what: str) -> InvalidSpec:
    return InvalidSpec(
        Reason.INVALID_SPEC, f"{what} has no structural schema", where=where, fix="choose a plainer type for the field"
    )
