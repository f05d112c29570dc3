"""Sets the stage, runs the acts in order, and always takes the stage down again."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from blurfleet.api.contract import ContractSpec
from blurfleet.api.kinds import parse_resource
from blurfleet.errors import BlurfleetError
from blurfleet_cli.demo import policies
from blurfleet_cli.demo.acts import ACTS
from blurfleet_cli.demo.load import Camera
from blurfleet_cli.demo.photos import load_playlist
from blurfleet_cli.demo.report import summary
from blurfleet_cli.demo.stage import Act, Stage
from blurfleet_cli.fleet.local import LocalFleet
from blurfleet_forge.build import BuildResult

RATE_HZ = 2.0
# The oracle may take this share of the (slow, shared) CPU; on a GPU node the default of 10 % is 20 Hz.
SAMPLE_SHARE = "0.5"

Say = Callable[[str], None]


def tell_story(built: BuildResult, out: Path, say: Say, *, keep: bool = False) -> dict[str, Any]:
    """Run all acts over the engines in `built`; return the summary. The fleet is stopped unless `keep`."""
    started = time.monotonic()
    acts: list[Act] = []
    trouble = ""
    stage = _set_stage(built, out, say)
    try:
        for number, (name, play) in enumerate(ACTS, 1):
            say(f"[bold]act {number}/{len(ACTS)}: {name}[/bold]")
            played = play(stage)
            acts += played
            _applaud(played, say)
    except BlurfleetError as error:
        trouble = str(error)
        say(f"[red]stopped: {trouble}[/red]")
    finally:
        for camera in stage.cameras.values():
            camera.stop()
        if not keep:
            stage.fleet.down()
    figures = _figures(acts, built)
    return summary(acts, seconds=time.monotonic() - started, figures=figures, trouble=trouble)


def _set_stage(built: BuildResult, out: Path, say: Say) -> Stage:
    fleet = LocalFleet(out / "fleet")
    if fleet.running():
        say("stopping the fleet of an earlier run")
        fleet.down()
    for old in ("fleet", "pictures"):
        shutil.rmtree(out / old, ignore_errors=True)
    plan = fleet.up(environment={"BLURFLEET_SAMPLE_SHARE": SAMPLE_SHARE}, tell=say)
    contract = parse_resource(yaml.safe_load(built.contract.read_text()), where=str(built.contract))
    fleet.store.apply(contract)
    for name, spec in (("standard", policies.standard()), ("forced", policies.forced())):
        fleet.store.apply(parse_resource(policies.policy_object(name, spec)))
    assert isinstance(contract.spec, ContractSpec)
    playlist = load_playlist(contract.spec)
    stage = Stage(fleet=fleet, sets=built.sets, playlist=playlist, contract=contract.spec, out=out, say=say)
    for node in plan.nodes:
        url = f"http://127.0.0.1:{node.gateway}"
        stage.cameras[node.name] = Camera(node=node.name, url=url, frames=playlist.calm, rate_hz=RATE_HZ)
    return stage


def _applaud(acts: list[Act], say: Say) -> None:
    for act in acts:
        colour = "green" if act.verdict == "Pass" else "yellow"
        value = f" {act.value} / {act.limit}" if act.limit else ""
        who = f"{act.candidate['precision']} on {act.candidate['class']}"
        say(
            f"  [{colour}]{act.verdict}[/{colour}] {who}: {act.reason}{value}; {act.requests} requests, "
            f"{act.failed} failed, {act.bad_frames_served} damaged frames served"
        )
        for promise in act.promises:
            mark = "[green]✓[/green]" if promise.held else "[red]✗[/red]"
            seen = f" ({promise.seen})" if promise.seen and not promise.held else ""
            say(f"    {mark} {promise.sentence}{seen}")


def _figures(acts: list[Act], built: BuildResult) -> dict[str, Any]:
    swaps = [a.swap_ms for a in acts if a.swap_ms is not None]
    return {
        "requests": sum(a.requests for a in acts),
        "failed": sum(a.failed for a in acts),
        "longest swap at a trip, ms": max(swaps, default=0.0),
        "engines built / reused": f"{built.built} / {built.reused}",
        "build, s": round(built.seconds, 1),
    }
