"""The model repository on disk: engines that are published once and never touched, aliases that move.

    models/<alias>__<digest12>/config.pbtxt, 1/<artifact and support files>     read-only after publishing
    models/<alias>/config.pbtxt, <epoch>/                                       empty version folders

Everything is prepared in a staging folder outside `models` and renamed in: Triton parses a folder `3.tmp` as version 3,
and whatever changes inside an engine's folder makes the next flip reload that engine.
"""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Mapping
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from blurfleet.errors import EngineError, InvalidInput, NodeError
from blurfleet.reasons import Reason
from blurfleet_agent.config_text import ENGINE_VERSION

CONFIG = "config.pbtxt"
ENGINE_MARK = "__"
# A plain file of this name is the one thing that keeps Python from caching model.py's bytecode beside it: the stub
# ignores PYTHONDONTWRITEBYTECODE, and modes do not stop root. The cache would reload the engine inside the next flip.
BYTECODE_BLOCKER = "__pycache__"
_DIR_MODE = 0o555
_FILE_MODE = 0o444
_MTIME_STEP_NS = 1_000_000  # coarse file clocks tick in milliseconds


class ModelRepository:
    """One node's model repository. `models` is Triton's folder, `staging` one beside it on the same filesystem."""

    def __init__(self, models: Path, staging: Path) -> None:
        models.mkdir(parents=True, exist_ok=True)
        staging.mkdir(parents=True, exist_ok=True)
        if models.stat().st_dev != staging.stat().st_dev:
            raise NodeError(
                Reason.STORE_UNWRITABLE,
                "the model repository and its staging folder are on different filesystems: renames would not be atomic",
                where=str(staging),
                fix="put both under one node folder",
            )
        self.models = models
        self.staging = staging

    def publish_engine(self, name: str, config: str, files: Mapping[str, Path]) -> Path:
        """Publish an engine: copy `files` (name in the version folder -> source), fsync, rename in, make read-only.

        Publishing the same engine again is a no-op. Raises NodeError when the name is taken by another content, OSError
        when the disk is full; `models` is untouched then.
        """
        target = self.models / name
        if target.exists():
            if self._holds(target, config, files):
                return target
            raise NodeError(Reason.CONFLICT, "another engine is published under this name", where=str(target))
        stage = self._stage(name)
        try:
            version = stage / str(ENGINE_VERSION)
            version.mkdir(parents=True)
            for filename, source in files.items():
                shutil.copyfile(source, version / filename)
                _seal(version / filename, _FILE_MODE)
            (version / BYTECODE_BLOCKER).touch(_FILE_MODE)
            (stage / CONFIG).write_text(config)
            _seal(stage / CONFIG, _FILE_MODE)
            _seal(version, _DIR_MODE)
            _sync(stage)
            stage.rename(target)
        except BaseException:
            _remove_tree(stage)
            raise
        _seal(target, _DIR_MODE)  # after the rename: moving a folder needs write access to it
        _sync(self.models)
        return target

    def remove_engine(self, name: str) -> None:
        """Remove an unloaded engine's folder, in one step as seen from `models`. Absent is fine."""
        target = self.models / name
        if not target.exists():
            return
        target.chmod(0o755)
        grave = self._stage(name)
        target.rename(grave)
        _remove_tree(grave)

    def ensure_loadable(self, name: str) -> None:
        """Raise EngineError(MissingFile) for a model of which Triton would wait for ever, or fail, for want of a file.

        A python-backend version without `model.py` hangs its load and blocks every later one of that model.
        """
        folder = self.models / name
        try:
            config = text_format.Parse((folder / CONFIG).read_text(), pb.ModelConfig())
        except OSError as error:
            raise EngineError(Reason.MISSING_FILE, "the model has no config.pbtxt", where=str(folder)) from error
        except text_format.ParseError as error:
            raise EngineError(Reason.CONFIG_INVALID, str(error), where=str(folder / CONFIG)) from error
        wanted = "model.py" if config.backend == "python" else config.default_model_filename
        versions = tuple(config.version_policy.specific.versions) or (ENGINE_VERSION,)
        for version in versions:
            needed = folder / str(version) / wanted if wanted else folder / str(version)
            if not needed.exists():
                raise EngineError(
                    Reason.MISSING_FILE,
                    f"version {version} has no {wanted or 'folder'}",
                    where=str(needed),
                    fix="publish the engine again; loading it as it is would hang",
                )

    def write_alias(self, alias: str, epoch: int, config: str) -> None:
        """Make version folder `epoch` of `alias` and put `config` in place atomically.

        Not synced: it is on the swap's path, and after a power cut the journal is what it is made again from.
        Raises InvalidInput for a name that could be an engine's, OSError.
        """
        if ENGINE_MARK in alias:
            raise InvalidInput(Reason.CONFIG_INVALID, f"{alias!r} is an engine's name, not an alias", where=alias)
        folder = self.models / alias
        (folder / str(epoch)).mkdir(parents=True, exist_ok=True)
        part = self._stage(alias)
        part.write_text(config)
        newest = max(entry.stat().st_mtime_ns for entry in os.scandir(folder))
        stamp = max(time.time_ns(), newest + _MTIME_STEP_NS)
        os.utime(part, ns=(stamp, stamp))  # Triton takes only a newer mtime for a change, and clocks step back
        part.replace(folder / CONFIG)

    def alias_epochs(self, alias: str) -> tuple[int, ...]:
        """Return the version folders of `alias`, ascending; empty if there is none."""
        folder = self.models / alias
        if not folder.is_dir():
            return ()
        return tuple(sorted(int(p.name) for p in folder.iterdir() if p.is_dir() and p.name.isdecimal()))

    def prune_alias(self, alias: str, *, keep: int) -> tuple[int, ...]:
        """Remove the version folders of epochs other than `keep`; return them. Many left lying slow every flip."""
        gone = tuple(epoch for epoch in self.alias_epochs(alias) if epoch != keep)
        for epoch in gone:
            (self.models / alias / str(epoch)).rmdir()
        return gone

    def engines(self) -> tuple[str, ...]:
        """Return the names of the published engines, sorted."""
        return tuple(sorted(p.name for p in self.models.iterdir() if p.is_dir() and ENGINE_MARK in p.name))

    def aliases(self) -> dict[str, tuple[int, ...]]:
        """Return the aliases and their version folders."""
        names = sorted(p.name for p in self.models.iterdir() if p.is_dir() and ENGINE_MARK not in p.name)
        return {name: self.alias_epochs(name) for name in names}

    def clear_staging(self) -> None:
        """Remove what an interrupted publish or removal left behind. To be called at the agent's start only."""
        for leftover in self.staging.iterdir():
            _remove_tree(leftover)

    def _stage(self, name: str) -> Path:
        return self.staging / f"{name}.{secrets.token_hex(6)}"

    @staticmethod
    def _holds(target: Path, config: str, files: Mapping[str, Path]) -> bool:
        version = target / str(ENGINE_VERSION)
        try:
            wanted = {name: source.stat().st_size for name, source in files.items()} | {BYTECODE_BLOCKER: 0}
            same_files = {p.name: p.stat().st_size for p in version.iterdir()} == wanted
            return same_files and (target / CONFIG).read_text() == config
        except OSError:
            return False


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _seal(path: Path, mode: int) -> None:
    path.chmod(mode)
    _sync(path)


def _remove_tree(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        for folder, _, _ in os.walk(path):
            Path(folder).chmod(0o755)  # a folder's own mode decides whether its entries can go
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
