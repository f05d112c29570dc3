"""Which nodes there are and which are silent, as the store is told: some at a time, none while an alarm rings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import structlog

from blurfleet.api.kinds import Resource
from blurfleet.api.nodeengine import NodeEngineSpec
from blurfleet.errors import BlurfleetError
from blurfleet.reasons import Reason
from blurfleet.store.kube import KubeStore
from blurfleet.store.port import Ref
from blurfleet_operator.alarm import Alarm
from blurfleet_operator.decide.hearing import Hearing
from blurfleet_operator.decide.silence import doubted, unproven
from blurfleet_operator.inventory import Registered, register
from blurfleet_operator.metrics import LoopMetrics
from blurfleet_operator.settings import OperatorSettings
from blurfleet_operator.spread import spread

T = TypeVar("T")

A_TURN = 256  # nodes that are registered, or doubted, before it is decided again
_log = structlog.get_logger("blurfleet.operator")


class RollCall:
    """Registers nodes and doubts silent ones. `refused`: a write was, so what it was decided on may be gone."""

    def __init__(
        self,
        store: KubeStore,
        settings: OperatorSettings,
        metrics: LoopMetrics,
        alarm: Alarm,
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._s = settings
        self._metrics = metrics
        self._alarm = alarm
        self._clock = clock
        self.refused = False

    def register(self) -> bool:
        """Give Nodes of a class their NodeEngine; tell whether more are left to do. Raises StoreError."""
        unreadable = {b.ref.name for b in self._store.broken("NodeEngine")}
        found = register(self._store.nodes(), self._store.objects("NodeEngine"), self._s.classes, unreadable)
        # Who became another first: what it claims no longer holds.
        return self._some(self._write, sorted(found, key=lambda f: f.moved is None))

    def doubt(self, hearing: Hearing) -> bool:
        """Say of silent nodes that nothing is known, as their agents cannot; tell whether more are left to do.

        Raises StoreError where the store is away.
        """
        now, found = self._clock(), []
        for name in sorted(hearing.silent):
            node = self._store.get(Ref(kind="NodeEngine", name=name))
            changes = doubted(node, now, since=now - hearing.since(name)) if node is not None else None
            if node is not None and changes is not None:
                found.append((node, changes))
        return self._some(self._doubt, found)

    def _some(self, write: Callable[[T], object], what: Sequence[T]) -> bool:
        left = spread(write, what[:A_TURN], threads=self._s.writers, while_=lambda: not self._alarm.rings())
        return bool(left) or len(what) > A_TURN

    def _write(self, found: Registered) -> None:
        name = found.resource.meta.name
        try:
            if found.moved is not None:
                self._unprove(found.moved, found.resource)
            self._store.apply(found.resource)
        except BlurfleetError as error:
            self._metrics.failures.inc()
            _log.warning("node not registered", node=name, error=str(error))
        else:
            _log.info("node registered", node=name, why=found.why)

    def _unprove(self, old: Resource, new: Resource) -> None:
        """Let a node that becomes another claim nothing any more; before it is told so, lest that be forgotten."""
        assert isinstance(new.spec, NodeEngineSpec)
        changes = unproven(old, new.spec.device_class, self._clock())
        try:
            if changes:
                self._store.amend_status(old, changes)
        except BlurfleetError as error:
            # Most often its agent wrote in this moment: then it is there and says so itself.
            _log.warning("node not marked", node=old.meta.name, error=str(error))

    def _doubt(self, found: tuple[Resource, dict[str, Any]]) -> None:
        node, changes = found
        try:
            self._store.amend_status(node, changes)
        except BlurfleetError as error:
            if error.reason is Reason.STORE_UNWRITABLE:
                raise  # the others would each wait for the same
            self._metrics.failures.inc()
            self.refused = True
            _log.warning("node not marked", node=node.meta.name, error=str(error))
        else:
            _log.warning("node is silent", node=node.meta.name)
