"""`blurfleet contract` as a script sees it: JSON shape, exit codes, files."""

import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from click.testing import CliRunner

from blurfleet.api.contract import DEFAULT_CONTRACT, contract_at
from blurfleet.contract import contract_hash
from blurfleet.errors import InvalidInput
from blurfleet.pixels import decode, to_tensor
from blurfleet_cli.commands.contract import contract

CASES = Path(__file__).parents[1] / "cases" / "img"
WANT = json.loads((CASES / "want.json").read_text())


@pytest.mark.parametrize("name", sorted(WANT))
def test_apply_gives_the_verdict_facts_and_tensor(name: str, tmp_path: Path) -> None:
    out = tmp_path / "x.npy"
    result = CliRunner().invoke(contract, ["apply", str(CASES / name), "-o", str(out), "--json"])
    report = json.loads(result.output)
    accepted = WANT[name]["verdict"] == "accept"
    assert (result.exit_code, report["ok"], out.exists()) == ((0, True, True) if accepted else (1, False, False))
    assert report["facts"]["contract_hash"] == contract_hash(DEFAULT_CONTRACT)
    if not accepted:
        assert report["findings"][0]["reason"] == ("EmptyImage" if name == "empty.jpg" else "TruncatedImage")
        return
    decoded = decode((CASES / name).read_bytes(), DEFAULT_CONTRACT)
    facts = (report["facts"]["decoded_size"], report["facts"]["orientation_applied"], report["facts"]["source_mode"])
    assert facts == (list(decoded.decoded_size), decoded.orientation_applied, decoded.source_mode)
    np.testing.assert_array_equal(np.load(out), to_tensor(decoded.rgb, DEFAULT_CONTRACT))


def test_show_can_be_read_back_and_has_the_same_hash(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(CliRunner().invoke(contract, ["show", "--size", "160"]).output)
    result = CliRunner().invoke(contract, ["hash", str(file)])
    assert result.output.strip() == contract_hash(contract_at(160))


def test_diff_names_what_changed_and_exits_1(tmp_path: Path) -> None:
    left, right = tmp_path / "a.yaml", tmp_path / "b.yaml"
    left.write_text(yaml.safe_dump({"kind": "PreprocessContract", "spec": {"colorOrder": "RGB"}}))
    right.write_text(yaml.safe_dump({"colorOrder": "BGR", "mean": ["0.4850", "0.456", "0.406"]}))
    result = CliRunner().invoke(contract, ["diff", str(left), str(right), "--json"])
    assert result.exit_code == 1
    findings = json.loads(result.output)["findings"]
    assert [(f["where"], f["reason"]) for f in findings] == [("colorOrder", "ContractChanged")]
    assert CliRunner().invoke(contract, ["diff", str(left), str(left)]).exit_code == 0


@pytest.mark.parametrize(
    ("text", "reason"),
    [("{", "ContractInvalid"), ("colour: RGB", "ContractInvalid"), ("- 1", "ContractInvalid"), (None, "MissingFile")],
    ids=["no YAML", "an unknown field", "a list", "no file"],
)
def test_a_contract_file_that_is_none_is_refused(text: str | None, reason: str, tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    if text is not None:
        file.write_text(text)
    result = CliRunner().invoke(contract, ["hash", str(file)])
    assert isinstance(result.exception, InvalidInput)
    assert result.exception.reason == reason
