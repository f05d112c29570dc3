"""`blurfleet check`: look at a file before anything is published from it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn

import click
from pydantic import ValidationError

from blurfleet.api.record import BuildRecord
from blurfleet.check import CheckReport, Severity, dumps, refused
from blurfleet.errors import ArtifactRefused, BlurfleetError, InvalidInput
from blurfleet.plan import read_plan_header
from blurfleet.reasons import Reason

MAX_TEXT_BYTES = 1 << 20


@click.group()
def check() -> None:
    """Check a plan or a Triton config before it is published.

    Exit codes: 0 accepted, 1 refused, 2 wrong usage.

    Example: blurfleet check plan model.plan --json
    """


@check.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def plan(file: Path, as_json: bool) -> None:
    """Read which TensorRT wrote the plan FILE, from its header alone.

    Example: blurfleet check plan model.plan --json
    """
    try:
        header = read_plan_header(file)
    except ArtifactRefused as error:
        show(refused(str(file), error), as_json=as_json)
    facts = {"tensorrt": header.tensorrt, "flavour": header.flavour, "bytes": header.file_bytes}
    show(CheckReport(path=str(file), facts=facts), as_json=as_json)


@check.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--engine", type=click.Path(path_type=Path), help="Build record of the engine that it is to serve.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def config(file: Path, engine: Path | None, as_json: bool) -> None:
    """Lint the Triton model config FILE; with --engine also against the engine's build record.

    Example: blurfleet check config config.pbtxt --engine record.json --json
    """
    from blurfleet_agent.config_lint import lint

    try:
        text = read_text(file)
        record = None if engine is None else read_record(engine)
    except BlurfleetError as error:
        show(refused(str(file), error), as_json=as_json)
    findings, facts = lint(text, record)
    show(CheckReport(path=str(file), findings=findings, facts=facts), as_json=as_json)


def show(report: CheckReport, *, as_json: bool) -> NoReturn:
    """Print `report` and end the process: 0 if it is ok, 1 if not."""
    if as_json:
        click.echo(dumps(report.as_dict()))
    else:
        for finding in report.findings:
            mark = click.style(finding.severity, fg="red" if finding.severity is Severity.ERROR else "yellow")
            click.echo(f"{mark} {finding.reason} at {finding.where}: {finding.message}")
        for key, value in report.facts.items():
            click.echo(f"{key}: {value if isinstance(value, str | int) else dumps(value, indent=None)}")
        click.echo(f"{report.path}: {'accepted' if report.ok else 'refused'}")
    sys.exit(0 if report.ok else 1)


def read_text(path: Path) -> str:
    """Return the file's UTF-8 text (at most 1 MiB). Raises InvalidInput (UnreadableFile, Unparseable)."""
    try:
        with path.open("rb") as handle:
            data = handle.read(MAX_TEXT_BYTES + 1)
    except OSError as error:
        raise InvalidInput(Reason.UNREADABLE_FILE, f"cannot be read: {error.strerror}", where=str(path)) from error
    if len(data) > MAX_TEXT_BYTES:
        raise InvalidInput(Reason.UNPARSEABLE, "larger than 1 MiB: this is no config", where=str(path))
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(Reason.UNPARSEABLE, f"not UTF-8 text: {error.reason}", where=str(path)) from error


def read_record(path: Path) -> BuildRecord:
    """Return the build record in a JSON file. Raises InvalidInput (UnreadableFile, RecordInvalid)."""
    try:
        return BuildRecord.model_validate_json(read_text(path))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise InvalidInput(
            Reason.RECORD_INVALID, f"no build record: {place}: {first['msg']}", where=str(path)
        ) from error
