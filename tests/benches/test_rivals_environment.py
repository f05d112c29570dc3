"""The rivals' environment is made once and never again; an unfinished one is finished."""

from pathlib import Path

import pytest

from blurfleet.errors import NodeError
from blurfleet_cli.rivals import environment
from blurfleet_cli.rivals.environment import ensure_rivals


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What would have been run: no test installs 700 MB."""
    said: list[str] = []

    def run(argv: list[str], timeout_s: float, also: object = None) -> None:
        said.append("venv" if "venv" in argv else "pip" if "pip" in argv else "compile")
        if argv[1:3] == ["-m", "venv"]:
            Path(argv[-1]).mkdir()

    monkeypatch.setattr(environment, "_run", run)
    return said


def test_it_is_made_once(tmp_path: Path, commands: list[str]) -> None:
    told: list[str] = []
    first = ensure_rivals(tmp_path, told.append)
    assert commands == ["venv", "pip", "compile"]
    assert len(told) == 2
    assert ensure_rivals(tmp_path, told.append) == first
    assert len(commands) == 3


def test_what_was_installed_is_not_installed_again(tmp_path: Path, commands: list[str]) -> None:
    root = ensure_rivals(tmp_path, commands.append).parents[1]
    (root / "compiled").unlink()
    commands.clear()
    ensure_rivals(tmp_path, lambda _: None)
    assert commands == ["compile"]


def test_a_failed_step_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment.sys, "executable", "/bin/false")
    with pytest.raises(NodeError, match="no output"):
        ensure_rivals(tmp_path, lambda _: None)
