"""Engines on this node: staged, checked against their record, measured, loaded under their own name, unloaded late."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from blurfleet.api.engineset import Blob
from blurfleet.api.nodeengine import EngineRef
from blurfleet.api.record import BuildRecord
from blurfleet.check import Severity
from blurfleet.errors import ArtifactRefused, EngineError, NodeError
from blurfleet.identity import engine_name
from blurfleet.reasons import Reason
from blurfleet_agent.config_lint import lint
from blurfleet_agent.config_text import engine_config
from blurfleet_agent.control import READY, RepositoryControl
from blurfleet_agent.device_memory import host_available
from blurfleet_agent.repository import ModelRepository
from blurfleet_agent.staging import Staging


@dataclass(frozen=True, kw_only=True)
class StagedEngine:
    """An engine whose bytes are on the node and match: its record, config and files by name."""

    name: str
    record: BuildRecord
    config: str
    files: Mapping[str, Path]


@dataclass(frozen=True, kw_only=True)
class LoadReport:
    """What a load cost: memory available before and after, bytes, and seconds."""

    available_before: int
    available_after: int
    seconds: float

    @property
    def taken_bytes(self) -> int:
        """Memory that the load took, 0 where others freed more meanwhile."""
        return max(0, self.available_before - self.available_after)


class Engines:
    """Stages, loads and unloads. `memory` tells the available bytes; `timeout_s` bounds one load."""

    def __init__(
        self,
        *,
        staging: Staging,
        repository: ModelRepository,
        control: RepositoryControl,
        memory_reserve: int,
        timeout_s: float,
        memory: Callable[[], int] = host_available,
    ) -> None:
        self._staging = staging
        self._repository = repository
        self._control = control
        self._reserve = memory_reserve
        self._timeout_s = timeout_s
        self._memory = memory
        self._measured: dict[str, int] = {}
        self._support: dict[str, frozenset[str]] = {}

    def record(self, ref: EngineRef) -> BuildRecord:
        """Return the engine's build record, staged and checked against `ref`.

        Raises ArtifactRefused (RecordInvalid, RecordMismatch and staging's reasons) and NodeError.
        """
        return self._read_record(ref, self._staging.ensure(ref.build_record))

    def staged_record(self, ref: EngineRef) -> BuildRecord | None:
        """Return the engine's build record if it is on the node, None where it has to be fetched first.

        Waits for no network. Raises ArtifactRefused (RecordInvalid, RecordMismatch).
        """
        path = self._staging.staged(ref.build_record)
        return None if path is None else self._read_record(ref, path)

    def _read_record(self, ref: EngineRef, path: Path) -> BuildRecord:
        try:
            record = BuildRecord.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            raise ArtifactRefused(
                Reason.RECORD_INVALID, f"build record cannot be read: {error}", where=ref.build_record.uri
            ) from error
        for field, found, wanted in (
            ("artifactDigest", record.artifact_digest, ref.digest),
            ("precision", record.precision, ref.precision),
        ):
            if found != wanted:
                raise ArtifactRefused(
                    Reason.RECORD_MISMATCH, f"{field} is {found}, not {wanted}", where=ref.build_record.uri
                )
        return record

    def stage(self, ref: EngineRef, alias: str) -> StagedEngine:
        """Return the engine with all its files on the node. Raises ArtifactRefused, NodeError, EngineError (config)."""
        record = self.record(ref)
        files = {record.serving.artifact_name: self._staging.ensure(ref.artifact)}
        for extra in record.serving.support_files:
            files[extra.name] = self._staging.ensure(Blob(uri=extra.uri, digest=extra.digest, bytes=extra.bytes))
        self._support[ref.digest] = frozenset(extra.digest for extra in record.serving.support_files)
        name = engine_name(alias, ref.digest)
        config = engine_config(record, name)
        findings, _ = lint(config, record)
        wrong = [f for f in findings if f.severity is Severity.ERROR]
        if wrong:
            raise EngineError(wrong[0].reason, "; ".join(f.message for f in wrong), where=ref.build_record.uri)
        return StagedEngine(name=name, record=record, config=config, files=files)

    def files_of(self, ref: EngineRef) -> frozenset[str]:
        """Return the digests of all staged files that `ref` is made of, as far as known."""
        own = {ref.digest, ref.artifact.digest, ref.build_record.digest}
        return frozenset(own) | self._support.get(ref.digest, frozenset())

    def memory_low(self) -> bool:
        """Tell whether less than half of the reserve is left: something has to go before the system chooses."""
        return self._memory() < self._reserve // 2

    def load(self, ref: EngineRef, alias: str) -> LoadReport:
        """Load the engine under its own name and see it READY; other engines are not touched.

        Raises NodeError(InsufficientMemory) before anything is loaded, EngineError(LoadFailed, MissingFile),
        EngineTimeout(LoadTimeout) and what `stage` raises.
        """
        staged = self.stage(ref, alias)
        before = self._memory()
        self._refuse_unfit(ref, staged.name, before)
        self._publish(staged)
        began = time.monotonic()
        self._repository.ensure_loadable(staged.name)
        self._control.load(staged.name, timeout_s=self._timeout_s)
        if not self._control.ready(staged.name):
            raise EngineError(Reason.LOAD_FAILED, "loaded, but not READY in the index", where=staged.name)
        report = LoadReport(available_before=before, available_after=self._memory(), seconds=time.monotonic() - began)
        self._measured[staged.name] = max(report.taken_bytes, self._measured.get(staged.name, 0))
        return report

    def unload(self, name: str) -> None:
        """Unload the engine `name` and remove its folder. Raises EngineError, OSError."""
        self._control.unload(name)
        self._repository.remove_engine(name)

    def ready(self) -> frozenset[str]:
        """Return the names of all READY engines. Raises EngineError(TritonUnreachable), EngineTimeout."""
        index = self._control.index()
        return frozenset(name for name, versions in index.items() if any(v.state == READY for v in versions.values()))

    def _refuse_unfit(self, ref: EngineRef, name: str, available: int) -> None:
        needed = max(ref.memory_bytes, self._measured.get(name, 0))
        if needed + self._reserve > available:
            raise NodeError(
                Reason.INSUFFICIENT_MEMORY,
                f"needs {needed} bytes beside a reserve of {self._reserve}, {available} are available",
                where=name,
                fix="free memory or select a smaller engine; what is served stays loaded",
            )

    def _publish(self, staged: StagedEngine) -> None:
        try:
            self._repository.publish_engine(staged.name, staged.config, staged.files)
        except NodeError as error:
            if error.reason is not Reason.CONFLICT:
                raise
            # Left by an earlier version of the record: nothing is loaded from it, or it would be READY.
            self._repository.remove_engine(staged.name)
            self._repository.publish_engine(staged.name, staged.config, staged.files)
        except OSError as error:
            raise NodeError(
                Reason.INSUFFICIENT_STORAGE, f"engine cannot be published: {error.strerror}", where=staged.name
            ) from error
