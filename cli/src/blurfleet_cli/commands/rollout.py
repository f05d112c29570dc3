"""`blurfleet rollout`: watch and steer rollouts, in a cluster (--kubeconfig) or a local fleet (--fleet)."""

from __future__ import annotations

import functools
import os
import secrets
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.tree import Tree

from blurfleet.api.engineset import EngineSetSpec
from blurfleet.api.kinds import Resource
from blurfleet.check import dumps
from blurfleet.store.port import Ref, Store, ref_of
from blurfleet_cli import rollouts
from blurfleet_cli.rollouts import NodeLine, Place
from blurfleet_cli.where import fleet_option, namespace_option

_ENDED = ("Promoted", "RolledBack", "Aborted", "Stalled")


@click.group()
def rollout() -> None:
    """Watch and steer rollouts. As a kubectl plugin: `kubectl blurfleet rollout status NAME`.

    Exit codes: 0 it is so, 1 the rollout did not succeed or a rule refuses, 2 wrong usage.

    Example: blurfleet rollout status bokeh --watch
    """


def _kubectl_config() -> Path | None:
    """Return kubectl's kubeconfig where this runs as its plugin, None else."""
    if not Path(sys.argv[0]).name.startswith("kubectl-"):
        return None
    named = os.environ.get("KUBECONFIG", "").split(os.pathsep)[0]
    return Path(named) if named else Path.home() / ".kube/config"


def _placed(function: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(function)
    def command(
        name: str, namespace: str, fleet: Path, kubeconfig: Path | None, context: str | None, **rest: Any
    ) -> None:
        with rollouts.opened(Place(fleet=fleet, kubeconfig=kubeconfig, context=context)) as store:
            function(store=store, found=rollouts.find(store, name, namespace), **rest)

    options = (
        click.argument("name"),
        namespace_option,
        fleet_option,
        click.option(
            "--kubeconfig",
            type=click.Path(path_type=Path, dir_okay=False, exists=True),
            envvar="BLURFLEET_KUBECONFIG",
            default=_kubectl_config,
            help="Ask this cluster instead of a local fleet; as a kubectl plugin, kubectl's own by default.",
        ),
        click.option("--context", help="Context of the kubeconfig."),
        click.option("--json", "as_json", is_flag=True, help="Print JSON."),
    )
    wrapped: Callable[..., None] = command
    for option in reversed(options):
        wrapped = option(wrapped)
    return wrapped


@rollout.command()
@_placed
@click.option("--watch", is_flag=True, help="Follow until the rollout ends.")
def status(store: Store, found: Resource, as_json: bool, watch: bool) -> None:
    """Show where a rollout is and why; with --watch, follow it and exit 1 unless it is promoted.

    Example: blurfleet rollout status bokeh --watch
    """
    shown: dict[str, Any] = {}
    ended = False

    def show(one: Resource) -> None:
        nonlocal shown, ended
        said = rollouts.summary(one)
        if said != shown:
            click.echo(dumps(said, indent=None if watch else 2) if as_json else _sentence(said))
        shown, ended = said, said["current"] and said["phase"] in _ENDED

    show(found)
    if watch and not ended:
        _follow(store, found, show, lambda: ended)
    if watch:
        sys.exit(0 if shown["phase"] == "Promoted" else 1)


def _follow(store: Store, found: Resource, show: Callable[[Resource], None], ended: Callable[[], bool]) -> None:
    ref = ref_of(found)
    for _ in store.watch(("EngineRollout", "NodeEngine"), ended):
        one = store.get(ref)
        if one is None:
            click.echo("the rollout was deleted", err=True)
            sys.exit(1)
        show(one)
        if ended():
            return


def _sentence(said: dict[str, Any]) -> str:
    wave = f" wave {said['wave']}" if said["wave"] else ""
    tripped = f", {said['tripped']} tripped" if said["tripped"] else ""
    why = f": {said['message']} [{said['reason']}]" if said["reason"] else ""
    return f"{said['namespace']}/{said['name']} {said['phase']} {said['set']}{wave} {said['nodes']} nodes{tripped}{why}"


def _token_command(field: str, text: str, example: str) -> None:
    @_placed
    @click.option("--token", help="Act once for this token; default: a new one.")
    def command(store: Store, found: Resource, as_json: bool, token: str | None) -> None:
        given = token or secrets.token_hex(6)
        changed = rollouts.change(store, found, {"ops": {field: given}})
        said = {"object": changed.key, "field": f"spec.ops.{field}", "token": given}
        click.echo(dumps(said) if as_json else f"{changed.key}: spec.ops.{field} = {given}")

    command.__doc__ = f"{text}\n\n    Example: {example}\n    "
    rollout.command(field)(command)


_token_command(
    "promote", "Open the current wave's gate and end its soak.", "blurfleet rollout promote bokeh --kubeconfig FILE"
)
_token_command("abort", "Go back to the last-known-good set, from any phase.", "blurfleet rollout abort bokeh")
_token_command("retry", "Try the set again: latches and verdicts of the last try end.", "blurfleet rollout retry bokeh")


@rollout.command()
@_placed
def undo(store: Store, found: Resource, as_json: bool) -> None:
    """Point the rollout at the set that was last known good before this one. Under Git, commit that instead.

    Example: blurfleet rollout undo bokeh
    """
    target = rollouts.undo_target(found)
    spec, _ = rollouts.parts(found)
    changed = rollouts.change(store, found, {"engineSet": target})
    said = {"object": changed.key, "from": spec.engine_set, "to": target}
    click.echo(dumps(said) if as_json else f"{changed.key}: spec.engineSet {spec.engine_set} -> {target}")


@rollout.command()
@_placed
@click.option("--watch", is_flag=True, help="Print it again at every change until the rollout ends.")
def tree(store: Store, found: Resource, as_json: bool, watch: bool) -> None:
    """Show the rollout with its classes and nodes: what each is told, serves, and how far its candidate is.

    Example: blurfleet rollout tree bokeh
    """
    shown = ""
    ended = False

    def show(one: Resource) -> None:
        nonlocal shown, ended
        said = rollouts.summary(one)
        lines = rollouts.node_lines(one, store.objects("NodeEngine"))
        text = dumps({**said, "nodeLines": [asdict(n) for n in lines]}) if as_json else _drawn(said, lines)
        if text != shown:
            click.echo(text)
        shown, ended = text, said["current"] and said["phase"] in _ENDED

    show(found)
    if watch and not ended:
        _follow(store, found, show, lambda: ended)


def _drawn(said: dict[str, Any], lines: list[NodeLine]) -> str:
    root = Tree(_sentence(said), guide_style="dim")
    for device_class in sorted({n.device_class for n in lines}):
        mine = [n for n in lines if n.device_class == device_class]
        branch = root.add(f"{device_class} ({sum(not n.differs for n in mine)}/{len(mine)} serve what they are told)")
        for n in mine:
            what = f"{n.serving}@{n.serving_digest} {n.precision} {n.role} epoch {n.epoch}" if n.serving else "nothing"
            extra = [f"wants {n.wanted}@{n.wanted_digest}"] if n.differs else []
            extra += [f"candidate {n.candidate}"] if n.candidate else []
            extra += [f"tripped {n.tripped}"] if n.tripped else []
            branch.add(", ".join([f"{n.name}: {what}", *extra]))
    console = Console(width=200, no_color=True)
    with console.capture() as caught:
        console.print(root)
    return caught.get().rstrip()


@rollout.command()
@_placed
def diff(store: Store, found: Resource, as_json: bool) -> None:
    """Show what the rollout's set changes against the last-known-good one, and which nodes serve something else.

    Example: blurfleet rollout diff bokeh
    """
    spec, state = rollouts.parts(found)
    good = next(
        (k.set for k in sorted(state.known_good, key=lambda k: k.at, reverse=True) if k.set != spec.engine_set), ""
    )
    rows = rollouts.set_difference(_set(store, found, good), _set(store, found, spec.engine_set))
    lines = [n for n in rollouts.node_lines(found, store.objects("NodeEngine")) if n.differs]
    if as_json:
        click.echo(dumps({"from": good, "to": spec.engine_set, "variants": rows, "nodes": [asdict(n) for n in lines]}))
        return
    table = Table(box=None, pad_edge=False, title=f"{good or '(none)'} -> {spec.engine_set}", title_justify="left")
    for heading in ("TARGET", "FROM", "TO"):
        table.add_column(heading, no_wrap=True)
    for row in rows:
        table.add_row(row["target"], row["from"] or "-", row["to"] or "-")
    Console(width=None if sys.stdout.isatty() else 200).print(table)
    for n in lines:
        click.echo(f"{n.name} serves {n.serving}@{n.serving_digest}, is told {n.wanted}@{n.wanted_digest}")


def _set(store: Store, found: Resource, name: str) -> EngineSetSpec | None:
    one = store.get(Ref(kind="EngineSet", name=name, namespace=found.meta.namespace)) if name else None
    return one.spec if one is not None and isinstance(one.spec, EngineSetSpec) else None
