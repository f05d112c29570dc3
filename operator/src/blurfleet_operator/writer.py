"""Writes of one pass: only what differs, each attempted once; the next pass tries again what was refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog

from blurfleet.api.base import Model
from blurfleet.api.kinds import Resource
from blurfleet.errors import BlurfleetError
from blurfleet.reasons import Reason
from blurfleet.store.port import Event, Ref, Store, ref_of
from blurfleet_operator.spread import always, spread

SOURCE = "controller"
_log = structlog.get_logger("blurfleet.controller")


class Writer:
    """Writes to the store, only what differs; a refused or conflicting write is logged and left to the next pass."""

    def __init__(self, store: Store, now: float, writers: int) -> None:
        self._store = store
        self._now = now
        self._writers = writers
        self._away = False
        self.writes = 0
        self.failures = 0

    def status(self, resource: Resource, status: Model) -> bool:
        """Write what differs; tell whether the store holds it now."""
        if status == resource.status:
            return True
        ref = ref_of(resource)
        return self.attempt(lambda: self._store.write_status(ref, status), str(ref))

    def apply(self, resource: Resource) -> bool:
        """Write the object; tell whether the store took it."""
        return self.attempt(lambda: self._store.apply(resource), resource.key)

    def apply_all(self, resources: Sequence[Resource], while_: Callable[[], bool] = always) -> list[Resource]:
        """Apply many at once: a class that reverts must not wait for its nodes one by one. Return what is left."""
        return spread(self.apply, resources, threads=self._writers, while_=while_)

    def delete_all(self, resources: Sequence[Resource], while_: Callable[[], bool]) -> list[Resource]:
        """Delete many at once; return what is left."""
        return spread(self.delete, resources, threads=self._writers, while_=while_)

    def delete(self, resource: Resource) -> None:
        """Delete the object."""
        ref = ref_of(resource)
        self.attempt(lambda: self._store.delete(ref), str(ref))

    def record(self, runs: Sequence[Resource], while_: Callable[[], bool]) -> list[Resource]:
        """Write verdicts; return those that are still to be written, for lack of time or of a store."""
        unsaid: list[Resource] = []

        def write(run: Resource) -> None:
            if not self.apply(run) and self._away:
                unsaid.append(run)

        return spread(write, runs, threads=self._writers, while_=while_) + unsaid

    def say(self, ref: Ref, reason: Reason, message: str, *, warning: bool, transition: str = "") -> None:
        """Keep an event of the object."""
        event = Event(
            involved=ref,
            reason=reason,
            message=message,
            type="Warning" if warning else "Normal",
            at=self._now,
            source=SOURCE,
            transition=transition,
        )
        # What is said allows no next step, and what was said before is not said again: no reason for another pass.
        self.attempt(lambda: self._store.record(event), str(ref), changes=False)

    def attempt(self, write: Callable[[], object], where: str, *, changes: bool = True) -> bool:
        """Write unless the store is away; tell whether it was done. `changes`: another pass may find more to do."""
        if self._away:
            self.failures += 1
            return False
        try:
            write()
            self.writes += changes
            return True
        except BlurfleetError as error:
            self.failures += 1
            # One write found the store away: the others would each wait for the same.
            self._away = error.reason is Reason.STORE_UNWRITABLE
            _log.warning("write refused", where=where, reason=error.reason.value, message=error.message)
            return False
