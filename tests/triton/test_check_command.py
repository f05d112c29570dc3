"""`blurfleet check plan` and `check config`: shape, exit codes, words for people."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from blurfleet_cli.commands.check import check
from blurfleet_cli.tiny_engines import tiny_record

CASES = Path(__file__).resolve().parents[1] / "cases"


def run(*argv: object) -> tuple[int, dict[str, Any]]:
    """Run `blurfleet check ... --json`; return exit code and report."""
    result = CliRunner().invoke(check, [*map(str, argv), "--json"])
    return result.exit_code, json.loads(result.stdout)


WANTED = [
    (kind, name, want)
    for kind, folder in (("plan", "plan"), ("config", "triton"))
    for name, want in json.loads((CASES / folder / "want.json").read_text()).items()
    if want != "either"
]


@pytest.mark.parametrize(("kind", "name", "want"), WANTED, ids=[f"{kind} {name}" for kind, name, _ in WANTED])
def test_each_case_gets_its_verdict(kind: str, name: str, want: str | None) -> None:
    code, report = run(kind, CASES / ("plan" if kind == "plan" else "triton") / name)
    assert set(report) == {"path", "ok", "findings", "facts"}
    if want in (None, "refuse"):
        assert (code, report["ok"]) == (1, False)
        assert {"severity", "reason", "where", "message"} == set(report["findings"][0])
    else:
        assert (code, report["ok"], report["findings"]) == (0, True, [])
    if kind == "plan" and want is not None:
        assert report["facts"]["tensorrt"].startswith(want + ".")


def test_a_config_is_compared_with_the_engine_that_is_given(tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    record.write_text(tiny_record("sha256:" + "a" * 64, size=512).model_dump_json(by_alias=True))
    code, report = run("config", CASES / "triton" / "config_all.pbtxt", "--engine", record)
    assert code == 1
    assert {finding["reason"] for finding in report["findings"]} == {"RecordMismatch"}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        pytest.param(b"\xff\xfe\x00", "Unparseable", id="bytes that are no text"),
        pytest.param(b" " * (1 << 20) + b"x", "Unparseable", id="more than a config can be"),
        pytest.param(b"", "Unparseable", id="nothing"),
    ],
)
def test_a_file_that_is_no_config_is_refused(content: bytes, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "config.pbtxt"
    path.write_bytes(content)
    code, report = run("config", path)
    assert (code, report["findings"][0]["reason"]) == (1, reason)


def test_an_absent_file_and_a_record_that_is_none_are_refused(tmp_path: Path) -> None:
    code, report = run("plan", tmp_path / "none.plan")
    assert (code, report["findings"][0]["reason"]) == (1, "UnreadableFile")
    (tmp_path / "record.json").write_text("{}")
    code, report = run("config", CASES / "triton" / "config_all.pbtxt", "--engine", tmp_path / "record.json")
    assert (code, report["findings"][0]["reason"]) == (1, "RecordInvalid")


def test_people_read_the_cause_and_the_remedy() -> None:
    result = CliRunner().invoke(check, ["plan", str(CASES / "plan" / "zero_length.plan")])
    assert result.exit_code == 1
    assert "TruncatedPlan" in result.stdout
    assert "the file is empty (copy it again and compare digests)" in result.stdout


def test_a_missing_argument_is_wrong_usage() -> None:
    assert CliRunner().invoke(check, ["plan"]).exit_code == 2
