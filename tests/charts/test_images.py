"""The images install what constraints.txt pins and their processes import, by hash, from files that are there."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
LOCKS = ROOT / "images/locks"


IMAGES = ("operator", "agent", "gateway", "forge")
# Image -> what its command imports: a package stands for all its modules.
STARTS = {
    "operator": ("blurfleet_cli.main", "blurfleet_cli.commands.operator", "blurfleet_operator"),
    "agent": ("blurfleet_cli.main", "blurfleet_cli.commands.run", "blurfleet_agent"),
    "gateway": ("blurfleet_cli.main", "blurfleet_cli.commands.run", "blurfleet_preprocess"),
    "forge": ("blurfleet_cli.main", "blurfleet_cli.commands.forge", "blurfleet_forge"),
}
# Imports what it is told to, and refuses every distribution that is not in the lock, as the image would.
ONLY_LOCKED = """
import importlib, importlib.metadata, json, pkgutil, re, sys

allowed = set(json.loads(sys.argv[1])) | {"blurfleet"}
owners = importlib.metadata.packages_distributions()


class Refuse:
    def find_spec(self, name, path=None, target=None):
        dists = {re.sub(r"[-_.]+", "-", d).lower() for d in owners.get(name.partition(".")[0], ())}
        if dists and not dists & allowed:
            raise ModuleNotFoundError(f"{name} is of {sorted(dists)}, which the lock does not install", name=name)


sys.meta_path.insert(0, Refuse())
for name in sys.argv[2:]:
    module = importlib.import_module(name)
    for found in pkgutil.walk_packages(getattr(module, "__path__", []), f"{name}."):
        importlib.import_module(found.name)
"""


def _module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"blurfleet_images_{name}", ROOT / f"images/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


CHECK = _module("check")


def _names(lock: str) -> set[str]:
    return set(re.findall(r"^([a-z0-9._-]+)==", (LOCKS / lock).read_text(), flags=re.MULTILINE))


def test_committed_locks_are_cut_from_the_constraints() -> None:
    assert {p.name: p.read_text() for p in LOCKS.glob("*.txt")} == _module("lock").locks()


def test_every_locked_requirement_has_hashes() -> None:
    for path in LOCKS.glob("*.txt"):
        for part in re.split(r"^(?=[a-z0-9])", path.read_text(), flags=re.MULTILINE)[1:]:
            assert "--hash=sha256:" in part, f"{path.name}: {part.splitlines()[0]}"


@pytest.mark.parametrize(
    ("lock", "needed", "absent"),
    [
        ("operator.txt", {"click", "kopf", "kubernetes", "pydantic", "structlog"}, {"onnx", "tritonclient", "pytest"}),
        ("agent.txt", {"tritonclient", "grpcio", "prometheus-client", "psutil", "click"}, {"kopf", "fastapi"}),
        ("gateway.txt", {"fastapi", "uvicorn", "tritonclient", "click"}, {"kopf", "onnx"}),
        ("forge.txt", {"onnx", "onnxruntime", "click"}, {"kopf", "fastapi"}),
        ("build.txt", {"hatchling", "editables"}, {"numpy"}),
    ],
)
def test_an_image_holds_what_it_needs_and_no_more(lock: str, needed: set[str], absent: set[str]) -> None:
    assert needed <= _names(lock)
    assert not absent & _names(lock)


@pytest.mark.parametrize("image", IMAGES)
def test_stages_stand_on_a_base_that_must_be_given_for_any_platform(image: str) -> None:
    steps = _steps(image)
    assert [s.rest for s in steps if s.name == "ARG"] == ["BASE", "TARGETPLATFORM"]  # a default would be a moving tag
    froms = [s.rest for s in steps if s.name == "FROM"]
    assert froms == ["--platform=$TARGETPLATFORM ${BASE} AS build", "--platform=$TARGETPLATFORM ${BASE}"]
    assert "# syntax" not in (ROOT / f"images/{image}.Dockerfile").read_text()  # it would fetch a builder by tag


@pytest.mark.parametrize("image", IMAGES)
def test_pip_installs_by_hash_or_what_was_built_here(image: str) -> None:
    pips = [words[1:] for words in CHECK.commands(_text(image)) if words[0].endswith("/pip")]
    by_lock = [words for words in pips if "-r" in words]
    assert [words[words.index("-r") + 1] for words in by_lock] == ["/locks/build.txt", f"/locks/{image}.txt"]
    assert all("--require-hashes" in words for words in by_lock)
    assert [w for w in pips if w not in by_lock] == [["install", "--no-cache-dir", "--no-deps", "/dist/*.whl"]]
    ran = {words[0].rsplit("/", 1)[-1] for words in CHECK.commands(_text(image))}
    assert ran == {"python", "pip"}  # no curl, no apt


@pytest.mark.parametrize("image", IMAGES)
def test_it_ends_unprivileged_with_a_command_and_holds_no_secret(image: str) -> None:
    steps = _steps(image)
    assert [s.rest for s in steps if s.name == "USER"] == ["10001:10001"]
    assert [s.name for s in steps[-2:]] == ["USER", "CMD"]
    told = " ".join(s.rest for s in steps if s.name in {"ENV", "ARG"})
    assert not re.search(r"token|password|secret|key", told, flags=re.IGNORECASE)
    user = yaml.safe_load((ROOT / "charts/blurfleet/values.yaml").read_text())["user"]
    assert user == 10001


@pytest.mark.parametrize("image", IMAGES)
def test_every_copied_file_is_in_the_tree_and_in_the_context(image: str) -> None:
    for source in _copied(image):
        assert (ROOT / source).exists(), source
        assert any(source == kept or source.startswith(f"{kept}/") for kept in _context()), source


def test_the_context_holds_nothing_that_no_image_copies() -> None:
    copied = {source for image in IMAGES for source in _copied(image)}
    assert {kept for kept in _context() if not any(s == kept or s.startswith(f"{kept}/") for s in copied)} == set()


@pytest.mark.parametrize("image", IMAGES)
def test_the_wheel_builds_from_what_is_copied(image: str, tmp_path: Path) -> None:
    for source in _copied(image):
        target = tmp_path / "src" / source
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / source, target)
    [build] = [words for words in CHECK.commands(_text(image)) if "hatchling" in words]
    arguments = [str(tmp_path) if word == "/dist" else word for word in build[1:]]
    subprocess.run([sys.executable, *arguments], cwd=tmp_path / "src", check=True, timeout=120.0, capture_output=True)
    [wheel] = tmp_path.glob("*.whl")
    roots = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    packages = ("_agent", "_cli", "_forge", "_operator", "_preprocess", "")
    assert {f"blurfleet{suffix}" for suffix in packages} <= roots


@pytest.mark.parametrize(("image", "modules"), STARTS.items(), ids=STARTS.keys())
def test_what_the_image_starts_imports_only_what_its_lock_installs(image: str, modules: tuple[str, ...]) -> None:
    allowed = sorted(_names(f"{image}.txt"))
    done = subprocess.run(
        [sys.executable, "-c", ONLY_LOCKED, json.dumps(allowed), *modules],
        check=False, capture_output=True, text=True, timeout=120.0,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_a_dry_run_is_the_image_s_own_line_and_for_aarch64_takes_wheels_alone() -> None:
    build, agent = CHECK.installs(_text("agent"))
    assert build == ["install", "--no-cache-dir", "--require-hashes", "-r", f"{ROOT}/images/locks/build.txt"]
    assert agent[-1] == f"{ROOT}/images/locks/agent.txt"
    assert {"--only-binary=:all:", "--require-hashes", "manylinux_2_28_aarch64"} <= set(CHECK.foreign(agent))


def test_an_instruction_that_could_fetch_is_no_part_of_these_files() -> None:
    with pytest.raises(ValueError, match="instruction ADD"):
        CHECK.instructions("FROM x\nADD https://example.org/a.tar /\n")


def _text(image: str) -> str:
    return (ROOT / f"images/{image}.Dockerfile").read_text()


def _steps(image: str) -> list[Any]:
    return list(CHECK.instructions(_text(image)))


def _copied(image: str) -> list[str]:
    own = [s.rest.split() for s in _steps(image) if s.name == "COPY" and "--from=" not in s.rest]
    return [source for words in own for source in words[:-1]]


def _context() -> list[str]:
    """What the context holds: `.dockerignore` leaves all out and then names what comes back."""
    lines = [x for x in (ROOT / ".dockerignore").read_text().splitlines() if x and not x.startswith("#")]
    assert lines[0] == "*"
    assert lines[-1] == "**/__pycache__"
    assert all(line.startswith("!") for line in lines[1:-1])
    return [line[1:] for line in lines[1:-1]]
