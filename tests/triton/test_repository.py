"""The model repository on disk."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from blurfleet.errors import EngineError, InvalidInput, NodeError
from blurfleet.reasons import Reason
from blurfleet_agent.repository import BYTECODE_BLOCKER, ModelRepository

NAME = "bokeh__aaaaaaaaaaaa"
CONFIG = f'name: "{NAME}"\nbackend: "python"\n'


@pytest.fixture
def repository(tmp_path: Path) -> ModelRepository:
    """An empty repository."""
    return ModelRepository(tmp_path / "models", tmp_path / "staging")


@pytest.fixture
def model_py(tmp_path: Path) -> Path:
    """A source file to publish."""
    path = tmp_path / "source.py"
    path.write_text("pass\n")
    return path


def test_a_published_engine_is_whole_and_read_only(repository: ModelRepository, model_py: Path) -> None:
    folder = repository.publish_engine(NAME, CONFIG, {"model.py": model_py})
    assert (folder / "config.pbtxt").read_text() == CONFIG
    assert sorted(p.name for p in (folder / "1").iterdir()) == [BYTECODE_BLOCKER, "model.py"]
    for path in [folder, *folder.rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o555 if path.is_dir() else 0o444), path
    assert list(repository.staging.iterdir()) == []
    assert repository.engines() == (NAME,)
    repository.ensure_loadable(NAME)


def test_publishing_the_same_engine_again_touches_nothing(repository: ModelRepository, model_py: Path) -> None:
    folder = repository.publish_engine(NAME, CONFIG, {"model.py": model_py})
    before = {p: p.stat().st_mtime_ns for p in [folder, *folder.rglob("*")]}
    repository.publish_engine(NAME, CONFIG, {"model.py": model_py})
    assert {p: p.stat().st_mtime_ns for p in [folder, *folder.rglob("*")]} == before


def test_another_content_under_a_taken_name_is_refused(repository: ModelRepository, model_py: Path) -> None:
    repository.publish_engine(NAME, CONFIG, {"model.py": model_py})
    with pytest.raises(NodeError) as caught:
        repository.publish_engine(NAME, CONFIG + "max_batch_size: 0\n", {"model.py": model_py})
    assert caught.value.reason is Reason.CONFLICT


def test_a_full_disk_while_publishing_leaves_models_and_staging_as_they_were(
    repository: ModelRepository, model_py: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        repository.publish_engine(NAME, CONFIG, {"model.py": model_py})
    assert list(repository.models.iterdir()) == []
    assert list(repository.staging.iterdir()) == []


def test_a_removed_engine_is_gone_and_can_be_published_again(repository: ModelRepository, model_py: Path) -> None:
    repository.publish_engine(NAME, CONFIG, {"model.py": model_py})
    repository.remove_engine(NAME)
    repository.remove_engine(NAME)
    assert (repository.engines(), list(repository.staging.iterdir())) == ((), [])
    repository.publish_engine(NAME, CONFIG, {"model.py": model_py})
    assert repository.engines() == (NAME,)


def test_an_engine_without_model_py_is_found_before_its_load_hangs(repository: ModelRepository, model_py: Path) -> None:
    repository.publish_engine(NAME, CONFIG, {"other.py": model_py})
    with pytest.raises(EngineError) as caught:
        repository.ensure_loadable(NAME)
    assert caught.value.reason is Reason.MISSING_FILE
    assert "model.py" in caught.value.message


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        pytest.param(None, Reason.MISSING_FILE, id="no config"),
        pytest.param('name: "x" bogus: 1', Reason.CONFIG_INVALID, id="a config that does not parse"),
        pytest.param(
            CONFIG + "version_policy { specific { versions: [1, 2] } }",
            Reason.MISSING_FILE,
            id="a specific version that is not there",
        ),
        pytest.param(
            'name: "x" platform: "tensorrt_plan" default_model_filename: "model.plan"',
            Reason.MISSING_FILE,
            id="a plan that is not there",
        ),
    ],
)
def test_what_triton_would_not_load_is_named_before(
    repository: ModelRepository, config: str | None, reason: Reason
) -> None:
    folder = repository.models / NAME / "1"
    folder.mkdir(parents=True)
    (folder / "model.py").write_text("")
    if config is not None:
        (folder.parent / "config.pbtxt").write_text(config)
    with pytest.raises(EngineError) as caught:
        repository.ensure_loadable(NAME)
    assert caught.value.reason is reason


def test_an_alias_keeps_only_the_epoch_it_serves(repository: ModelRepository) -> None:
    for epoch in (3, 4, 10):
        repository.write_alias("bokeh", epoch, f"# {epoch}\n")
    assert repository.aliases() == {"bokeh": (3, 4, 10)}
    assert repository.prune_alias("bokeh", keep=10) == (3, 4)
    assert repository.alias_epochs("bokeh") == (10,)
    assert (repository.models / "bokeh" / "config.pbtxt").read_text() == "# 10\n"
    assert repository.engines() == ()


def test_an_engine_name_is_no_alias(repository: ModelRepository) -> None:
    with pytest.raises(InvalidInput):
        repository.write_alias(NAME, 1, "")


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(clock=st.lists(st.integers(min_value=0, max_value=2_000_000_000), min_size=2, max_size=6))
def test_each_config_is_newer_than_everything_before_it_whatever_the_clock_does(
    repository: ModelRepository, clock: list[int]
) -> None:
    """Triton takes only a newer modification time for a change; clocks step back, and file clocks are coarse."""
    config = repository.models / "bokeh" / "config.pbtxt"
    for epoch, seconds in enumerate(clock, start=1):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("time.time_ns", lambda now=seconds: now * 1_000_000_000)
            folder = repository.models / "bokeh"
            before = max((p.stat().st_mtime_ns for p in folder.rglob("*")), default=0) if folder.exists() else 0
            repository.write_alias("bokeh", epoch, f"# {epoch}\n")
        assert config.stat().st_mtime_ns > before


def test_leftovers_of_an_interrupted_publish_are_cleared(repository: ModelRepository) -> None:
    stray = repository.staging / "half" / "1"
    stray.mkdir(parents=True)
    (stray / "model.py").write_text("")
    stray.chmod(0o555)
    (repository.staging / "bokeh.part").write_text("")
    repository.clear_staging()
    assert list(repository.staging.iterdir()) == []
