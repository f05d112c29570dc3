"""Where an object's files lie in a folder store, and how a spec file is read and written. No locks, no watching."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from blurfleet.api.base import API_VERSION
from blurfleet.api.kinds import KINDS, Resource
from blurfleet.errors import StoreError
from blurfleet.reasons import Reason
from blurfleet.store.port import Ref

_STATUS = ".status.yaml"
_SPEC = ".yaml"

# The C loader is some ten times faster; both build plain data only.
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_Dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


@dataclass(frozen=True, kw_only=True)
class Files:
    """The three files of one object: what people edit, what is observed, and the store's own bookkeeping."""

    spec: Path
    status: Path
    ledger: Path


def files_of(root: Path, ref: Ref) -> Files:
    """Return where the object's files lie: `<plural>/[<namespace>/]<name>.yaml`, `.status.yaml` beside it."""
    kind = KINDS[ref.kind]
    folder = root / kind.plural / ref.namespace if kind.namespaced and ref.namespace else root / kind.plural
    ledger = root / ".ledger" / folder.relative_to(root)
    return Files(
        spec=folder / f"{ref.name}{_SPEC}",
        status=folder / f"{ref.name}{_STATUS}",
        ledger=ledger / f"{ref.name}.json",
    )


def refs_of(root: Path, kind: str) -> list[Ref]:
    """Return the objects of a kind that have a spec file, ordered by namespace and name."""
    folder = root / KINDS[kind].plural
    pattern = "*/*.yaml" if KINDS[kind].namespaced else "*.yaml"
    paths = [p for p in folder.glob(pattern) if not p.name.startswith(".") and not p.name.endswith(_STATUS)]
    refs = [
        Ref(kind=kind, name=p.name.removesuffix(_SPEC), namespace=p.parent.name if KINDS[kind].namespaced else None)
        for p in paths
    ]
    return sorted(refs, key=lambda r: (r.namespace or "", r.name))


def kind_of_path(root: Path, path: Path) -> str | None:
    """Return the kind that a changed file belongs to, None for bookkeeping and half-written files."""
    parts = path.relative_to(root).parts if path.is_relative_to(root) else ()
    if len(parts) < 2 or path.name.startswith(".") or not path.name.endswith(_SPEC):
        return None
    return next((k.name for k in KINDS.values() if k.plural == parts[0]), None)


def read_yaml(path: Path) -> Any:
    """Return the parsed YAML of `path`. Raises FileNotFoundError, or StoreError(StoreUnreadable) with line, cause."""
    try:
        return yaml.load(path.read_bytes(), Loader=_Loader)
    except FileNotFoundError:
        raise
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f" at line {mark.line + 1}" if mark is not None else ""
        cause = getattr(error, "problem", None) or getattr(error, "strerror", None) or str(error)
        raise StoreError(
            Reason.STORE_UNREADABLE, f"cannot be read{line}: {cause}", where=str(path), fix="mend or remove the file"
        ) from error


def dump_yaml(body: Mapping[str, Any]) -> bytes:
    """Return `body` as YAML without anchors, keys in the given order."""
    return yaml.dump(body, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120).encode()


def spec_body(resource: Resource) -> dict[str, Any]:
    """Return what the spec file holds: only what people write, no versions and no status."""
    meta = resource.meta.wire()
    kept = {k: meta[k] for k in ("name", "namespace", "labels", "annotations") if meta.get(k)}
    return {"apiVersion": API_VERSION, "kind": resource.kind, "metadata": kept, "spec": resource.spec.wire()}
