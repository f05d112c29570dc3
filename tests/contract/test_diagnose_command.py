"""`blurfleet contract diagnose` as a script sees it: findings by reason, facts, exit codes."""

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import yaml
from click.testing import CliRunner
from tests.diagnosis.frames import picture_file

from blurfleet.api.contract import DEFAULT_CONTRACT, ContractSpec, contract_at
from blurfleet.errors import InvalidInput
from blurfleet.pixels import decode, to_tensor
from blurfleet_cli.commands.contract import contract

PHOTO = picture_file("coffee.png")


@pytest.fixture
def tensors(tmp_path: Path) -> Path:
    """A folder with the right tensor of a photograph, and wrong ones of it."""
    rgb = decode(PHOTO.read_bytes(), DEFAULT_CONTRACT).rgb
    right = to_tensor(rgb, DEFAULT_CONTRACT)
    mean, std = (
        np.array([float(v) for v in row]).reshape(1, 3, 1, 1)
        for row in (("0.485", "0.456", "0.406"), ("0.229", "0.224", "0.225"))
    )
    bilinear = cv2.resize(rgb, (320, 320), interpolation=cv2.INTER_LINEAR).transpose(2, 0, 1)[None]
    for name, array in {
        "right": right,
        "unnormalised": (right * std + mean).astype(np.float32),
        "kernel": ((bilinear / 255 - mean) / std).astype(np.float32),
        "nan": np.full_like(right, np.nan),
    }.items():
        np.save(tmp_path / f"{name}.npy", array)
    return tmp_path


def run(*arguments: object) -> tuple[int, dict[str, Any]]:
    result = CliRunner().invoke(contract, ["diagnose", *map(str, arguments), "--json"])
    return result.exit_code, json.loads(result.output)


def test_the_same_tensor_is_no_fault_and_exits_0(tensors: Path) -> None:
    code, report = run("--reference", tensors / "right.npy", "--observed", tensors / "right.npy")
    assert (code, report["ok"], report["findings"], report["facts"]["faults"]) == (0, True, [], [])
    assert report["facts"]["critical"] is False
    code, report = run("--image", PHOTO, "--observed", tensors / "right.npy")
    assert (code, report["ok"]) == (0, True)


def test_a_fault_is_named_with_its_distances_and_exits_1(tensors: Path) -> None:
    code, report = run("--reference", tensors / "right.npy", "--observed", tensors / "unnormalised.npy")
    assert (code, report["ok"]) == (1, False)
    assert [(f["severity"], f["reason"]) for f in report["findings"]] == [("Error", "NotNormalised")]
    facts = report["facts"]
    assert facts["critical"] is True
    assert facts["parameter_distance"] == pytest.approx(1.5509, abs=1e-3)
    assert facts["distance"]["before"] == pytest.approx(1.13, abs=0.05)
    assert facts["distance"]["after"] < 1e-3


def test_a_kernel_is_named_only_where_the_picture_is_given(tensors: Path) -> None:
    _, without = run("--reference", tensors / "right.npy", "--observed", tensors / "kernel.npy")
    _, named = run("--observed", tensors / "kernel.npy", "--image", PHOTO)
    assert without["facts"]["details"]["WrongKernel"]["candidates"] == []
    assert named["facts"]["details"]["WrongKernel"]["candidates"] == ["linear"]


def test_two_contracts_are_compared_without_tensors(tmp_path: Path) -> None:
    for name, spec in {
        "served": DEFAULT_CONTRACT,
        "bgr": ContractSpec(color_order="BGR", resize="linear"),
        "whole": ContractSpec(color_order="BGR", mean=DEFAULT_CONTRACT.mean[::-1], std=DEFAULT_CONTRACT.std[::-1]),
        "none": ContractSpec(mean=("0", "0", "0"), std=("1", "1", "1")),
        "smaller": contract_at(160),
    }.items():
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(spec.wire()))
    served = tmp_path / "served.yaml"
    wanted = {
        "served": (0, [], 0.0, False),
        "bgr": (1, ["ChannelSwap", "WrongKernel"], 0.0, False),
        "whole": (1, ["ChannelSwap"], 0.1117, False),
        "none": (1, ["NotNormalised"], 1.5509, True),
        "smaller": (1, ["ContractChanged"] * 6, 0.0, False),
    }
    for name, (exit_code, faults, distance, critical) in wanted.items():
        code, report = run("--reference-contract", served, "--observed-contract", tmp_path / f"{name}.yaml")
        assert (code, report["facts"]["faults"], report["facts"]["critical"]) == (exit_code, faults, critical), name
        assert report["facts"]["parameter_distance"] == pytest.approx(distance, abs=1e-3)


def test_wrong_use_exits_2_and_a_tensor_without_numbers_is_refused(tensors: Path) -> None:
    assert CliRunner().invoke(contract, ["diagnose", "--observed", str(tensors / "right.npy")]).exit_code == 2
    code, report = run("--reference", tensors / "right.npy", "--observed", tensors / "nan.npy")
    assert (code, report["findings"][0]["reason"]) == (1, "NonFiniteInput")


def test_a_file_that_is_no_npy_is_refused_by_reason(tmp_path: Path) -> None:
    broken = tmp_path / "broken.npy"
    broken.write_bytes(b"\x93NUMPY\x01\x00junk")
    result = CliRunner().invoke(contract, ["diagnose", "--reference", str(broken), "--observed", str(broken)])
    assert isinstance(result.exception, InvalidInput)
    assert result.exception.reason == "Unparseable"


def test_a_jpeg_resized_from_a_reduced_size_is_named_and_right_where_that_is_the_contract(tmp_path: Path) -> None:
    photo, observed, served = picture_file("china.jpg"), tmp_path / "observed.npy", tmp_path / "served.yaml"
    spec = contract_at(96, ContractSpec(resize="linear-antialias-reduced"))
    np.save(observed, to_tensor(decode(photo.read_bytes(), spec), spec))
    _, named = run("--observed", observed, "--image", photo, "--size", 96)
    assert named["facts"]["details"]["WrongKernel"]["candidates"] == ["linear-antialias-reduced"]
    served.write_text(yaml.safe_dump(spec.wire()))
    code, report = run("--observed", observed, "--image", photo, "--contract", served)
    assert (code, report["ok"]) == (0, True)
