"""`blurfleet quality`: judge pairs of mattes and written-down sequences by the rules that nodes use."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Literal

import click
import numpy as np

from blurfleet.api.nodeengine import DEVICE_CLASSES
from blurfleet.api.policy import MetricName
from blurfleet.check import CheckReport, Finding, Severity, dumps, finite_json, refused
from blurfleet.errors import BlurfleetError, InvalidInput
from blurfleet.quality.golden import GoldenVerdict, judge_golden, number_text
from blurfleet.quality.metrics import Measurement, measure
from blurfleet.quality.rules import bind, default_policy, resolve
from blurfleet.quality.sequences import judge_file
from blurfleet.quality.verdict import COMPARATORS, Verdict, is_sentinel
from blurfleet.reasons import Reason

Kind = Literal["matte", "depth"]
_FIELDS = {
    MetricName.NON_FINITE: "non_finite",
    MetricName.OUT_OF_RANGE: "out_of_range",
    MetricName.COLLAPSED: "collapsed",
    MetricName.MAX_ABS_ERROR: "max_abs_error",
    MetricName.P999_ERROR: "p999_error",
    MetricName.DEER: "deer",
    MetricName.SSIM: "ssim",
}
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_CLASS = click.option(
    "--class", "device_class", type=click.Choice(DEVICE_CLASSES), default="jetson-orin", show_default=True,
    help="Device class whose limits apply.",
)  # fmt: skip
_FILE = click.Path(path_type=Path, dir_okay=False)


@click.group()
def quality() -> None:
    """Judge mattes and sequences by the exact rules.

    Example: blurfleet quality compare pair.npz --class a100 --json
    """


@quality.command()
@click.argument("file", type=_FILE)
@_CLASS
@click.option(
    "--role", type=click.Choice(["primary", "fallback"]), default="primary", show_default=True,
    help="Rules for the engine under test, or for an FP32 fallback.",
)  # fmt: skip
@click.option(
    "--kind", type=click.Choice(["matte", "depth"]), default="matte", show_default=True,
    help="What the arrays are; figures of edges are a matte's.",
)  # fmt: skip
@_JSON
def compare(file: Path, device_class: str, role: str, kind: Kind, as_json: bool) -> None:
    """Judge FILE, an npz with the float arrays `ref` and `cand`, by the golden rules of a class.

    Exit code 0 only for Pass; 1 for Fail, Inconclusive and a file that cannot be read.

    Example: blurfleet quality compare pair.npz --class a100 --json
    """
    try:
        reference, candidate = load_pair(file)
        measurement = measure(reference, candidate, kind=kind)
    except BlurfleetError as error:
        body = {**refused(str(file), error).as_dict(), "metrics": {}, "verdict": Verdict.INCONCLUSIVE}
        click.echo(dumps(body) if as_json else f"error: {error}", err=not as_json)
        sys.exit(1)
    rules = bind(resolve(default_policy(), device_class, "Primary" if role == "primary" else "Fallback"), "Golden")
    body = comparison(str(file), measurement, judge_golden(rules, {"pair": measurement}))
    body["facts"] |= {"class": device_class, "role": role, "kind": kind, "shape": list(reference.shape)}
    click.echo(dumps(body) if as_json else _table(body))
    sys.exit(0 if body["verdict"] == Verdict.PASS else 1)


def comparison(path: str, measurement: Measurement, found: GoldenVerdict) -> dict[str, Any]:
    """Return the documented JSON: the check shape plus `metrics` and `verdict`.

    A figure without a rule in the policy has no limit and no verdict.
    """
    metrics: dict[str, Any] = {
        field: {"value": value, "limit": None, "verdict": None}
        for field, value in ((f, measurement.figures()[name]) for name, f in _FIELDS.items())
    }
    findings = []
    for judged in found.judged:
        field = _FIELDS[judged.rule.metric]
        metrics[field] |= {"limit": judged.rule.limit, "verdict": judged.verdict, "reason": judged.reason}
        if judged.verdict is not Verdict.PASS:
            message = f"{judged.rule.metric} {_text(judged.value)} against {judged.rule.limit:g}"
            findings.append(Finding(severity=Severity.ERROR, reason=judged.reason, where=field, message=message))
    if found.verdict is not Verdict.PASS and not findings:
        findings.append(Finding(severity=Severity.ERROR, reason=found.reason, where=path, message=found.message))
    metrics["psnr"] = {"value": measurement.psnr, "limit": None, "verdict": None}
    facts = {"edge_pixels": measurement.edge_pixels, "reference_non_finite": measurement.reference_non_finite}
    report = CheckReport(path=path, findings=tuple(findings), facts=facts)
    return {**report.as_dict(), "metrics": metrics, "verdict": found.verdict, "reason": found.reason}


def _text(value: float | None) -> str:
    return "not measurable" if value is None else number_text(value)


def load_pair(file: Path) -> tuple[Any, Any]:
    """Return the arrays `ref` and `cand` of an npz. Raises InvalidInput; pickled objects are never loaded."""
    where = str(file)
    try:
        with file.open("rb") as stream:
            archive = np.load(stream, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise InvalidInput(Reason.UNPARSEABLE, "one bare array, not an npz with ref and cand", where=where)
            missing = [key for key in ("ref", "cand") if key not in archive.files]
            if missing:
                message = f"no array called {' or '.join(missing)}; it holds {', '.join(archive.files) or 'nothing'}"
                raise InvalidInput(Reason.MISSING_FILE, message, where=where)
            return archive["ref"], archive["cand"]
    except OSError as error:
        raise InvalidInput(Reason.UNREADABLE_FILE, error.strerror or str(error), where=where) from error
    except BlurfleetError:
        raise
    except Exception as error:
        # A damaged archive surfaces as whatever zipfile, zlib or numpy's header parser happens to raise.
        cause = str(error).split(". ")[0]
        fix = "write it with numpy.savez(FILE, ref=..., cand=...)"
        raise InvalidInput(Reason.UNPARSEABLE, f"not a readable npz: {cause}", where=where, fix=fix) from error


def _table(body: dict[str, Any]) -> str:
    rows = [f"{body['verdict']}  {body['reason']}  {body['path']}"]
    for name, row in finite_json(body["metrics"]).items():
        value = "-" if row["value"] is None else row["value"]
        limit = "" if row["limit"] is None else f"limit {row['limit']:g}"
        rows.append(f"  {name:<14} {value!s:<24} {limit:<14} {row['verdict'] or ''}")
    return "\n".join(rows)


@quality.command()
@click.argument("file", type=_FILE)
@_JSON
def sequence(file: Path, as_json: bool) -> None:
    """Feed each sequence of FILE to a guard and say where it trips.

    Exit code 0 where every sequence passes; 1 where one fails, is inconclusive or malformed.

    Example: blurfleet quality sequence sequences.json --json
    """
    try:
        results = judge_file(file)
    except BlurfleetError as error:
        click.echo(dumps(refused(str(file), error).as_dict()) if as_json else f"error: {error}", err=not as_json)
        sys.exit(1)
    if as_json:
        click.echo(dumps([r.as_dict() for r in results]))
    else:
        for r in results:
            where = "" if r.fires_at_index is None else f" at index {r.fires_at_index}"
            click.echo(f"{r.verdict:<13} {r.id}{where}  {r.reason}  {r.message}".rstrip())
    sys.exit(0 if all(r.verdict is Verdict.PASS for r in results) else 1)


@quality.command()
@_CLASS
@_JSON
def limits(device_class: str, as_json: bool) -> None:
    """Print the default policy as it holds on one class, in order.

    Example: blurfleet quality limits --class a100
    """
    rules = resolve(default_policy(), device_class, "Primary") + tuple(
        r for r in resolve(default_policy(), device_class, "Fallback") if r.role == "Fallback"
    )
    if as_json:
        click.echo(
            dumps({"class": device_class, "policy": default_policy().wire(), "rules": [r.wire() for r in rules]})
        )
        return
    for rule in rules:
        trip = (
            f"for {rule.trip.for_}"
            if rule.trip.for_
            else f"{rule.trip.frames} of {rule.trip.window or rule.trip.frames}"
        )
        limit = "any" if is_sentinel(rule.metric) else f"{COMPARATORS[rule.metric]} {rule.limit}"
        click.echo(
            f"{rule.source:<7} {rule.metric:<12} {limit:<10} {trip:<8} {rule.action:<5} {rule.role or ''}".rstrip()
        )
