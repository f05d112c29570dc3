"""The loop of one node: observe, decide, apply. It never waits for slow work, the store or Triton to be well."""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import structlog

from blurfleet.answers import urgent
from blurfleet.api.base import seconds
from blurfleet.api.nodeengine import ModelStatus, NodeEngineStatus, NodeModel
from blurfleet.errors import BlurfleetError, EngineTimeout
from blurfleet_agent import decide as wanted
from blurfleet_agent.aliases import Proof
from blurfleet_agent.candidate import judge_candidate
from blurfleet_agent.desired import Wish
from blurfleet_agent.flip_proof import FlipProof
from blurfleet_agent.guard_thread import GuardThread
from blurfleet_agent.health import Pulse
from blurfleet_agent.jobs import Answer, Job, Worker
from blurfleet_agent.model_loop import ModelLoop, Scene
from blurfleet_agent.node_figures import strictest
from blurfleet_agent.parts import Parts
from blurfleet_agent.status import NodeHealth, deafness, model_status, node_status, worth_writing
from blurfleet_agent.steady import steady_clock
from blurfleet_agent.view import ModelView, Problem
from blurfleet_agent.watch import Told, Watch
from blurfleet_agent.watches import watch_of

COLLECT_EVERY_S = 30.0
SILENT_TURNS = 3  # a busy Triton may miss a call; one that is gone refuses at once


class Node:
    """Owns all memory between turns; the guard and the worker only send messages."""

    def __init__(
        self,
        parts: Parts,
        *,
        clock: Callable[[], float] | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`clock` (steady, the same as the slow work's) is what waits are counted by, `wall` what is stamped."""
        self._p = parts
        self._clock = clock or steady_clock()
        self._wall = wall
        self._wake = threading.Event()
        self._worker = Worker(self._wake.set)
        self._guard: GuardThread | None = None
        self._told: queue.SimpleQueue[Told] = queue.SimpleQueue()
        self._loops: dict[str, ModelLoop] = {}
        self._ready: frozenset[str] = frozenset()
        self._triton: Problem | None = None
        self._silent = 0
        self._proof = FlipProof()
        self._watches: dict[str, Watch] = {}
        self._status: NodeEngineStatus | None = None
        self._models: dict[str, ModelStatus] = {m.name: m for m in parts.desired.status().models}
        self._written_at = 0.0
        self._ordered = 0
        self._answers_at = 0.0
        self._collected_at = 0.0
        self.turned = time.monotonic()
        self.turns = 0
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
        self.turned = time.monotonic()
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
                names = {n for m in self._loops.values() for n in m.memory.last_wanted}
                self._p.collect(referenced, frozenset(names) | self._ready)
        self._publish(wish, models, now)
        self.turns += 1

    def _observe_triton(self) -> None:
        try:
            self._ready = self._p.engines.ready()
            self._triton, self._silent = None, 0
        except EngineTimeout as error:
            self._silent += 1
            if self._silent >= SILENT_TURNS:
                self._lose_triton(error)
        except BlurfleetError as error:
            self._lose_triton(error)

    def _lose_triton(self, error: BlurfleetError) -> None:
        self._ready = frozenset()
        self._proof = FlipProof()  # what comes back may be another version
        self._triton = Problem(reason=error.reason, message=error.message)

    def _turn_model(self, wish: Wish, model: NodeModel, now: float, referenced: set[str]) -> ModelStatus:
        loop = self._loop(model.name)
        force, problem = loop.in_force(wish, model)
        if problem is None:
            self._p.desired.trust(model)
        loop.memory.begin(force)
        loop.learn_face(wish, force)
        served = self._p.swapper.served(model.name)
        if served is not None and served.settled and self._triton is None and model.name not in self._ready:
            self._p.swapper.unsettle(model.name)  # Triton was restarted
        scene = Scene(
            now=now,
            wall=self._wall(),
            ready=self._ready,
            proof=self._proof,
            memory_low=self._p.engines.memory_low(),
        )
        # Without Triton nothing can be done, and its silence says nothing about any engine.
        for action in wanted.decide(loop.view(wish, model, scene)) if self._triton is None else ():
            if isinstance(action, wanted.SLOW):
                self._start(action, wish, force, now)
            else:
                loop.apply(action, now)
        view = loop.view(wish, model, scene)
        self._refer(view, wish, loop, referenced)
        watch = watch_of(view, wish.notes, self._p.settings.device_class)
        if watch is None:
            self._watches.pop(model.name, None)
        elif self._watches.get(model.name) != watch:
            self._watches[model.name] = watch
        epoch = view.served.epoch if view.served is not None else 0
        self._p.metrics.serving(model.name, epoch=epoch, fallback_ready=view.fallback_ready)
        old, candidate = self._models.get(model.name), judge_candidate(replace(view, spec=model))
        self._models[model.name] = model_status(view, candidate, loop.memory.told, self._health(wish), old)
        return self._models[model.name]

    def _refer(self, view: ModelView, wish: Wish, loop: ModelLoop, referenced: set[str]) -> None:
        keep = wanted.wanted_engines(view)
        loop.memory.want({view.name_of(ref) for ref in keep}, view)
        referenced.update(*(self._p.engines.files_of(ref) for ref in keep))
        referenced |= {n.golden.digest for n in wish.notes.sets.values() if n.golden is not None}

    def _loop(self, alias: str) -> ModelLoop:
        if alias not in self._loops:
            self._loops[alias] = ModelLoop(self._p, alias)
        return self._loops[alias]

    def _start(self, action: wanted.Action, wish: Wish, model: NodeModel, now: float) -> None:
        if not self._worker.idle:
            return
        work, face = self._p.work, self._p.swapper.face(model.name)
        does: Callable[[], Answer]
        match action:
            case wanted.Load():
                does = partial(work.load, action, model)
            case wanted.FetchRecord():
                does = partial(work.record, action)
            case wanted.RunGolden():
                does = partial(work.golden, action, model, wish.notes)
            case wanted.Unload():
                does = partial(work.unload, action)
            case wanted.ProveFlip() if face is not None:
                does = partial(work.prove, action, model, face)
            case _:
                return
        self._worker.start(Job(model=model, notes=wish.notes, action=action, began=now), does)

    def _take_told(self) -> None:
        while not self._told.empty():
            told = self._told.get()
            self._loop(told.alias).hear(told)

    def _take_outcome(self, now: float) -> None:
        outcome = self._worker.take()
        if outcome is None:
            return
        if isinstance(outcome.answer, Proof):
            self._proof = self._proof.tried(outcome.answer, now)
            self._log.info("flip tried", passed=outcome.answer.passed, requests=outcome.answer.requests)
        elif isinstance(outcome.action, wanted.ProveFlip):
            self._proof = self._proof.failed(now)
            self._log.warning("flip not tried", error=str(outcome.error))
        else:
            self._loop(outcome.model.name).done(outcome, now)

    def _health(self, wish: Wish) -> NodeHealth:
        return NodeHealth(
            store=wish.problem,
            triton=self._triton,
            journal_synced=not self._p.journal.unsynced,
            journal_cut=self._p.journal.cut,
            evidence_lost=self.evidence_lost,
            simulated=self._p.settings.simulated,
            guard=self._deaf(),
            runtime=self._p.runtime(),
        )

    def _deaf(self) -> str:
        return deafness(self._guard.alive, self._guard.receiving) if self._guard is not None else ""

    def pulse(self, started_s: float) -> Pulse:
        """Return what probes are answered by, `started_s` after the start; any thread may ask."""
        now, guard = time.monotonic(), self._guard
        heard = guard.turned if guard is not None else None
        return Pulse(
            started_s=started_s,
            loop_s=now - self.turned if self.turns else None,
            guard_s=now - heard if heard is not None else None,
            deaf=self._deaf(),
        )

    def _answer_at(self, wish: Wish, now: float) -> float:
        """Return when what is no bad news of the newest order is reported: once the others have their orders."""
        if wish.generation != self._ordered:
            after = seconds(wish.spec.answer_after) if wish.spec.answer_after is not None else 0.0
            self._ordered, self._answers_at = wish.generation, now + random.uniform(after, 2 * after)
        return self._answers_at

    def _publish(self, wish: Wish, models: tuple[ModelStatus, ...], now: float) -> None:
        self._p.metrics.journal(unsynced=self._p.journal.unsynced)
        old = self._status if self._status is not None else self._p.desired.status()
        wall = self._wall()
        new = node_status(models, self._health(wish), self._p.facts(), wish.generation, old, wall)
        self._p.metrics.figures.show(new, {name: strictest(w.policy.rules) for name, w in self._watches.items()})
        if self._p.outbox is not None:
            self._p.outbox.notice(new, wall)
        age = now - self._written_at
        if (
            self._status is not None
            and not self._p.desired.doubted
            and age < self._p.settings.status_every_s
            and not worth_writing(self._status, new, age)
        ):
            return
        if now < self._answer_at(wish, now) and not urgent(self._status, new):
            return
        if self._p.desired.write(new, now):
            self._status, self._written_at = new, now
