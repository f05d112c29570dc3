"""What the node is to serve: from the store, or as last told where the store is silent."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from blurfleet.api.base import Model
from blurfleet.api.nodeengine import DEVICE_CLASSES, NodeEngineSpec, NodeEngineStatus, NodeModel
from blurfleet.check import Severity
from blurfleet.contract import contract_hash
from blurfleet.errors import BlurfleetError
from blurfleet.quality.rules import policy_problems
from blurfleet.reasons import Reason
from blurfleet.store.port import Ref, Store
from blurfleet_agent.remembered import Remembered, read_remembered, remember, write_remembered
from blurfleet_agent.view import Problem


@dataclass(frozen=True, kw_only=True)
class Wish:
    """The spec to act on, its generation, and why the store could not be asked (None where it could)."""

    spec: NodeEngineSpec
    generation: int
    notes: Remembered
    problem: Problem | None


class Desired:
    """Reads one NodeEngine and remembers it beside the journal."""

    def __init__(self, store: Store, node: str, kept: Path) -> None:
        self._store = store
        self.ref = Ref(kind="NodeEngine", name=node)
        self._kept = kept
        self._notes = read_remembered(kept)
        self._back_off_until = 0.0
        self._failures = 0
        self.doubted = False
        self.last = Wish(spec=NodeEngineSpec(device_class=""), generation=0, notes=self._notes, problem=None)

    def read(self) -> Wish:
        """Return the wish. Never raises: an unreadable store leaves the last readable spec in force."""
        problem = None
        try:
            resource = self._store.get(self.ref)
        except (BlurfleetError, OSError) as error:
            resource = None
            reason = error.reason if isinstance(error, BlurfleetError) else Reason.STORE_UNREADABLE
            problem = Problem(reason=reason, message=str(error))
        if resource is not None and isinstance(resource.spec, NodeEngineSpec):
            generation = resource.meta.generation
            status = resource.status
            # The operator said so while this node was not heard from; only its own word takes it back.
            self.doubted = isinstance(status, NodeEngineStatus) and status.connected == "Unknown"
            if self._notes.spec != resource.spec or self._notes.generation != generation:
                self._notes = remember(self._notes, resource.spec, generation)
                write_remembered(self._kept, self._notes)
        elif problem is None:
            problem = Problem(reason=Reason.NOT_FOUND, message=f"{self.ref} does not exist; what is served stays")
        if problem is None and self.last.problem is not None:
            self._back_off_until = 0.0  # the store is back: what happened meanwhile is told at once
        spec = self._notes.spec or NodeEngineSpec(device_class="")
        self.last = Wish(spec=spec, generation=self._notes.generation, notes=self._notes, problem=problem)
        return self.last

    def trust(self, model: NodeModel) -> None:
        """Remember `model` as the last that can be acted on: it stays in force when the next one cannot."""
        if self._notes.good.get(model.name) != model:
            self._notes = self._notes.model_copy(update={"good": {**self._notes.good, model.name: model}})
            write_remembered(self._kept, self._notes)

    def status(self) -> NodeEngineStatus:
        """Return the status last written, empty where none can be read."""
        try:
            resource = self._store.get(self.ref)
        except (BlurfleetError, OSError):
            return NodeEngineStatus()
        found = resource.status if resource is not None else None
        return found if isinstance(found, NodeEngineStatus) else NodeEngineStatus()

    def write(self, status: Model, now: float) -> bool:
        """Write the status; tell whether it is written. After a failure it waits, up to half a minute."""
        if now < self._back_off_until:
            return False
        try:
            self._store.write_status(self.ref, status)
        except (BlurfleetError, OSError):
            self._failures += 1
            wait = min(30.0, 0.5 * 2.0 ** min(self._failures, 6))
            self._back_off_until = now + wait * random.uniform(0.5, 1.0)  # a whole fleet comes back at once
            return False
        self._failures = 0
        return True


def spec_problem(spec: NodeEngineSpec, model: NodeModel, device_class: str) -> Problem | None:
    """Return why `model` cannot be acted on by a node of `device_class`, None where it can. Pure."""
    if spec.device_class not in DEVICE_CLASSES:
        known = ", ".join(DEVICE_CLASSES)
        return Problem(reason=Reason.UNKNOWN_CLASS, message=f"{spec.device_class!r} is no device class; one of {known}")
    if spec.device_class != device_class:
        text = f"the NodeEngine says {spec.device_class}, this node is a {device_class}"
        return Problem(reason=Reason.UNKNOWN_CLASS, message=text)
    wrong = [f for f in policy_problems(model.policy, spec.device_class) if f.severity is Severity.ERROR]
    if wrong:
        named = f"policy {model.policy_name}" if model.policy_name else "policy"
        return Problem(reason=wrong[0].reason, message=f"{named}: {wrong[0].where}: {wrong[0].message}")
    if model.contract_hash and model.contract_hash != contract_hash(model.contract):
        text = f"contract hashes to {contract_hash(model.contract)}, the spec promises {model.contract_hash}"
        return Problem(reason=Reason.CONTRACT_CHANGED, message=text)
    return None
