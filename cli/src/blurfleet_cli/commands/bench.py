"""`blurfleet bench`: figures measured on this machine, on the real parts."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from blurfleet.cache import cache_dir
from blurfleet.check import dumps

CLIENTS = 4
RATE_HZ = 15.0  # a video call's frame rate, per client
UNLOAD_SWAPS = 3
PAIRS = 300  # calls each way through the door
PICTURES = 40
TURNS = 2
TURN_S = 15.0
FLEETS = (100, 1000)  # nodes; 5 000 take a quarter of an hour: bench scale --nodes 5000


@click.group()
def bench() -> None:
    """Measure swaps, metrics and the gateway on this machine.

    Exit codes: 0 the promises hold, 1 one does not, 2 wrong usage. Times are reported, never judged.

    Example: blurfleet bench swap --flips 300 --json
    """


@bench.command()
@click.option("--flips", type=click.IntRange(min=1), default=300, show_default=True, help="Swaps under load.")
@click.option("--clients", type=click.IntRange(min=1), default=CLIENTS, show_default=True, help="Client threads.")
@click.option("--rate", type=click.FloatRange(min=0.1), default=RATE_HZ, show_default=True, help="Requests/s a client.")
@click.option("--unload-swaps", type=click.IntRange(min=1), default=UNLOAD_SWAPS, help="Swaps the unload/load way.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def swap(flips: int, clients: int, rate: float, unload_swaps: int, as_json: bool) -> None:
    """Swap two small engines on a real Triton under client load, then the unload/load way.

    Fails (1) if a request failed, was stale or mixed, or a flip loaded more than the alias.

    Example: blurfleet bench swap --flips 300 --json
    """
    report = measure_swap(flips=flips, clients=clients, rate=rate, unload_swaps=unload_swaps)
    click.echo(dumps(report)) if as_json else show_swap(report)
    sys.exit(0 if swap_holds(report) else 1)


@bench.command()
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def metrics(as_json: bool) -> None:
    """Time the quality metrics on a 320x320 matte, one thread.

    Example: blurfleet bench metrics --json
    """
    from blurfleet_cli import metrics_bench

    report = metrics_bench.run()
    click.echo(dumps(report)) if as_json else show_figures(report)


@bench.command()
@click.option("--pairs", type=click.IntRange(min=1), default=PAIRS, show_default=True, help="Calls each way, in turns.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def door(pairs: int, as_json: bool) -> None:
    """Send a ready 1.2 MB tensor through the gateway, and by a bare tritonclient call to the same engine, in turns.

    Example: blurfleet bench door --pairs 300 --json
    """
    from blurfleet_cli import door_bench

    report = door_bench.run(pairs=pairs, progress=_tell)
    click.echo(dumps(report)) if as_json else show_tree(report)


@bench.command()
@click.option(
    "--rounds", type=click.IntRange(min=1), default=PICTURES, show_default=True, help="Pictures, by every way."
)
@click.option(
    "--turns", type=click.IntRange(min=0), default=TURNS, show_default=True, help="Turns of both servers; 0: none."
)
@click.option("--seconds", type=click.FloatRange(min=1), default=TURN_S, show_default=True, help="Length of one turn.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def gateway(rounds: int, turns: int, seconds: float, as_json: bool) -> None:
    """Time the way from a 1080p JPEG to tensor and finished picture beside usual recipes and rembg's HTTP server.

    Run it in blurfleet's checkout. At the first run the rivals are installed into an environment of their own.

    Example: blurfleet bench gateway --turns 0 --json
    """
    report = measure_gateway(rounds=rounds, turns=turns, seconds=seconds)
    click.echo(dumps(report)) if as_json else show_tree(report)


@bench.command()
@click.option("--nodes", default="100,1000", show_default=True, help="Fleet sizes, comma-separated.")
@click.option("--json", "as_json", is_flag=True, help="Print the reports as JSON.")
def scale(nodes: str, as_json: bool) -> None:
    """Let a class revert on a real API server with simulated nodes; run it in blurfleet's checkout.

    Example: blurfleet bench scale --nodes 100,1000 --json
    """
    from blurfleet_cli import scale_bench

    _end_like_ctrl_c()
    try:
        counts = tuple(int(n) for n in nodes.split(","))
    except ValueError as error:
        raise click.UsageError(f"--nodes takes numbers such as 100,1000, got {nodes!r}") from error
    reports = scale_bench.run(counts, _tell)
    if as_json:
        click.echo(dumps(reports))
        return
    for report in reports:
        show_figures(report)


@bench.command()
@click.option(
    "--rounds", type=click.IntRange(min=1), default=40, show_default=True, help="Pictures each way, in turns."
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def compose(rounds: int, as_json: bool) -> None:
    """Blur the background of 1080p JPEGs, everything but the network, by blurfleet and by the usual recipe, in turns.

    Example: blurfleet bench compose --rounds 40 --json
    """
    from blurfleet_cli import compose_bench

    report = compose_bench.run(rounds)
    click.echo(dumps(report)) if as_json else show_tree(report)


@bench.command("all")
@click.option("--flips", type=click.IntRange(min=1), default=300, show_default=True, help="Swaps under load.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def everything(flips: int, as_json: bool) -> None:
    """Run every bench.

    Example: blurfleet bench all
    """
    from blurfleet_cli import compose_bench, door_bench, metrics_bench, scale_bench

    _end_like_ctrl_c()
    swaps = measure_swap(flips=flips, clients=CLIENTS, rate=RATE_HZ, unload_swaps=UNLOAD_SWAPS)
    figures = metrics_bench.run()
    doors = door_bench.run(pairs=PAIRS, progress=_tell)
    composing = compose_bench.run(PICTURES)
    fleets = scale_bench.run(FLEETS, _tell)
    pictures = measure_gateway(rounds=PICTURES, turns=TURNS, seconds=TURN_S)
    if as_json:
        report = {"swap": swaps, "metrics": figures, "door": doors, "compose": composing, "scale": fleets}
        click.echo(dumps({**report, "gateway": pictures}))
    else:
        show_swap(swaps)
        show_figures(figures)
        show_tree(doors)
        show_tree(composing)
        for fleet in fleets:
            show_figures(fleet)
        show_tree(pictures)
    sys.exit(0 if swap_holds(swaps) else 1)


def _end_like_ctrl_c() -> None:
    """Let SIGTERM end the bench in order, so that the control plane ends with it."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


def measure_swap(*, flips: int, clients: int, rate: float, unload_swaps: int) -> dict[str, Any]:
    """Run both ways of swapping and return one report; `load_average` says how quiet the machine was."""
    from blurfleet_agent.tritonenv import ensure_environment
    from blurfleet_cli.swap_bench import SwapBench, run_swaps, run_unload_load

    env = ensure_environment(cache_dir(), progress=_tell)
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="blurfleet-bench-") as folder, SwapBench(env, Path(folder)) as running:
        report = run_swaps(running, flips=flips, clients=clients, rate_hz=rate, progress=_tell)
        _tell("the unload/load way")
        unload = run_unload_load(running, times=unload_swaps, clients=clients, rate_hz=rate)
    machine = {"cpus": os.cpu_count(), "load_average": round(load_before, 2), "clients": clients, "rate_hz": rate}
    return {**report, **machine, "unload_load": unload}


def measure_gateway(*, rounds: int, turns: int, seconds: float) -> dict[str, Any]:
    """Return the contract bench's report and, with `turns`, the service bench's; `load_average` is from before."""
    from blurfleet_cli import contract_bench, service_bench
    from blurfleet_cli.rivals.environment import ensure_rivals

    rivals = ensure_rivals(cache_dir(), _tell)
    machine = {"cpus": os.cpu_count(), "load_average": round(os.getloadavg()[0], 2)}
    _tell(f"{rounds} pictures by every way")
    report = {**machine, "contract": contract_bench.run(rivals, rounds=rounds)}
    if turns:
        report["service"] = service_bench.run(rivals, seconds=seconds, rounds=turns, progress=_tell)
    return report


def swap_holds(report: dict[str, Any]) -> bool:
    """Tell whether the promises hold: nothing failed, stale or mixed, and each flip loaded one model, the alias."""
    return all(report[count] == 0 for count in ("failed", "stale", "mixed")) and bool(report["loads_per_flip"] == 1)


def show_swap(report: dict[str, Any]) -> None:
    """Print the swap report as a table for people."""
    unload = report["unload_load"]
    click.echo(f"{report['flips']} flips, {report['requests']} requests from {report['clients']} clients")
    click.echo(f"  failed {report['failed']}   stale {report['stale']}   mixed {report['mixed']}")
    click.echo(f"  models loaded per flip: {report['loads_per_flip']:g}")
    for name, label in (("flip", "flip"), ("verify", "verify"), ("routing", "routing file"), ("request", "request")):
        figures = [report[f"{name}_{which}_ms"] for which in ("p50", "p99", "max")]
        click.echo(f"  {label:<13} p50 {figures[0]:8.2f}   p99 {figures[1]:8.2f}   max {figures[2]:8.2f} ms")
    click.echo(
        f"the unload/load way: {unload['failed']} of {unload['requests']} requests failed, "
        f"outage {unload['outage_ms']:.0f} ms"
    )
    click.echo(f"load average before: {report['load_average']} on {report['cpus']} CPUs")


def show_figures(report: dict[str, float]) -> None:
    """Print a flat report of milliseconds as name and value."""
    for key, value in report.items():
        click.echo(f"{key:<24} {value:.3f}")


def show_tree(report: dict[str, Any], indent: str = "") -> None:
    """Print a nested report, a figure a line under the name of its part."""
    for key, value in report.items():
        if isinstance(value, dict):
            click.echo(f"{indent}{key}")
            show_tree(value, indent + "  ")
        else:
            click.echo(f"{indent}{key:<24} {value}")


def _tell(line: str) -> None:
    click.echo(line, err=True)
