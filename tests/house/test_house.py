"""Rules of the house that are cheap to break and expensive to find."""

from __future__ import annotations

import operator
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def tracked() -> list[Path]:
    listing = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / line for line in listing.stdout.splitlines() if (ROOT / line).is_file()]


def test_the_operator_folder_never_shadows_the_standard_library() -> None:
    assert not (ROOT / "operator/__init__.py").exists()
    assert operator.add(1, 2) == 3


def test_no_tracked_file_is_large_or_holds_weights() -> None:
    large = [p.name for p in tracked() if p.stat().st_size > 512 * 1024]
    weights = [p.name for p in tracked() if p.suffix in {".plan", ".engine", ".npy"} and p.stat().st_size > 4096]
    assert large == []
    assert weights == []


def test_constraints_pin_every_package_by_version_and_hash_and_name_no_address() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if "==" in line]
    assert len(pins) > 50
    assert all(line.rstrip().endswith("\\") for line in pins)
    assert not any("://" in line for line in lines)


@pytest.mark.parametrize(
    "package",
    ["blurfleet", "blurfleet_forge", "blurfleet_agent", "blurfleet_preprocess", "blurfleet_operator", "blurfleet_cli"],
)
def test_every_package_says_in_its_first_sentence_what_it_is_for(package: str) -> None:
    module = __import__(package)
    assert module.__doc__ is not None
    assert len(module.__doc__.split()) > 10
