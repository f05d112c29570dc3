"""Entry point: a table of commands, loaded only when called, and one place where errors become exit codes."""

from __future__ import annotations

import importlib
import sys
from typing import Any, NoReturn

import click

from blurfleet import __version__
from blurfleet.check import dumps, refused
from blurfleet.errors import BlurfleetError, NodeError
from blurfleet.reasons import Reason

# name -> (module, attribute, one line of help). Loading a module only when its command runs keeps `--help` instant.
COMMANDS: dict[str, tuple[str, str, str]] = {
    "apply": ("blurfleet_cli.commands.objects", "apply", "Write objects from YAML files into the store."),
    "bench": ("blurfleet_cli.commands.bench", "bench", "Measure swaps, metrics and the unload/load way."),
    "check": ("blurfleet_cli.commands.check", "check", "Check a plan, a Triton config or a file."),
    "cluster": ("blurfleet_cli.commands.cluster", "cluster", "Run a Kubernetes API server here, without containers."),
    "contract": ("blurfleet_cli.commands.contract", "contract", "Show, hash and apply preprocessing contracts."),
    "demo": ("blurfleet_cli.commands.demo", "demo", "Run the whole story on three real nodes."),
    "describe": ("blurfleet_cli.commands.objects", "describe", "Show one object with its conditions and events."),
    "down": ("blurfleet_cli.commands.fleet", "down", "Stop the local fleet."),
    "forge": ("blurfleet_cli.commands.forge", "forge", "Build, search and inspect engines."),
    "get": ("blurfleet_cli.commands.objects", "get", "List objects of a kind."),
    "operator": ("blurfleet_cli.commands.operator", "operator", "Run the operator on a Kubernetes API server."),
    "quality": ("blurfleet_cli.commands.quality", "quality", "Judge mattes and sequences by the exact rules."),
    "replay": ("blurfleet_cli.commands.replay", "replay", "Recompute a verdict from its evidence."),
    "rollout": (
        "blurfleet_cli.commands.rollout",
        "rollout",
        "Watch and steer rollouts, in a cluster or a local fleet.",
    ),
    "up": ("blurfleet_cli.commands.fleet", "up", "Start a local fleet of three nodes."),
    "agent": ("blurfleet_cli.commands.run", "agent", "Run one node's agent."),
    "controller": ("blurfleet_cli.commands.run", "controller", "Run the rollout controller over a store."),
    "triton": ("blurfleet_cli.commands.run", "triton", "Run one local node's Triton."),
    "gateway": ("blurfleet_cli.commands.run", "gateway", "Run one node's gateway."),
}


class LazyGroup(click.Group):
    """A group that imports a command's module only when that command is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the table."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one command, None where the table lacks it."""
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands from the table, importing none."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][2]) for name in self.list_commands(ctx)])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="blurfleet")
def app() -> None:
    """Ship background-blur engines to every node, prove them there, and swap within frames when pictures go wrong.

    Exit codes: 0 it holds, 1 a check or promise failed, 2 wrong usage.

    Example: blurfleet quality compare pair.npz --class a100 --json
    """


def main() -> None:
    """Run the command line; an error raised on purpose becomes one line (or one JSON report) and exit code 1."""
    try:
        app(prog_name="blurfleet")
    except BlurfleetError as error:
        _refuse(error)
    except OSError as error:
        # A file, folder or port of this machine that a command could not use: the system's own words name it.
        _refuse(NodeError(Reason.UNREADABLE_FILE, error.strerror or str(error), where=str(error.filename or "")))


def _refuse(error: BlurfleetError) -> NoReturn:
    if "--json" in sys.argv:
        click.echo(dumps(refused(error.where, error).as_dict()))
    click.echo(f"error: {error}", err=True)
    sys.exit(1)


def require(condition: Any, message: str) -> None:
    """Raise a usage error (exit code 2) with `message` unless `condition` holds."""
    if not condition:
        raise click.UsageError(message)
