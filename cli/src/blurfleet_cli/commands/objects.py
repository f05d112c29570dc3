"""`blurfleet apply`, `get` and `describe`: objects in the store, in the manner of kubectl."""

from __future__ import annotations

import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import click
import yaml
from rich.console import Console
from rich.table import Table

from blurfleet.api.columns import COLUMNS, Column, look_up
from blurfleet.api.kinds import KINDS, Kind, Resource, find_kind, parse_resource
from blurfleet.api.meta import timestamp
from blurfleet.check import dumps
from blurfleet.errors import BlurfleetError, InvalidInput, UnknownName
from blurfleet.reasons import Reason
from blurfleet.store.folder import FolderStore
from blurfleet.store.port import Ref
from blurfleet_cli.where import fleet_option, namespace_option, open_store


@click.command()
@click.option(
    "-f", "--filename", "paths", multiple=True, required=True, type=click.Path(path_type=Path),
    help="File or folder of YAML, - for standard input; may be repeated.",
)  # fmt: skip
@fleet_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON report.")
def apply(paths: tuple[Path, ...], fleet: Path, as_json: bool) -> None:
    """Write objects from YAML files (or folders of them, or - for standard input) into the store.

    Every object is tried; exit code 1 if one was refused, with the reason.

    Example: blurfleet apply -f examples/rollout.yaml
    """
    store = open_store(fleet)
    results = [_apply_one(store, body, where) for where, body in _documents(paths)]
    if as_json:
        click.echo(dumps({"ok": all(r["ok"] for r in results), "objects": results}))
    else:
        for result in results:
            click.echo(f"{result['object']} {result['outcome']}" if result["ok"] else f"refused: {result['message']}")
    sys.exit(0 if all(r["ok"] for r in results) else 1)


def _documents(paths: tuple[Path, ...]) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for path in paths:
        files = sorted(path.rglob("*.y*ml")) if path.is_dir() else [path]
        for file in files:
            try:
                text = sys.stdin.read() if str(file) == "-" else file.read_text()
                found += [(str(file), body) for body in yaml.safe_load_all(text) if body is not None]
            except OSError as error:
                said = f"cannot be read: {error.strerror or error}"
                raise InvalidInput(Reason.UNREADABLE_FILE, said, where=str(file)) from error
            except (UnicodeDecodeError, yaml.YAMLError) as error:
                said = f"not YAML: {' '.join(str(error).split())[:300]}"
                raise InvalidInput(Reason.UNPARSEABLE, said, where=str(file), fix="see examples/") from error
    if not found:
        raise InvalidInput(Reason.UNPARSEABLE, "no objects in the given files", where=", ".join(map(str, paths)))
    return found


def _apply_one(store: FolderStore, body: Any, where: str) -> dict[str, Any]:
    try:
        resource = parse_resource(body, where=where)
        old = _find(store, KINDS[resource.kind], resource.meta.name, resource.meta.namespace)
        new = store.apply(resource)
    except BlurfleetError as error:
        return {"ok": False, "object": error.where or where, "reason": error.reason, "message": str(error)}
    unchanged = old is not None and old.meta.generation == new.meta.generation
    return {"ok": True, "object": new.key, "outcome": "unchanged" if unchanged else "configured" if old else "created"}


def _find(store: FolderStore, kind: Kind, name: str, namespace: str | None) -> Resource | None:
    try:
        return store.get(Ref(kind=kind.name, name=name, namespace=namespace if kind.namespaced else None))
    except BlurfleetError:
        return None


@click.command()
@click.argument("kind")
@click.argument("name", required=False)
@fleet_option
@namespace_option
@click.option("-A", "--all-namespaces", "everywhere", is_flag=True, help="List objects of every namespace.")
@click.option(
    "-o", "--output", type=click.Choice(["table", "wide", "yaml", "json"]), default="table",
    show_default=True, help="wide has every column.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Same as -o json.")
def get(kind: str, name: str | None, fleet: Path, namespace: str, everywhere: bool, output: str, as_json: bool) -> None:
    """List objects of a KIND (es, ppc, qp, er, ne, qr, eq), or show one by NAME.

    Exit code 1 if there is none of that NAME, or an object cannot be read.

    Example: blurfleet get er -o wide
    """
    store, found_kind = open_store(fleet), find_kind(kind)
    if name:
        one = _must_find(store, found_kind, name, namespace)
        objects, broken = [one], []
    else:
        objects, broken = store.objects(found_kind.name), store.broken(found_kind.name)
        if found_kind.namespaced and not everywhere:
            objects = [o for o in objects if o.meta.namespace == namespace]
    if as_json or output == "json":
        bodies = [o.wire() for o in objects]
        click.echo(dumps(bodies[0] if name else bodies))
    elif output == "yaml":
        click.echo(yaml.safe_dump_all([o.wire() for o in objects], sort_keys=False), nl=False)
    else:
        Console(width=None if sys.stdout.isatty() else 200).print(_table(found_kind, objects, wide=output == "wide"))
    for item in broken:
        click.echo(f"unreadable: {item.ref}: {item.error}", err=True)
    sys.exit(1 if broken else 0)


def _must_find(store: FolderStore, kind: Kind, name: str, namespace: str) -> Resource:
    found = store.get(Ref(kind=kind.name, name=name, namespace=namespace if kind.namespaced else None))
    if found is None:
        raise UnknownName(
            Reason.NOT_FOUND, f"{kind.name} {name!r} does not exist", fix=f"see `blurfleet get {kind.short}`"
        )
    return found


def _table(kind: Kind, objects: list[Resource], *, wide: bool) -> Table:
    columns = [c for c in COLUMNS[kind.name] if wide or not c.wide]
    table = Table(box=None, pad_edge=False)
    for heading in ("NAME", *(c.name for c in columns)):
        table.add_column(heading, no_wrap=True, overflow="fold" if heading == "NAME" else "ellipsis")
    for item in objects:
        body = item.wire()
        table.add_row(item.meta.name, *(_cell(c, look_up(body, c.path)) for c in columns))
    return table


def _cell(column: Column, value: Any) -> str:
    if value is None or value == "":
        return "-"
    if column.type == "date":
        return _age(time.time() - datetime.fromisoformat(str(value)).timestamp())
    return str(value)


def _age(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{int(seconds // size)}{unit}"
    return f"{max(0, int(seconds))}s"


@click.command()
@click.argument("kind")
@click.argument("name")
@fleet_option
@namespace_option
@click.option("--json", "as_json", is_flag=True, help="Print object and events as JSON.")
def describe(kind: str, name: str, fleet: Path, namespace: str, as_json: bool) -> None:
    """Show one object of a KIND by NAME, with its conditions and the events about it.

    Example: blurfleet describe ne orin-0
    """
    store, found_kind = open_store(fleet), find_kind(kind)
    item = _must_find(store, found_kind, name, namespace)
    events = store.events(Ref(kind=found_kind.name, name=name, namespace=item.meta.namespace))
    if as_json:
        said = [{"at": timestamp(e.at), "type": e.type, "reason": e.reason, "message": e.message} for e in events]
        click.echo(dumps({"object": item.wire(), "events": said}))
        return
    click.echo(yaml.safe_dump(item.wire(), sort_keys=False, allow_unicode=True), nl=False)
    click.echo("events:")
    for event in events:
        click.echo(f"  {timestamp(event.at)}  {event.type:<8}{event.reason}: {event.message}")
