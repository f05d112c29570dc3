"""The images install what constraints.txt pins, and what their processes import."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
LOCKS = ROOT / "images/locks"


def _lock_module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("blurfleet_image_locks", ROOT / "images/lock.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _names(lock: str) -> set[str]:
    return set(re.findall(r"^([a-z0-9._-]+)==", (LOCKS / lock).read_text(), flags=re.MULTILINE))


def test_committed_locks_are_cut_from_the_constraints() -> None:
    assert {p.name: p.read_text() for p in LOCKS.glob("*.txt")} == _lock_module().locks()


def test_every_locked_requirement_has_hashes() -> None:
    for path in LOCKS.glob("*.txt"):
        for part in re.split(r"^(?=[a-z0-9])", path.read_text(), flags=re.MULTILINE)[1:]:
            assert "--hash=sha256:" in part, f"{path.name}: {part.splitlines()[0]}"


@pytest.mark.parametrize(
    ("lock", "needed", "absent"),
    [
        ("operator.txt", {"kopf", "kubernetes", "pydantic", "structlog"}, {"onnx", "tritonclient", "pytest"}),
        ("agent.txt", {"tritonclient", "grpcio", "prometheus-client", "psutil", "click"}, {"kopf", "fastapi"}),
        ("gateway.txt", {"fastapi", "uvicorn", "tritonclient", "click"}, {"kopf", "onnx"}),
        ("forge.txt", {"onnx", "onnxruntime", "click"}, {"kopf", "fastapi"}),
        ("build.txt", {"hatchling", "editables"}, {"numpy"}),
    ],
)
def test_an_image_holds_what_it_needs_and_no_more(lock: str, needed: set[str], absent: set[str]) -> None:
    assert needed <= _names(lock)
    assert not absent & _names(lock)


@pytest.mark.parametrize("image", ["operator", "agent", "gateway", "forge"])
def test_dockerfile_is_for_any_platform_unprivileged_and_hashed(image: str) -> None:
    text = (ROOT / f"images/{image}.Dockerfile").read_text()
    assert "ARG TARGETPLATFORM" in text
    assert "USER 10001:10001" in text
    assert text.count("--require-hashes") == 2
    assert f"images/locks/{image}.txt" in text
