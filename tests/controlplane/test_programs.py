"""Where the control plane's programs come from, in which order, and what is said when they cannot be had."""

from __future__ import annotations

from pathlib import Path

import pytest

from blurfleet.errors import BlurfleetError
from blurfleet.reasons import Reason
from blurfleet_cli.cluster import programs

NAMES = (programs.STORAGE, programs.APISERVER, programs.CONTROLLERS)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BLURFLEET_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    folder = programs.built_folder()
    folder.mkdir(parents=True)
    return folder


def _fake_go(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir()
    (folder / "go").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "go").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


def test_assets_win_over_the_cache_program_by_program(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in NAMES:
        (cache / name).touch()
    assets = tmp_path / "assets"
    assets.mkdir()
    (assets / programs.APISERVER).touch()
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(assets))
    found = programs.ensure_programs()
    assert found.apiserver == assets / programs.APISERVER
    assert (found.etcd, found.controllers) == (cache / programs.STORAGE, cache / programs.CONTROLLERS)


def test_what_is_missing_is_built_once_with_its_version(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The stand-in writes its arguments where the program would be.
    _fake_go(tmp_path / "bin", 'for a; do [ "$last" = -o ] && out=$a; last=$a; done; echo "$@" > "$out"', monkeypatch)
    told: list[str] = []
    built = programs.ensure_programs(told.append)
    assert len(told) == 3
    assert f"gitVersion=v{programs.KUBERNETES}" in built.apiserver.read_text()
    assert "-mod=readonly" in built.etcd.read_text()
    assert programs.ensure_programs(told.append) == built
    assert len(told) == 3


def test_a_failed_build_says_why_and_what_to_do(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _fake_go(tmp_path / "bin", "echo missing checksum >&2; exit 1", monkeypatch)
    with pytest.raises(BlurfleetError, match="etcd was not built: missing checksum") as refused:
        programs.ensure_programs()
    assert refused.value.reason is Reason.BUILD_FAILED
    assert "KUBEBUILDER_ASSETS" in refused.value.fix
    assert not (cache / programs.STORAGE).exists()
