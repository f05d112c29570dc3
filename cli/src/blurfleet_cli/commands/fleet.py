"""`blurfleet up` and `blurfleet down`: the local fleet."""

from __future__ import annotations

from pathlib import Path

import click

from blurfleet.check import dumps
from blurfleet.errors import InvalidInput
from blurfleet.reasons import Reason
from blurfleet.serving.trace import collector
from blurfleet_cli.fleet.local import LocalFleet
from blurfleet_cli.where import fleet_option


@click.command()
@fleet_option
@click.option("--trace-url", help="Collector that gateways, agents and Tritons send spans to; kept; empty: none.")
@click.option("--json", "as_json", is_flag=True, help="Print addresses and processes as JSON.")
def up(fleet: Path, trace_url: str | None, as_json: bool) -> None:
    """Start a local fleet: three nodes, each a real Triton, an agent and a gateway, and one controller.

    Restarting resumes what each node served. Stop it with `blurfleet down`.

    Example: blurfleet up && blurfleet get ne

    Example: blurfleet up --trace-url http://127.0.0.1:4318/v1/traces
    """
    local = LocalFleet(fleet)
    environment = {} if trace_url is None else {"BLURFLEET_TRACE_URL": collector_address(trace_url)}
    plan = local.up(environment=environment, tell=lambda text: click.echo(text, err=True))
    if as_json:
        click.echo(dumps({"nodes": [n.wire() for n in plan.nodes], "processes": local.processes()}))
        return
    for node in plan.nodes:
        click.echo(
            f"{node.name:<8} {node.device_class:<12} gateway http://127.0.0.1:{node.gateway} "
            f"grpc 127.0.0.1:{node.gateway_grpc}  (simulated on CPU)"
        )
    click.echo(f"objects: blurfleet apply -f FILE --fleet {fleet}; state: blurfleet get ne --fleet {fleet}")


def collector_address(url: str) -> str:
    """Return `url` where spans can be sent to it, or it is empty. Raises InvalidInput."""
    try:
        return collector(url)
    except ValueError as error:
        raise InvalidInput(Reason.INVALID_REQUEST, f"{url[:80]!r}: {error}", where="--trace-url") from error


@click.command()
@fleet_option
@click.option("--json", "as_json", is_flag=True, help="Print whether something was stopped as JSON.")
def down(fleet: Path, as_json: bool) -> None:
    """Stop the local fleet; what each node served is kept for the next `up`.

    Example: blurfleet down
    """
    stopped = LocalFleet(fleet).down()
    if as_json:
        click.echo(dumps({"stopped": stopped}))
    else:
        click.echo("stopped" if stopped else "was not running", err=True)
