"""One model's part of the loop: what is known of it, quick actions, and what slow work came to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import structlog

from blurfleet.api.base import seconds
from blurfleet.api.nodeengine import EngineRef, NodeModel
from blurfleet.errors import BlurfleetError
from blurfleet.identity import engine_name
from blurfleet_agent import decide as wanted
from blurfleet_agent.aliases import face_of
from blurfleet_agent.desired import Wish, spec_problem
from blurfleet_agent.engines import LoadReport
from blurfleet_agent.faults import next_fault
from blurfleet_agent.flip_proof import FlipProof
from blurfleet_agent.jobs import Outcome
from blurfleet_agent.journal_records import AliasState, Latch
from blurfleet_agent.model_memory import ModelMemory, golden_key
from blurfleet_agent.parts import Parts
from blurfleet_agent.view import Fault, GoldenAnswer, GoldenResult, ModelView, Problem
from blurfleet_agent.watch import Told


@dataclass(frozen=True, kw_only=True)
class Scene:
    """What holds for all models of the node at `now` on the steady clock, which the wall calls `wall`."""

    now: float
    wall: float
    ready: frozenset[str]
    proof: FlipProof
    memory_low: bool


class ModelLoop:
    """Owned by the loop's thread alone."""

    def __init__(self, parts: Parts, alias: str) -> None:
        self._p = parts
        self.alias = alias
        self.memory = ModelMemory()
        self._face: tuple[str, str] | None = None
        self._faceless: EngineRef | None = None
        self._log = structlog.get_logger("blurfleet.node").bind(node=parts.settings.node, model=alias)

    def in_force(self, wish: Wish, model: NodeModel) -> tuple[NodeModel, Problem | None]:
        """Return what to act on, and why that is not `model` as wished: the last that could be acted on, if any.

        Its candidate is left out: nothing new begins on an old wish.
        """
        problem = spec_problem(wish.spec, model, self._p.settings.device_class)
        good = wish.notes.good.get(model.name)
        if problem is None or good is None:
            return model, problem
        return good.model_copy(update={"candidate": None}), problem

    def view(self, wish: Wish, model: NodeModel, scene: Scene) -> ModelView:
        """Return all that is known of the model at this moment."""
        model, problem = self.in_force(wish, model)
        memory = self.memory
        served = self._p.swapper.served(model.name)
        journal = self._p.swapper.journal_of(model.name)
        refs = [r for r in (model.primary, model.fallback, model.oracle, model.candidate) if r is not None]
        served_ref = None
        if served is not None:
            named = [r for r in refs if r.digest == served.engine.digest]
            served_ref = named[0] if named else wish.notes.find(served.engine.digest)
        return ModelView(
            now=scene.now,
            wall=scene.wall,
            spec=model,
            problem=problem,
            last_good=problem is not None and model.name in wish.notes.good,
            quarantined=frozenset(wish.spec.quarantined),
            ready=scene.ready,
            served=served,
            served_ref=served_ref,
            drained=self._p.swapper.drained(model.name),
            journal=journal,
            faults=memory.faults,
            golden=memory.view_of_golden(tuple(refs), model.policy, wish.notes),
            shadow=memory.shadow,
            reproven=memory.reproven is not None and memory.reproven == _latch_of(model, journal),
            swap_proven=scene.proof.proven,
            prove_at=scene.proof.again_at,
            memory_low=scene.memory_low,
            last_wanted=memory.last_wanted,
            faceless=self._faceless,
            face_at=memory.face_fault.retry_at if memory.face_fault is not None else 0.0,
            settle_at=memory.settle_at,
            standby_every=seconds(model.policy.standby_proof_every),
            unload_after=self._p.settings.unload_after_s,
        )

    def learn_face(self, wish: Wish, model: NodeModel) -> None:
        """See to it that the swapper knows tensors and contract before anything can trip."""
        served = self._p.swapper.served(model.name)
        ref = wish.notes.find(served.engine.digest) if served is not None else None
        ref = ref or model.primary or model.fallback or model.candidate
        if ref is None:
            return
        if self._faceless is not None and self._faceless.digest != ref.digest:
            self._faceless = None
        seen = (ref.digest, model.contract_hash)
        if self._face == seen:
            return
        try:
            record = self._p.engines.staged_record(ref)
        except BlurfleetError:
            return  # the load of that engine says why
        if record is None:
            self._faceless = ref
            return
        self._faceless = self.memory.face_fault = None
        self._p.swapper.learn(model.name, face_of(record, model.contract, model.contract_hash))
        self._face = seen

    def hear(self, told: Told) -> None:
        """Take in what the guard says."""
        if told.stage == "Live":
            self.memory.told = told
        if told.trip_kind is not None:
            self.memory.reproven = None  # a new latch: what was proven before it says nothing
        if told.rearm:
            # Of this very latch: another attempt or digest, or a later trip of the same one, is not proven by it.
            self.memory.reproven = self._p.swapper.journal_of(self.alias).latch(told.digest, told.attempt)
        if told.shadow is not None:
            self.memory.shadow = told.shadow

    def apply(self, action: wanted.Action, now: float) -> None:
        """Do a quick action; what cannot be done now is decided again at the next turn."""
        try:
            match action:
                case wanted.Serve():
                    self._serve(action, now)
                case wanted.Settle():
                    self._settle(action.alias, now)
                case wanted.Refresh():
                    self._p.swapper.refresh(action.alias, action.fallback)
                case wanted.Drain():
                    self._p.swapper.drain(action.alias, drained=action.drained)
                    self._log_now().warning("drained" if action.drained else "takes clients again")
        except BlurfleetError as error:
            self._log_now().error("not applied", reason=error.reason, error=error.message)

    def _serve(self, action: wanted.Serve, now: float) -> None:
        order = action.order
        result = self._p.swapper.swap(order)
        if result is None:
            return
        if order.why == "Rearm":
            self.memory.reproven = None
        self._p.metrics.swapped(order.alias, seconds=result.swap_ms / 1e3, epoch=result.epoch)
        if order.why == "Quarantine":
            self._p.metrics.tripped(order.alias, order.reason, swapped=True)
        if result.stale is not None:
            self._owe(now, result.stale)
        self._log_now().info(
            "serving",
            engine=order.to.engine,
            role=order.role,
            epoch=result.epoch,
            why=order.why,
            reason=order.reason,
            swap_ms=round(result.swap_ms, 3),
        )

    def _settle(self, alias: str, now: float) -> None:
        error = self._p.swapper.resume(alias)
        if error is not None:
            self._owe(now, error)
        else:
            self.memory.settle_tries = 0
            self._log_now().info("alias settled")

    def _owe(self, now: float, error: BlurfleetError) -> None:
        self.memory.settle_tries += 1
        s = self._p.settings
        self.memory.settle_at = now + min(s.retry_back_off_max_s, 0.25 * 2.0 ** min(self.memory.settle_tries, 10))
        self._log_now().warning(
            "alias is behind", reason=error.reason, error=error.message, tries=self.memory.settle_tries
        )

    def done(self, outcome: Outcome, now: float) -> None:
        """Take in what slow work on this model came to."""
        action, answer = outcome.action, outcome.answer
        if outcome.error is not None:
            self._failed(outcome, outcome.error, now)
        elif isinstance(action, wanted.Load) and isinstance(answer, LoadReport):
            self.memory.faults.pop(action.ref.digest, None)
            self._log_now().info(
                "loaded",
                engine=engine_name(self.alias, action.ref.digest),
                seconds=round(answer.seconds, 3),
                taken_bytes=answer.taken_bytes,
                available=answer.available_after,
            )
        elif isinstance(action, wanted.RunGolden) and isinstance(answer, GoldenAnswer):
            self._golden_done(outcome, answer)
        elif isinstance(action, wanted.Unload):
            self.memory.last_wanted.pop(action.name, None)
            self._log_now().info("unloaded", engine=action.name)

    def _golden_done(self, outcome: Outcome, answer: GoldenAnswer) -> None:
        action = outcome.action
        assert isinstance(action, wanted.RunGolden)
        for role, found in answer.results.items():
            if role == action.role or found.verdict != "Inconclusive":
                key = golden_key(action.ref, role, outcome.model.policy, outcome.notes)
                self.memory.golden[key] = found
        result = answer.results[action.role]
        self._p.metrics.sample(
            outcome.model.name, source="Golden", verdict=result.verdict, max_abs=None, deer=None, now=result.at
        )
        self._log_now().info(
            "golden",
            digest=action.ref.digest,
            role=action.role,
            verdict=result.verdict,
            reason=result.reason,
            message=result.message,
        )

    def _failed(self, outcome: Outcome, error: BlurfleetError, now: float) -> None:
        action, faults = outcome.action, self.memory.faults
        self._log_now().warning("failed", action=type(action).__name__, reason=error.reason, error=str(error))
        if isinstance(action, wanted.Load):
            faults[action.ref.digest] = self._next_fault(faults.get(action.ref.digest), error, now)
        elif isinstance(action, wanted.RunGolden):
            result = GoldenResult(verdict="Inconclusive", reason=error.reason, message=str(error), at=now)
            self._golden_done(outcome, GoldenAnswer(results={action.role: result}))
        elif isinstance(action, wanted.FetchRecord):
            self.memory.face_fault = self._next_fault(self.memory.face_fault, error, now)
        elif isinstance(action, wanted.Unload):
            self.memory.last_wanted[action.name] = now  # tried again after the same wait

    def _next_fault(self, old: Fault | None, error: BlurfleetError, now: float) -> Fault:
        s = self._p.settings
        return next_fault(
            old,
            error,
            now,
            attempts=s.load_attempts,
            back_off_s=s.retry_back_off_s,
            max_back_off_s=s.retry_back_off_max_s,
        )

    def _log_now(self) -> Any:
        face = self._p.swapper.face(self.alias)
        return self._log.bind(model_id=face.model_id if face is not None else "")


def _latch_of(model: NodeModel, journal: AliasState) -> Latch | None:
    return journal.latch(model.primary.digest, model.attempt) if model.primary is not None else None
