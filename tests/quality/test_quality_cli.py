"""`blurfleet quality` and `blurfleet replay` as a person or a script meets them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from blurfleet_cli.commands.quality import quality
from blurfleet_cli.commands.replay import replay

CASES = Path(__file__).parents[1] / "cases" / "metrics"


def call(*args: str) -> tuple[int, Any]:
    found = CliRunner().invoke(quality, [*args, "--json"], catch_exceptions=False)
    return found.exit_code, json.loads(found.stdout)


def test_the_class_decides_whether_eight_bit_rounding_is_too_much() -> None:
    pair = str(CASES / "pair_uint8_quantised.npz")
    code, body = call("compare", pair, "--class", "jetson-orin")
    assert (code, body["verdict"], body["metrics"]["max_abs_error"]["limit"]) == (0, "Pass", 0.0035)
    code, body = call("compare", pair, "--class", "a100")
    assert (code, body["verdict"], body["reason"]) == (1, "Fail", "MaxAbsErrorExceeded")
    assert body["findings"][0]["where"] == "max_abs_error"
    assert body["metrics"]["deer"]["verdict"] == "Pass"


def test_non_finite_figures_are_words_in_json() -> None:
    code, body = call("compare", str(CASES / "pair_one_nan.npz"))
    assert (code, body["verdict"], body["reason"]) == (1, "Fail", "NonFiniteOutput")
    assert body["metrics"]["max_abs_error"]["value"] == "NaN"
    assert call("compare", str(CASES / "pair_identical.npz"))[1]["metrics"]["psnr"]["value"] == "+Inf"


def test_a_pair_without_edges_is_inconclusive_and_does_not_exit_0(tmp_path: Path) -> None:
    np.savez(tmp_path / "flat.npz", ref=np.zeros((64, 64), np.float32), cand=np.zeros((64, 64), np.float32))
    code, body = call("compare", str(tmp_path / "flat.npz"))
    assert (code, body["verdict"], body["metrics"]["deer"]["value"]) == (1, "Inconclusive", None)


def _write(path: Path, kind: str) -> None:
    matte = np.zeros((8, 8), np.float32)
    arrays: dict[str, dict[str, Any]] = {
        "no cand": {"ref": matte},
        "two shapes": {"ref": matte, "cand": matte[:4]},
        "bytes": {"ref": matte, "cand": matte.astype(np.uint8)},
        "pickle": {"ref": matte, "cand": np.array([{}], dtype=object)},
    }
    if kind in arrays:
        np.savez(path, **arrays[kind])
    elif kind == "bare array":
        with path.open("wb") as stream:
            np.save(stream, matte)
    elif kind == "half":
        np.savez(path, ref=matte, cand=matte)
        path.write_bytes(path.read_bytes()[:300])
    elif kind != "missing":
        path.write_bytes(b"" if kind == "empty" else b"not an archive")


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("no cand", "MissingFile"),
        ("two shapes", "WrongShape"),
        ("bytes", "WrongDtype"),
        ("pickle", "Unparseable"),
        ("bare array", "Unparseable"),
        ("half", "Unparseable"),
        ("empty", "Unparseable"),
        ("text", "Unparseable"),
        ("missing", "UnreadableFile"),
    ],
)
def test_a_file_that_is_no_pair_is_a_finding_never_a_traceback(tmp_path: Path, kind: str, reason: str) -> None:
    _write(tmp_path / "x.npz", kind)
    code, body = call("compare", str(tmp_path / "x.npz"))
    assert (code, body["ok"], body["verdict"]) == (1, False, "Inconclusive")
    assert [f["reason"] for f in body["findings"]] == [reason]


def test_sequences_are_listed_and_a_malformed_one_does_not_hide_the_others(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text(
        '[{"id": "deer_a", "values": [0.1, 0.1]}, {"id": "what", "values": []}, {"id": "deer_n", "values": [NaN]}]'
    )
    code, rows = call("sequence", str(path))
    assert code == 1
    assert [(r["id"], r["verdict"], r["fires_at_index"], r["reason"]) for r in rows] == [
        ("deer_a", "Pass", None, "WithinLimits"),
        ("what", "Inconclusive", None, "UnknownMetric"),
        ("deer_n", "Fail", 0, "NonFiniteOutput"),
    ]
    path.write_text('[{"id": "deer_a", "values": [0.1, 0.1]}]')
    assert call("sequence", str(path))[0] == 0


def test_the_limits_in_force_are_printed_per_class() -> None:
    code, body = call("limits", "--class", "a100")
    assert code == 0
    assert {(r["metric"], r["limit"]) for r in body["rules"] if "limit" in r} == {
        ("DEER", "0.15"), ("DEER", "0.22"), ("DEER", "0.18"), ("MaxAbsError", "0.0012"), ("MaxAbsError", "0.05"),
        ("SSIM", "0.85"),
    }  # fmt: skip


def test_replaying_what_is_not_there_is_a_finding(tmp_path: Path) -> None:
    found = CliRunner().invoke(replay, [str(tmp_path / "none"), "--json"], catch_exceptions=False)
    assert found.exit_code == 1
    assert json.loads(found.stdout)["findings"][0]["reason"] == "UnreadableFile"


def test_wrong_usage_exits_2() -> None:
    assert CliRunner().invoke(quality, ["compare"]).exit_code == 2
    assert CliRunner().invoke(quality, ["compare", "x", "--class", "h100"]).exit_code == 2
