"""The CustomResourceDefinitions of the seven kinds, generated from their models.

`python -m blurfleet.api.crd --out charts/blurfleet/crds` writes one file per kind; `make gen` does it with the rest.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import yaml

from blurfleet.api.base import GROUP, VERSION, Model
from blurfleet.api.columns import COLUMNS, Column
from blurfleet.api.engineset import Variant
from blurfleet.api.kinds import KINDS, Kind
from blurfleet.api.meta import Condition
from blurfleet.api.nodeengine import ModelStatus, NodeModel
from blurfleet.api.rollout import Wave
from blurfleet.api.rules import RULES, FieldRule
from blurfleet.api.structural import Dialect, Schema, object_schema

CATEGORY = "blurfleet"
# Item model -> the field that names it, so that two writers of one list do not clobber each other.
LIST_KEYS: dict[type[Model], str] = {
    Condition: "type",
    ModelStatus: "name",
    NodeModel: "name",
    Variant: "name",
    Wave: "name",
}
# NodeEngine inlines policies and contracts of up to 32 models: checked where people write them, kept whole here. It is
# what a fleet writes most, by programs alone, and the server's work grows with the fields that it types (ADR 8).
_INLINED = frozenset({"NodeEngine"})
_OPAQUE: frozenset[type[Model]] = frozenset({NodeModel, ModelStatus})


def definition(kind: Kind, *, opaque: bool = True) -> dict[str, Any]:
    """Return the CustomResourceDefinition of `kind` as it is applied. Raises InvalidSpec for an inexpressible field.

    Without `opaque` every field is spelled out, for a page that people read.
    """
    singular = kind.name.lower()
    names = {"kind": kind.name, "listKind": f"{kind.name}List", "plural": kind.plural, "singular": singular}
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": [_column(c) for c in COLUMNS[kind.name]],
        "schema": {"openAPIV3Schema": _root(kind, opaque=opaque)},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "names": {**names, "shortNames": [kind.short], "categories": [CATEGORY]},
            "scope": "Namespaced" if kind.namespaced else "Cluster",
            "versions": [version],
        },
    }


def _root(kind: Kind, *, opaque: bool) -> Schema:
    bare = kind.name in _INLINED
    whole = _OPAQUE if bare and opaque else frozenset()
    given = Dialect(defaults=not bare, sentences=not bare, keys=LIST_KEYS, atomic=bare, opaque=whole)
    found = Dialect(defaults=False, sentences=False, keys=LIST_KEYS, atomic=bare, floats=True, opaque=whole)
    wish, seen = object_schema(kind.spec, given), object_schema(kind.status, found)
    root: Schema = {
        "type": "object",
        "description": wish["description"],
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": wish,
            "status": seen,
        },
    }
    for rule in RULES[kind.name]:
        _place(root, rule)
    return root


def _place(root: Schema, rule: FieldRule) -> None:
    found = root
    for step in rule.path.split("."):
        found = found["properties"][step.removesuffix("[]")]
        if step.endswith("[]"):
            found = found["items"]
    entry = {"rule": rule.rule, "message": rule.message}
    if rule.told:
        entry["messageExpression"] = rule.told
    found.setdefault("x-kubernetes-validations", []).append(entry)


def _column(column: Column) -> dict[str, Any]:
    body = {"name": column.name, "type": column.type, "jsonPath": column.path}
    return {**body, "priority": 1} if column.wide else body


class _Plain(yaml.SafeDumper):
    """YAML without anchors: they are legal and nobody reads them."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002  the base class names it
        """Write every value out in full."""
        return True


def dump(body: dict[str, Any]) -> str:
    """Return `body` as YAML in the order of its keys, without anchors."""
    return yaml.dump(body, Dumper=_Plain, sort_keys=False, width=120, allow_unicode=True)


def files() -> dict[str, str]:
    """Return file name -> YAML of every kind's definition."""
    head = "# Generated from the models in core/src/blurfleet/api by `make gen`; edit those.\n"
    return {f"{GROUP}_{kind.plural}.yaml": head + dump(definition(kind)) for kind in KINDS.values()}


def main(arguments: list[str] | None = None) -> int:
    """Write the definitions into `--out`, or all to standard output where it is absent. Raises OSError."""
    parser = argparse.ArgumentParser(prog="python -m blurfleet.api.crd", description=main.__doc__)
    parser.add_argument("--out", type=Path, help="folder for one file per kind")
    out: Path | None = parser.parse_args(arguments).out
    if out is None:
        sys.stdout.write("---\n".join(files().values()))
        return 0
    out.mkdir(parents=True, exist_ok=True)
    for name, text in files().items():
        (out / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
