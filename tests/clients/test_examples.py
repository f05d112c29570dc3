"""Every example as a team runs it: a process before a real gateway and Triton; and the same text on the page."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from skimage import data

from blurfleet.cache import cache_dir
from blurfleet.contract import contract_hash
from blurfleet.pixels import to_tensor
from blurfleet_agent.tritonenv import ensure_environment
from blurfleet_cli.door_bench import SIZE, SPEC, gateway_before
from blurfleet_cli.swap_bench import SwapBench

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples/clients"
TENSORS = sorted(path.name for path in EXAMPLES.glob("tritonclient_*.py"))


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What a gateway before two tiny engines says of itself; its matte is the first channel."""
    folder = tmp_path_factory.mktemp("door")
    with SwapBench(ensure_environment(cache_dir()), folder, size=SIZE) as bench, gateway_before(bench) as said:
        yield said
        bench.server.kill()  # a stop in order takes 1 to 3 s, and has tests of its own


@pytest.fixture(scope="module")
def tensor() -> np.ndarray:
    return to_tensor(data.astronaut(), SPEC)


def run(folder: Path, *command: str) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("name", TENSORS)
def test_a_tritonclient_example_brings_the_engines_matte(
    door: dict[str, Any], tensor: np.ndarray, tmp_path: Path, name: str
) -> None:
    np.save(tmp_path / "tensor.npy", tensor)
    address = door["address"] if "http" in name else door["grpc_address"]
    said = run(tmp_path, sys.executable, str(EXAMPLES / name), address, contract_hash(SPEC), "tensor.npy", "matte.npy")
    assert said == "FP32"
    np.testing.assert_array_equal(np.load(tmp_path / "matte.npy"), tensor[:, :1])


def test_the_curl_example_brings_the_same_bytes(door: dict[str, Any], tensor: np.ndarray, tmp_path: Path) -> None:
    np.save(tmp_path / "tensor.npy", tensor)
    run(tmp_path, "sh", str(EXAMPLES / "curl_tensor.sh"), door["address"], contract_hash(SPEC), "tensor.npy")
    np.testing.assert_array_equal(np.fromfile(tmp_path / "matte.f32", "<f4").reshape(SIZE, SIZE), tensor[0, 0])


def test_the_curl_example_for_pictures_brings_pictures(door: dict[str, Any], tmp_path: Path) -> None:
    photo = cv2.cvtColor(data.astronaut(), cv2.COLOR_RGB2BGR)
    cv2.imwrite(str(tmp_path / "photo.jpg"), photo)
    run(tmp_path, "sh", str(EXAMPLES / "curl_pictures.sh"), door["address"], "photo.jpg")
    matte = cv2.imread(str(tmp_path / "matte.png"), cv2.IMREAD_UNCHANGED)
    assert matte.shape == photo.shape[:2]
    assert np.corrcoef(matte.ravel(), photo[..., 2].ravel())[0, 1] > 0.9  # the engine's matte is the red channel
    assert cv2.imread(str(tmp_path / "blurred.jpg")).shape == photo.shape


def test_an_example_with_another_contract_ends_with_the_reason(
    door: dict[str, Any], tensor: np.ndarray, tmp_path: Path
) -> None:
    np.save(tmp_path / "tensor.npy", tensor)
    for name, address in (
        ("tritonclient_http.py", door["address"]),
        ("tritonclient_grpc.py", door["grpc_address"]),
    ):
        done = subprocess.run(
            [sys.executable, str(EXAMPLES / name), address, "sha256:0", "tensor.npy", "matte.npy"],
            cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode != 0
        assert "ContractMismatch" in done.stderr
        assert contract_hash(SPEC) in done.stderr


def test_the_page_shows_the_examples_as_they_are() -> None:
    page = (ROOT / "docs/clients.md").read_text(encoding="utf-8")
    shown = dict(re.findall(r"`examples/clients/([\w.]+)`:\n\n```\w+\n(.*?)```\n", page, re.DOTALL))
    files = {path.name: path.read_text(encoding="utf-8") for path in EXAMPLES.iterdir() if path.is_file()}
    assert {name for name in files if name.startswith(("curl_", "tritonclient_"))} <= shown.keys()
    for name, text in shown.items():
        assert text == files[name], f"docs/clients.md shows another {name}"
