"""`blurfleet forge`: build engine sets, search and verify precision maps, show build records."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from pydantic import ValidationError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from blurfleet.api.kinds import invalid
from blurfleet.api.record import BuildRecord
from blurfleet.check import CheckReport, Finding, Severity, dumps
from blurfleet.errors import InvalidInput
from blurfleet.reasons import Reason

RECIPE = click.argument("recipe", type=click.Path(exists=True, dir_okay=False, path_type=Path))
SIZE = click.option("--size", type=click.IntRange(32, 2048), help="Pixels a side, instead of the recipe's.")
CLASS = click.option("--class", "device_class", required=True, help="Device class, for example jetson-orin.")
JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


@click.group()
def forge() -> None:
    """Build engines from a recipe, and find out which nodes may compute in FP16.

    Example: blurfleet forge build model_repo/bokeh-u2netp/recipe.yaml --out out/forge
    """


@forge.command()
@RECIPE
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), default=Path("out/forge"), show_default=True,
    help="Folder of blobs by digest, and of the EngineSets that name them.",
)  # fmt: skip
@click.option("--only", multiple=True, metavar="SET", help="Build this set only; may be repeated.")
@click.option(
    "--push",
    metavar="URI",
    envvar="BLURFLEET_ARTIFACTS",
    help="Bring artifacts there, https:// or s3:// or file://; the sets name them there. [env: BLURFLEET_ARTIFACTS]",
)
@SIZE
@JSON
def build(recipe: Path, out: Path, only: tuple[str, ...], push: str | None, size: int | None, as_json: bool) -> None:
    """Build every engine set of RECIPE into --out; what is unchanged since last time is reused.

    Credentials for --push come from the environment: AWS_ variables, or BLURFLEET_ARTIFACTS_TOKEN for https.

    Example: blurfleet forge build model_repo/bokeh-u2netp/recipe.yaml --only bokeh-mixed --json
    """
    from blurfleet.artifacts import Location
    from blurfleet_forge.build import build_all

    at = Location(uri=push, token=os.environ.get("BLURFLEET_ARTIFACTS_TOKEN", "")) if push else None

    with _progress(shown=not as_json) as report:
        result = build_all(recipe, out, size=size, only=only, push=at, progress=report)
    facts = {
        "sets": {name: str(path) for name, path in result.sets.items()},
        "contract": str(result.contract),
        "built": result.built,
        "reused": result.reused,
        "seconds": round(result.seconds, 2),
        "pushed": {"documents": list(result.pushed), "sent": result.sent, "found": result.found},
        "variants": {name: [v.wire() for v in variants] for name, variants in result.variants.items()},
    }
    if as_json:
        click.echo(dumps(CheckReport(path=str(recipe), facts=facts).as_dict()))
        return
    table = Table("set", "variant", "precision", "MiB", "digest")
    for name, variants in result.variants.items():
        for v in variants:
            mebibytes = f"{(v.artifact.bytes or 0) / 2**20:.1f}"
            table.add_row(name, v.name, v.precision, mebibytes, v.artifact.digest[:19])
    Console().print(table)
    click.echo(f"{result.built} engines built, {result.reused} reused, {result.seconds:.1f} s, in {out}")
    if push:
        click.echo(f"{result.sent} blobs sent to {push}, {result.found} were there")
        for uri in result.pushed:
            click.echo(f"  {uri}")


@forge.command()
@RECIPE
@CLASS
@SIZE
@click.option("--write/--dry-run", default=True, show_default=True, help="Replace the map beside the recipe.")
@click.option("--thorough", is_flag=True, help="Also try convolutions below 2 % of the work; many times slower.")
@JSON
def search(recipe: Path, device_class: str, size: int | None, write: bool, thorough: bool, as_json: bool) -> None:
    """Search the precision map of one class (minutes) and write it beside RECIPE if it holds on the held-out frames.

    Example: blurfleet forge search model_repo/bokeh-u2netp/recipe.yaml --class jetson-orin
    """
    from blurfleet_forge.derive import derive_map
    from blurfleet_forge.maps import map_path, save_map

    with _progress(shown=not as_json) as report:
        found = derive_map(recipe, device_class, size=size, progress=report, thorough=thorough)
    path = map_path(recipe, device_class, found.size)
    held = found.held_out
    message = f"{held.over_limit} of {held.frames} held-out frames exceed {found.limit}, largest {held.max_abs:.5f}"
    over = Finding(severity=Severity.ERROR, reason=Reason.CHECK_FAILED, where=device_class, message=message)
    answer = CheckReport(path=str(path), findings=(over,) if held.over_limit else (), facts=found.wire())
    if write and answer.ok:
        save_map(path, found)
    summary = (
        f"{device_class} at {found.size}: {found.fp16_mac_share:.1%} of MACs in FP16 ({found.casts} casts); "
        f"calibration {found.calibration.max_abs:.5f}, held out {held.max_abs:.5f} over {held.frames} frames"
    )
    _answer(answer, summary, as_json)


@forge.command()
@RECIPE
@CLASS
@SIZE
@JSON
def verify(recipe: Path, device_class: str, size: int | None, as_json: bool) -> None:
    """Run the committed map on the held-out frames; exit 1 if any frame exceeds the class's limit.

    Example: blurfleet forge verify model_repo/bokeh-u2netp/recipe.yaml --class a100
    """
    from blurfleet_forge.derive import verify_map

    found, figures, errors = verify_map(recipe, device_class, size=size)
    findings = tuple(
        Finding(
            severity=Severity.ERROR,
            reason=Reason.MAX_ABS_ERROR_EXCEEDED,
            where=e.name,
            message=f"{e.max_abs:.5f} exceeds {found.limit}",
        )
        for e in errors
        if not (e.max_abs <= float(found.limit))
    )
    facts = {"fp16MacShare": found.fp16_mac_share, "heldOut": figures.wire()}
    summary = (
        f"{device_class} at {found.size}: largest error {figures.max_abs:.5f} of {found.limit} over {figures.frames} "
        f"held-out frames, {figures.over_limit} over; {found.fp16_mac_share:.1%} of MACs in FP16"
    )
    _answer(CheckReport(path=str(recipe), findings=findings, facts=facts), summary, as_json)


@forge.command()
@click.argument("record", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@JSON
def show(record: Path, as_json: bool) -> None:
    """Show a build record: what an engine is made of, for which target, and the errors it reached.

    Example: blurfleet forge show out/forge/blobs/sha256/1f0c...
    """
    try:
        found = BuildRecord.model_validate_json(record.read_bytes())
    except ValidationError as error:
        raise InvalidInput(Reason.RECORD_INVALID, str(invalid(error, "").message), where=str(record)) from error
    if as_json:
        click.echo(dumps(CheckReport(path=str(record), facts=found.wire()).as_dict()))
        return
    table = Table(show_header=False)
    share = f"{found.precision_map.fp16_mac_share:.1%} of MACs" if found.precision_map else "none"
    for word, value in (
        ("model", f"{found.model} ({found.model_id}), {found.variant}"),
        ("source", f"{found.source.package} {found.source.file}"),
        ("engine", f"{found.artifact_digest} ({found.artifact_bytes} bytes)"),
        ("target", f"{found.target.device_class}, sm {found.target.sm}, {found.target.runtime_version}"),
        ("precision", f"{found.precision}; FP16: {share}{'; emulated' if found.simulated else ''}"),
        *((f"error, {k}", f"{e.max_abs:.5f} over {e.frames} frames, limit {e.limit}") for k, e in found.errors.items()),
        ("built", f"{found.built_at} in {found.build_seconds:.1f} s"),
    ):
        table.add_row(word, value)
    Console().print(table)


def _answer(report: CheckReport, summary: str, as_json: bool) -> None:
    if as_json:
        click.echo(dumps(report.as_dict()))
    else:
        click.echo(summary)
        for finding in report.findings:
            click.echo(f"{finding.severity} {finding.reason} {finding.where}: {finding.message}", err=True)
    if not report.ok:
        sys.exit(1)


@contextmanager
def _progress(*, shown: bool) -> Iterator[Callable[[str, int, int], None]]:
    columns = (TextColumn("{task.description:40}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not shown) as bar:
        task = bar.add_task("starting", total=None)

        def report(what: str, done: int, total: int) -> None:
            bar.update(task, description=what, completed=done, total=total)

        yield report
