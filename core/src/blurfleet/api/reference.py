"""`docs/api.md`: every field of the seven kinds, from the models that the API server's schema is made of.

`python -m blurfleet.api.reference --out docs/api.md` writes it; `make gen` does it with the rest.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from blurfleet.api.base import API_VERSION
from blurfleet.api.columns import COLUMNS
from blurfleet.api.crd import CATEGORY, definition
from blurfleet.api.kinds import KINDS, Kind
from blurfleet.api.rules import RULES
from blurfleet.api.structural import Schema

_HEAD = f"""# The kinds of `{API_VERSION}`

Generated from the models in `core/src/blurfleet/api` by `make gen`; edit those.

`kubectl get {CATEGORY}` lists all of them. Every kind has a status subresource: who writes `spec` never writes
`status`. Durations (`250ms`, `90s`, `1h30m`) and fractions (`"0.0035"`) are text. A field with `*` is required; what a
default stands for is filled in when the object is written. A list marked `by name` (or `by type`) is a map under that
field: names in it are unique, and two writers of different items do not meet.
"""


def page() -> str:
    """Return the whole page as Markdown."""
    return _HEAD + "".join("\n" + _section(kind) for kind in KINDS.values())


def _section(kind: Kind) -> str:
    root = definition(kind, opaque=False)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    facts = ["one per namespace and name" if kind.namespaced else "one per name in the cluster"]
    facts += ["immutable: another spec is another object"] if kind.immutable else []
    columns = ", ".join(f"{c.name}{' (wide)' if c.wide else ''}" for c in COLUMNS[kind.name])
    lines = [f"## {kind.name}", "", root["description"], "", f"`kubectl get {kind.short}`; {'; '.join(facts)}."]
    lines += ["", f"Columns: {columns}.", "", "| field | type | default | |", "|---|---|---|---|"]
    for part in ("spec", "status"):
        lines += _rows(root["properties"][part], part)
    if RULES[kind.name]:
        lines += ["", "Refused with a sentence:", ""]
        lines += [f"- `{rule.path}`: {rule.message}" for rule in RULES[kind.name]]
    return "\n".join(lines) + "\n"


def _rows(schema: Schema, path: str) -> Iterator[str]:
    for name, found in schema.get("properties", {}).items():
        mark = "*" if name in schema.get("required", ()) else ""
        default = f"`{json.dumps(found['default'])}`" if found.get("default") not in (None, {}) else ""
        said = str(found.get("description", "")).replace("|", "\\|")
        yield f"| `{path}.{name}`{mark} | {_type(found)} | {default} | {said} |"
        inner = found.get("items", found)
        yield from _rows(inner, f"{path}.{name}{'[]' if inner is not found else ''}")


def _type(schema: Schema) -> str:
    if schema["type"] == "array":
        keys = schema.get("x-kubernetes-list-map-keys")
        length = f"{schema.get('minItems', 0)} to {schema['maxItems']}"
        return f"list of {length} {_type(schema['items'])}" + (f", by {keys[0]}" if keys else "")
    if "enum" in schema:
        return " or ".join(f"`{v}`" if v else "empty" for v in schema["enum"])
    if "additionalProperties" in schema:
        return f"map of {_type(schema['additionalProperties'])}"
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None or high is not None:
        return f"{schema['type']} " + (f"{low} to {high}" if None not in (low, high) else f"from {low}")
    return str(schema["type"])


def main(arguments: list[str] | None = None) -> int:
    """Write the page to `--out`, or to standard output where it is absent. Raises OSError."""
    parser = argparse.ArgumentParser(prog="python -m blurfleet.api.reference", description=main.__doc__)
    parser.add_argument("--out", type=Path, help="file to write")
    out: Path | None = parser.parse_args(arguments).out
    if out is None:
        sys.stdout.write(page())
    else:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
