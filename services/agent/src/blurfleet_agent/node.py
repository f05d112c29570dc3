"""The loop of one node: observe, decide, apply. It never waits for slow work, the store or Triton to be well."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import structlog

from blurfleet.api.base import seconds
from blurfleet.api.nodeengine import ModelStatus, NodeEngineStatus, NodeFacts, NodeModel
from blurfleet.errors import BlurfleetError
from blurfleet.identity import engine_name
from blurfleet_agent import decide as wanted
from blurfleet_agent.aliases import Proof, face_of
from blurfleet_agent.candidate import judge_candidate
from blurfleet_agent.desired import Desired, Wish, spec_problem
from blurfleet_agent.engines import Engines, LoadReport
from blurfleet_agent.exporter import Metrics
from blurfleet_agent.faults import next_fault
from blurfleet_agent.guard_thread import GuardThread
from blurfleet_agent.jobs import Outcome, Worker
from blurfleet_agent.journal import Journal
from blurfleet_agent.journal_records import Unlatched
from blurfleet_agent.model_memory import ModelMemory, golden_key
from blurfleet_agent.settings import AgentSettings
from blurfleet_agent.status import NodeHealth, model_status, node_status, worth_writing
from blurfleet_agent.swap import Swapper
from blurfleet_agent.view import GoldenResult, ModelView, Problem
from blurfleet_agent.watch import Told, Watch
from blurfleet_agent.watches import watch_of
from blurfleet_agent.work import Work

COLLECT_EVERY_S = 30.0
PROVE_AGAIN_S = 5.0
PROOF_ATTEMPTS = 3  # a flip that could not be tried (a busy machine) says less than one that lost a request


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What the loop is made of."""

    settings: AgentSettings
    desired: Desired
    engines: Engines
    swapper: Swapper
    journal: Journal
    work: Work
    metrics: Metrics
    collect: Callable[[set[str], frozenset[str]], None]
    facts: Callable[[], NodeFacts]


class Node:
    """Owns all memory between turns; the guard and the worker only send messages."""

    def __init__(self, parts: Parts, *, clock: Callable[[], float] = time.time) -> None:
        self._p = parts
        self._clock = clock
        self._wake = threading.Event()
        self._worker = Worker(self._wake.set)
        self._guard: GuardThread | None = None
        self._told: queue.SimpleQueue[Told] = queue.SimpleQueue()
        self._memory: dict[str, ModelMemory] = {}
        self._ready: frozenset[str] = frozenset()
        self._triton: Problem | None = None
        self._swap_proven: bool | None = None
        self._faces: dict[str, tuple[str, str]] = {}
        self._watches: dict[str, Watch] = {}
        self._status: NodeEngineStatus | None = None
        self._models: dict[str, ModelStatus] = {m.name: m for m in parts.desired.status().models}
        self._written_at = 0.0
        self._collected_at = 0.0
        self._prove_at = 0.0
        self._proof_errors = 0
        self.evidence_lost = ""
        self._log = structlog.get_logger("blurfleet.node").bind(node=parts.settings.node)

    def attach(self, guard: GuardThread) -> None:
        """Let `guard` watch what this node serves."""
        self._guard = guard

    def tell(self, told: Told) -> None:
        """Hear from the guard; any thread may call it."""
        self._told.put(told)
        judged = told.shadow is not None and told.shadow.verdict != "Inconclusive"
        if judged or told.trip is not None or told.act != "None":
            self._wake.set()

    def wake(self) -> None:
        """Turn the loop now; any thread may call it."""
        self._wake.set()

    def run(self, stopped: Callable[[], bool]) -> None:
        """Turn until `stopped()`; then let slow work end."""
        try:
            while not stopped():
                self._wake.clear()
                self.turn()
                if not stopped():
                    self._wake.wait(self._p.settings.tick_s)
        finally:
            self._worker.close()

    def turn(self) -> None:
        """Observe, decide and apply once."""
        now = self._clock()
        self._take_outcome(now)
        self._take_told()
        wish = self._p.desired.read()
        self._observe_triton()
        self._p.journal.settle()
        referenced: set[str] = set()
        models = tuple(self._turn_model(wish, model, now, referenced) for model in wish.spec.models)
        if self._guard is not None:
            self._guard.publish(dict(self._watches))
        if self._worker.idle and now - self._collected_at >= COLLECT_EVERY_S:
            self._collected_at = now
            if wish.spec.models and self._triton is None:
                names = {n for m in self._memory.values() for n in m.last_wanted}
                self._p.collect(referenced, frozenset(names) | self._ready)
        self._publish(wish, models, now)

    def _observe_triton(self) -> None:
        try:
            self._ready = self._p.engines.ready()
            self._triton = None
        except BlurfleetError as error:
            self._ready = frozenset()
            self._swap_proven = None  # what comes back may be another version
            self._triton = Problem(reason=error.reason, message=error.message)

    def _turn_model(self, wish: Wish, model: NodeModel, now: float, referenced: set[str]) -> ModelStatus:
        memory = self._memory.setdefault(model.name, ModelMemory())
        memory.begin(model)
        self._learn_face(wish, model)
        served = self._p.swapper.served(model.name)
        if served is not None and served.settled and self._triton is None and model.name not in self._ready:
            self._p.swapper.unsettle(model.name)  # Triton was restarted
        view = self._view(wish, model, memory, now)
        for action in wanted.decide(view):
            if isinstance(action, wanted.SLOW):
                self._start(action, wish, model, now)
            else:
                self._apply(action, memory, now)
        view = self._view(wish, model, memory, now)
        keep = wanted.wanted_engines(view)
        memory.last_wanted.update({view.name_of(ref): now for ref in keep})
        referenced.update(*(self._p.engines.files_of(ref) for ref in keep))
        referenced |= {n.golden.digest for n in wish.notes.sets.values() if n.golden is not None}
        watch = watch_of(view, wish.notes, self._p.settings.device_class)
        if watch is None:
            self._watches.pop(model.name, None)
        elif self._watches.get(model.name) != watch:
            self._watches[model.name] = watch
        served = view.served
        self._p.metrics.serving(
            model.name, epoch=served.epoch if served is not None else 0, fallback_ready=view.fallback_ready
        )
        status = model_status(
            view, judge_candidate(view), memory.told, self._health(wish), self._models.get(model.name)
        )
        self._models[model.name] = status
        return status

    def _view(self, wish: Wish, model: NodeModel, memory: ModelMemory, now: float) -> ModelView:
        served = self._p.swapper.served(model.name)
        refs = [r for r in (model.primary, model.fallback, model.oracle, model.candidate) if r is not None]
        served_ref = None
        if served is not None:
            named = [r for r in refs if r.digest == served.engine.digest]
            served_ref = named[0] if named else wish.notes.find(served.engine.digest)
        return ModelView(
            now=now,
            spec=model,
            problem=spec_problem(wish.spec, model, self._p.settings.device_class),
            quarantined=frozenset(wish.spec.quarantined),
            ready=self._ready,
            served=served,
            served_ref=served_ref,
            journal=self._p.swapper.journal_of(model.name),
            faults=memory.faults,
            golden=memory.view_of_golden(tuple(refs), model.policy, wish.notes),
            shadow=memory.shadow,
            reproven=memory.reproven,
            swap_proven=self._swap_proven,
            prove_at=self._prove_at,
            memory_low=self._p.engines.memory_low(),
            last_wanted=memory.last_wanted,
            settle_at=memory.settle_at,
            standby_every=seconds(model.policy.standby_proof_every),
            unload_after=self._p.settings.unload_after_s,
        )

    def _learn_face(self, wish: Wish, model: NodeModel) -> None:
        """See to it that the swapper knows tensors and contract before anything can trip."""
        served = self._p.swapper.served(model.name)
        ref = wish.notes.find(served.engine.digest) if served is not None else None
        ref = ref or model.primary or model.fallback or model.candidate
        if ref is None:
            return
        seen = (ref.digest, model.contract_hash)
        if self._faces.get(model.name) == seen:
            return
        try:
            record = self._p.engines.record(ref)
        except BlurfleetError:
            return  # the load of that engine says why
        self._p.swapper.learn(model.name, face_of(record, model.contract, model.contract_hash))
        self._faces[model.name] = seen

    def _apply(self, action: wanted.Action, memory: ModelMemory, now: float) -> None:
        try:
            match action:
                case wanted.Serve():
                    self._serve(action, memory, now)
                case wanted.Settle():
                    self._settle(action.alias, memory, now)
                case wanted.Refresh():
                    self._p.swapper.refresh(action.alias, action.fallback)
        except BlurfleetError as error:
            self._log.error("not applied", reason=error.reason, error=error.message)

    def _serve(self, action: wanted.Serve, memory: ModelMemory, now: float) -> None:
        order = action.order
        result = self._p.swapper.swap(order)
        if result is None:
            return
        if action.unlatch:
            self._p.journal.append(Unlatched(alias=order.alias, digest=order.to.digest, attempt=order.attempt))
            memory.reproven = False
        self._p.metrics.swapped(order.alias, seconds=result.swap_ms / 1e3, epoch=result.epoch)
        if order.why == "Quarantine":
            self._p.metrics.tripped(order.alias, order.reason, swapped=True)
        if result.stale is not None:
            self._owe(memory, now, result.stale)
        self._log_of(order.alias).info(
            "serving",
            engine=order.to.engine,
            role=order.role,
            epoch=result.epoch,
            why=order.why,
            reason=order.reason,
            swap_ms=round(result.swap_ms, 3),
        )

    def _settle(self, alias: str, memory: ModelMemory, now: float) -> None:
        error = self._p.swapper.resume(alias)
        if error is not None:
            self._owe(memory, now, error)
        else:
            memory.settle_tries = 0
            self._log_of(alias).info("alias settled")

    def _owe(self, memory: ModelMemory, now: float, error: BlurfleetError) -> None:
        memory.settle_tries += 1
        s = self._p.settings
        memory.settle_at = now + min(s.retry_back_off_max_s, 0.25 * 2.0 ** min(memory.settle_tries, 10))
        self._log.warning("alias is behind", reason=error.reason, error=error.message, tries=memory.settle_tries)

    def _start(self, action: wanted.Action, wish: Wish, model: NodeModel, now: float) -> None:
        if not self._worker.idle or self._triton is not None:
            return
        work = self._p.work
        face = self._p.swapper.face(model.name)
        match action:
            case wanted.Load():
                self._worker.start(model.name, model.attempt, action, lambda: work.load(action, model), now)
            case wanted.RunGolden():
                self._worker.start(
                    model.name, model.attempt, action, lambda: work.golden(action, model, wish.notes), now
                )
            case wanted.Unload():
                self._worker.start(model.name, model.attempt, action, lambda: work.unload(action), now)
            case wanted.ProveFlip() if face is not None:
                self._worker.start(model.name, model.attempt, action, lambda: work.prove(action, model, face), now)

    def _take_told(self) -> None:
        while True:
            try:
                told = self._told.get_nowait()
            except queue.Empty:
                return
            memory = self._memory.setdefault(told.alias, ModelMemory())
            memory.told = told
            memory.reproven = memory.reproven or told.rearm
            if told.shadow is not None:
                memory.shadow = told.shadow

    def _take_outcome(self, now: float) -> None:
        outcome = self._worker.take()
        if outcome is None:
            return
        memory = self._memory.setdefault(outcome.alias, ModelMemory())
        if outcome.error is not None:
            self._failed(outcome, memory, now)
            return
        action, answer = outcome.action, outcome.answer
        if isinstance(action, wanted.Load) and isinstance(answer, LoadReport):
            memory.faults.pop(action.ref.digest, None)
            self._log_of(outcome.alias).info(
                "loaded",
                engine=engine_name(outcome.alias, action.ref.digest),
                seconds=round(answer.seconds, 3),
                taken_bytes=answer.taken_bytes,
                available=answer.available_after,
            )
        elif isinstance(action, wanted.RunGolden) and isinstance(answer, GoldenResult):
            self._golden_done(outcome, memory, answer)
        elif isinstance(action, wanted.ProveFlip) and isinstance(answer, Proof):
            self._swap_proven, self._prove_at, self._proof_errors = answer.passed, now + PROVE_AGAIN_S, 0
            self._log.info("flip proven", passed=answer.passed, requests=answer.requests, failed=answer.failed)
        elif isinstance(action, wanted.Unload):
            memory.last_wanted.pop(action.name, None)
            self._log.info("unloaded", engine=action.name)

    def _golden_done(self, outcome: Outcome, memory: ModelMemory, result: GoldenResult) -> None:
        action = outcome.action
        assert isinstance(action, wanted.RunGolden)
        wish = self._p.desired.last
        model = next((m for m in wish.spec.models if m.name == outcome.alias), None)
        if model is None:
            return
        memory.golden[golden_key(action.ref, action.role, model.policy, wish.notes)] = result
        self._p.metrics.sample(
            outcome.alias, source="Golden", verdict=result.verdict, max_abs=None, deer=None, now=result.at
        )
        self._log_of(outcome.alias).info(
            "golden",
            digest=action.ref.digest,
            role=action.role,
            verdict=result.verdict,
            reason=result.reason,
            message=result.message,
        )

    def _failed(self, outcome: Outcome, memory: ModelMemory, now: float) -> None:
        error, action, s = outcome.error, outcome.action, self._p.settings
        assert error is not None
        self._log.warning("failed", action=type(action).__name__, reason=error.reason, error=str(error))
        if isinstance(action, wanted.Load):
            memory.faults[action.ref.digest] = next_fault(
                memory.faults.get(action.ref.digest),
                error,
                now,
                attempts=s.load_attempts,
                back_off_s=s.retry_back_off_s,
                max_back_off_s=s.retry_back_off_max_s,
            )
        elif isinstance(action, wanted.RunGolden):
            result = GoldenResult(verdict="Inconclusive", reason=error.reason, message=str(error), at=now)
            self._golden_done(outcome, memory, result)
        elif isinstance(action, wanted.ProveFlip):
            self._proof_errors += 1
            self._swap_proven = None if self._proof_errors < PROOF_ATTEMPTS else False
            self._prove_at = now + PROVE_AGAIN_S
        elif isinstance(action, wanted.Unload):
            memory.last_wanted[action.name] = now  # tried again after the same wait

    def _log_of(self, alias: str) -> Any:
        face = self._p.swapper.face(alias)
        return self._log.bind(model=alias, model_id=face.model_id if face is not None else "")

    def _health(self, wish: Wish) -> NodeHealth:
        return NodeHealth(
            store=wish.problem,
            triton=self._triton,
            journal_synced=not self._p.journal.unsynced,
            journal_torn=self._p.journal.torn,
            evidence_lost=self.evidence_lost,
            simulated=self._p.settings.simulated,
        )

    def _publish(self, wish: Wish, models: tuple[ModelStatus, ...], now: float) -> None:
        self._p.metrics.journal(unsynced=self._p.journal.unsynced)
        old = self._status if self._status is not None else self._p.desired.status()
        new = node_status(models, self._health(wish), self._p.facts(), wish.generation, old, now)
        age = now - self._written_at
        if (
            self._status is not None
            and age < self._p.settings.heartbeat_s
            and not worth_writing(self._status, new, age)
        ):
            return
        if self._p.desired.write(new, now):
            self._status, self._written_at = new, now
