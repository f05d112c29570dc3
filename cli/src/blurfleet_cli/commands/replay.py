"""`blurfleet replay`: recompute a verdict from its evidence."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from blurfleet.check import CheckReport, Finding, Severity, dumps, refused
from blurfleet.errors import BlurfleetError
from blurfleet.quality.replay import ReplayResult, replay_evidence
from blurfleet.reasons import Reason


@click.command()
@click.argument("evidence", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def replay(evidence: Path, as_json: bool) -> None:
    """Recompute the verdict of the EVIDENCE folder from its frames and say whether it is the same.

    Exit code 0 where verdict, reason and figures agree; 1 where they do not or the evidence cannot be read.

    Example: blurfleet replay out/demo/evidence/orin-0-live --json
    """
    try:
        found = replay_evidence(evidence)
    except BlurfleetError as error:
        click.echo(dumps(refused(str(evidence), error).as_dict()) if as_json else f"error: {error}", err=not as_json)
        sys.exit(1)
    report = as_report(str(evidence), found)
    if as_json:
        click.echo(dumps(report.as_dict()))
    else:
        word = "same" if found.same else "DIFFERS"
        click.echo(f"{word}: {found.verdict} {found.reason}, {found.frames} of {found.samples} samples measured again")
        for finding in report.findings:
            click.echo(f"  {finding.where}: {finding.message}")
    sys.exit(0 if found.same else 1)


def as_report(path: str, found: ReplayResult) -> CheckReport:
    """Return the check shape of a replay: one Error per difference."""
    findings = tuple(
        Finding(
            severity=Severity.ERROR,
            reason=Reason.CHECK_FAILED,
            where=d.where,
            message=f"recorded {d.recorded}, recomputed {d.recomputed}",
        )
        for d in found.differences
    )
    facts = {
        "verdict": found.verdict,
        "reason": found.reason,
        "recorded_verdict": found.recorded_verdict,
        "recorded_reason": found.recorded_reason,
        "samples": found.samples,
        "frames": found.frames,
        "same": found.same,
    }
    return CheckReport(path=path, findings=findings, facts=facts)
