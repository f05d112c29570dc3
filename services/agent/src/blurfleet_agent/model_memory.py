"""What the loop remembers of one model between turns."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from blurfleet.api.nodeengine import EngineRef, NodeModel
from blurfleet.api.policy import PolicySpec
from blurfleet_agent.journal_records import Latch
from blurfleet_agent.remembered import Remembered
from blurfleet_agent.view import Fault, GoldenResult, ModelView, Role, ShadowResult
from blurfleet_agent.watch import Told

GoldenKey = tuple[str, str, Role, str]


@dataclass(kw_only=True)
class ModelMemory:
    """Owned by the loop's thread alone. Golden results are kept by digest, bundle, role and policy."""

    attempt: str | None = None
    faults: dict[str, Fault] = field(default_factory=dict)
    golden: dict[GoldenKey, GoldenResult] = field(default_factory=dict)
    last_wanted: dict[str, float] = field(default_factory=dict)
    shadow: ShadowResult | None = None
    told: Told | None = None
    reproven: Latch | None = None  # the drift latch that Probation proved wrong
    face_fault: Fault | None = None
    settle_at: float = 0.0
    settle_tries: int = 0

    def begin(self, spec: NodeModel) -> None:
        """Forget failed attempts when the spec's attempt is another one: `ops.retry` tries again."""
        if self.attempt != spec.attempt:
            self.attempt = spec.attempt
            self.faults.clear()
            self.reproven = None

    def want(self, names: set[str], view: ModelView) -> None:
        """Note what is wanted now; an engine that was found loaded (an earlier process's) was wanted until then."""
        for name in view.ready:
            if name.startswith(f"{view.spec.name}__"):
                self.last_wanted.setdefault(name, view.now)
        self.last_wanted.update(dict.fromkeys(names, view.now))

    def view_of_golden(
        self, refs: tuple[EngineRef, ...], policy: PolicySpec, notes: Remembered
    ) -> dict[tuple[str, str, Role], GoldenResult]:
        """Return the results that hold for `refs` under `policy`, by (digest, set, role)."""
        roles: tuple[Role, Role] = ("Primary", "Fallback")
        return {
            (ref.digest, ref.set, role): found
            for ref in refs
            for role in roles
            if (found := self.golden.get(golden_key(ref, role, policy, notes))) is not None
        }


def golden_key(ref: EngineRef, role: Role, policy: PolicySpec, notes: Remembered) -> GoldenKey:
    """Return under which key a golden result is kept: another bundle or policy is another question."""
    note = notes.sets.get(ref.set)
    bundle = note.golden.digest if note is not None and note.golden is not None else ""
    rules = hashlib.sha256(policy.model_dump_json().encode()).hexdigest()[:16]
    return ref.digest, bundle, role, rules
