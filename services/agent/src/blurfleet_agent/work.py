"""How the slow actions are done, each as one call that returns an answer or raises."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from blurfleet.api.nodeengine import EngineRef, NodeModel
from blurfleet.errors import BlurfleetError
from blurfleet.identity import engine_name
from blurfleet_agent.aliases import AliasMechanics, Face, Proof, probe_for
from blurfleet_agent.decide import FetchRecord, Load, ProveFlip, RunGolden, Unload
from blurfleet_agent.engines import Engines
from blurfleet_agent.golden import (
    GoldenFrames,
    GoldenRun,
    Infer,
    change_from,
    from_error,
    judge_alive,
    judge_run,
    pictures_differ,
    read_golden,
    run_golden,
)
from blurfleet_agent.jobs import Answer
from blurfleet_agent.remembered import Remembered
from blurfleet_agent.staging import Staging
from blurfleet_agent.view import GoldenAnswer, GoldenResult, Role

KeepGolden = Callable[[NodeModel, EngineRef, Role, GoldenRun, GoldenResult], str]


class Work:
    """Loads, golden inference, flip proofs and unloads of one node."""

    def __init__(
        self,
        *,
        engines: Engines,
        staging: Staging,
        mechanics: AliasMechanics,
        infer: Infer,
        device_class: str,
        keep_golden: KeepGolden,
        clock: Callable[[], float],
    ) -> None:
        self._engines = engines
        self._staging = staging
        self._mechanics = mechanics
        self._infer = infer
        self._class = device_class
        self._keep_golden = keep_golden
        self._clock = clock

    def load(self, action: Load, model: NodeModel) -> Answer:
        """Stage, check and load. Raises what `Engines.load` raises."""
        return self._engines.load(action.ref, model.name)

    def record(self, action: FetchRecord) -> Answer:
        """Stage a build record. Raises what `Engines.record` raises."""
        self._engines.record(action.ref)
        return None

    def unload(self, action: Unload) -> Answer:
        """Unload and remove. Raises EngineError."""
        self._engines.unload(action.name)
        return None

    def prove(self, action: ProveFlip, model: NodeModel, face: Face) -> Proof:
        """Flip under probe traffic. Raises EngineError."""
        return self._mechanics.prove(model.name, action.engine, face)

    def golden(self, action: RunGolden, model: NodeModel, notes: Remembered) -> GoldenAnswer:
        """Run golden inference once and judge it in both roles. Raises ArtifactRefused, NodeError (staging)."""
        ref, name = action.ref, engine_name(model.name, action.ref.digest)
        note = notes.sets.get(ref.set)
        if note is None or note.golden is None:
            return GoldenAnswer(results={action.role: self._alive(ref, model, name)})
        frames = read_golden(self._staging.ensure(note.golden))
        differs = pictures_differ(frames, model.contract)
        try:
            run = run_golden(self._infer, name, frames)
        except BlurfleetError as error:
            return GoldenAnswer(results={action.role: from_error(error, self._clock())})
        roles: tuple[Role, Role] = ("Primary", "Fallback")
        change = self._change(ref, model, frames)
        results = {
            role: replace(judge_run(run, model.policy, self._class, role, self._clock()), change=change)
            for role in roles
        }
        if differs:
            return GoldenAnswer(
                results={role: replace(r, message=differs, pictures_fit=False) for role, r in results.items()}
            )
        asked = results[action.role]
        if asked.verdict == "Fail":
            evidence = self._keep_golden(model, ref, action.role, run, asked)
            results[action.role] = replace(asked, evidence=evidence)
        return GoldenAnswer(results=results)

    def _change(self, ref: EngineRef, model: NodeModel, frames: GoldenFrames) -> float | None:
        """Return how far the last-known-good FP32 is from a new set's, when it is the new FP32 that is tried."""
        old, new = model.fallback, model.oracle
        if model.candidate is None or old is None or new is None:
            return None
        if ref.digest != new.digest or old.digest == new.digest:
            return None
        return change_from(self._infer, engine_name(model.name, old.digest), frames)

    def _alive(self, ref: EngineRef, model: NodeModel, name: str) -> GoldenResult:
        record = self._engines.record(ref)
        probe = probe_for(record, model.contract)
        try:
            return judge_alive(self._infer, name, probe, self._clock())
        except BlurfleetError as error:
            return from_error(error, self._clock())
