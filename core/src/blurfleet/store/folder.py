"""The store as a folder of YAML: the embedded default, for fleets without Kubernetes.

Specs are files that a person may edit; status lies beside each; generations and uids are kept in `.ledger`. Writers
take one lock per store; a status file has one writer and needs none.
"""

from __future__ import annotations

import fcntl
import json
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import watchfiles
from pydantic import ValidationError

from blurfleet.api.base import Model
from blurfleet.api.kinds import KINDS, Resource, parse_resource
from blurfleet.api.meta import timestamp
from blurfleet.errors import BlurfleetError, StoreError
from blurfleet.identity import digest_bytes
from blurfleet.reasons import Reason
from blurfleet.store import layout
from blurfleet.store.admit import admit, admit_deletion
from blurfleet.store.atomic import write_atomic
from blurfleet.store.eventlog import EventLog
from blurfleet.store.port import Broken, Event, Ref, ref_of

_DEBOUNCE_MS = 20
_HEARTBEAT_MS = 1000


class FolderStore:
    """A Store over `root`. Several processes may use the same folder."""

    def __init__(self, root: Path, *, clock: Callable[[], float] = time.time) -> None:
        self._root = root
        self._clock = clock
        self._log = EventLog(root / "events.jsonl", self._locked)
        self._cache: dict[Path, tuple[tuple[int, int, int], Any]] = {}
        (root / ".ledger").mkdir(parents=True, exist_ok=True)
        for kind in KINDS.values():
            (root / kind.plural).mkdir(exist_ok=True)

    def get(self, ref: Ref) -> Resource | None:
        """Return the object, None where it has no spec file. Raises StoreError or InvalidSpec where unreadable."""
        files = layout.files_of(self._root, ref)
        try:
            body = self._read(files.spec)
        except FileNotFoundError:
            return None
        resource = parse_resource(body, where=str(files.spec))
        if (resource.kind, resource.meta.name) != (ref.kind, ref.name):
            message = f"holds {resource.kind}/{resource.meta.name}, but its place is that of {ref}"
            raise StoreError(Reason.STORE_UNREADABLE, message, where=str(files.spec), fix="rename the file")
        meta = resource.meta.model_copy(update={**self._ledger(resource, files), "namespace": ref.namespace})
        return Resource(kind=ref.kind, meta=meta, spec=resource.spec, status=self._status(ref, files.status))

    def objects(self, kind: str) -> list[Resource]:
        """Return all readable objects of a kind, ordered by namespace and name."""
        found = []
        for ref in layout.refs_of(self._root, kind):
            try:
                resource = self.get(ref)
            except BlurfleetError:
                continue
            if resource is not None:
                found.append(resource)
        return found

    def broken(self, kind: str) -> list[Broken]:
        """Return the objects of a kind whose files cannot be read, with the reason."""
        bad = []
        for ref in layout.refs_of(self._root, kind):
            try:
                self.get(ref)
            except BlurfleetError as error:
                bad.append(Broken(ref=ref, error=error))
        return bad

    def apply(self, resource: Resource) -> Resource:
        """Create the object or replace its spec. Raises InvalidSpec, AdmissionRefused and StoreError."""
        ref = ref_of(resource)
        with self._locked():
            old = self._readable(ref)
            admit(self, resource, old)
            files = layout.files_of(self._root, ref)
            body = layout.spec_body(resource)
            if old is None or layout.spec_body(old) != body:
                self._write(files.spec, layout.dump_yaml(body))
        stored = self.get(ref)
        assert stored is not None
        return stored

    def write_status(self, ref: Ref, status: Model) -> None:
        """Replace the status file. Raises StoreError where the object is gone or the disk refuses."""
        files = layout.files_of(self._root, ref)
        if not files.spec.exists():
            raise StoreError(Reason.NOT_FOUND, f"{ref} does not exist", where=str(files.spec))
        self._write(files.status, layout.dump_yaml(status.wire()), sync=False)

    def delete(self, ref: Ref) -> bool:
        """Remove the object's files; tell whether it existed. Raises AdmissionRefused."""
        files = layout.files_of(self._root, ref)
        with self._locked():
            admit_deletion(self, self._readable(ref))
            existed = files.spec.exists()
            for path in (files.spec, files.status, files.ledger):
                path.unlink(missing_ok=True)
        return existed

    def record(self, event: Event) -> None:
        """Keep an event."""
        self._log.add(event)

    def events(self, ref: Ref | None = None) -> list[Event]:
        """Return the kept events in order of time."""
        return [e for e in self._log.read() if ref is None or e.involved == ref]

    def watch(self, kinds: tuple[str, ...], stopped: Callable[[], bool]) -> Iterator[frozenset[str]]:
        """Yield the kinds whose files changed; all of `kinds` first, and all again every second."""
        everything = frozenset(kinds)
        yield everything
        for changes in watchfiles.watch(
            self._root,
            debounce=_DEBOUNCE_MS,
            step=_DEBOUNCE_MS // 2,
            rust_timeout=_HEARTBEAT_MS,
            yield_on_timeout=True,
            raise_interrupt=False,
            watch_filter=lambda _, path: layout.kind_of_path(self._root, Path(path)) is not None,
        ):
            if stopped():
                return
            touched = {layout.kind_of_path(self._root, Path(path)) for _, path in changes}
            yield everything & frozenset(t for t in touched if t) if changes else everything

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with (self._root / ".lock").open("w") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield

    def _readable(self, ref: Ref) -> Resource | None:
        # A broken file may be replaced by a good one: that is how a person mends it.
        try:
            return self.get(ref)
        except BlurfleetError:
            return None

    def _read(self, path: Path) -> Any:
        stat = path.stat()
        stamp = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
        cached = self._cache.get(path)
        if cached is None or cached[0] != stamp:
            cached = (stamp, layout.read_yaml(path))
            self._cache[path] = cached
        return cached[1]

    def _status(self, ref: Ref, path: Path) -> Model:
        model = KINDS[ref.kind].status
        try:
            return model.model_validate(self._read(path) or {})
        except (FileNotFoundError, ValidationError, StoreError):
            # Status is only observed state: whoever observes writes it anew.
            return model()

    def _ledger(self, resource: Resource, files: layout.Files) -> dict[str, Any]:
        """Return uid, generation and creation time; a spec edited by hand gets its new generation here."""
        wanted = digest_bytes(json.dumps(resource.spec.wire(), sort_keys=True).encode())
        entry = _read_ledger(files.ledger)
        if entry is None or entry["specDigest"] != wanted:
            entry = {
                "uid": entry["uid"] if entry else str(uuid.uuid4()),
                "generation": entry["generation"] + 1 if entry else 1,
                "created": entry["created"] if entry else timestamp(self._clock()),
                "specDigest": wanted,
            }
            files.ledger.parent.mkdir(parents=True, exist_ok=True)
            self._write(files.ledger, json.dumps(entry).encode())
        return {
            "uid": entry["uid"],
            "generation": entry["generation"],
            "creation_timestamp": entry["created"],
            "resource_version": wanted.removeprefix("sha256:")[:16],
        }

    def _write(self, path: Path, data: bytes, *, sync: bool = True) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, data, sync=sync)
        except OSError as error:
            raise StoreError(
                Reason.STORE_UNWRITABLE, f"cannot be written: {error.strerror}", where=str(path)
            ) from error


def _read_ledger(path: Path) -> dict[str, Any] | None:
    try:
        entry = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return entry if isinstance(entry, dict) and {"uid", "generation", "created", "specDigest"} <= set(entry) else None
