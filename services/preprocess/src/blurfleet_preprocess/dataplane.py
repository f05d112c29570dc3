"""One request, whatever transport it came by: snapshot, contract, engine by its own name, screening, answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from blurfleet.contract import contract_hash
from blurfleet.errors import ContractRefused, EngineError, EngineTimeout
from blurfleet.imageheader import ImageHeader
from blurfleet.pixels import Decoded, Pixels, Tensor, decode, to_tensor
from blurfleet.quality.sentinel import Matte
from blurfleet.reasons import Reason
from blurfleet.serving.frames import FrameKind, FrameSample
from blurfleet.serving.life import RequestLife
from blurfleet.serving.propagation import forwarded
from blurfleet.serving.routing import Route, RoutedEngine, RoutingTable
from blurfleet.serving.triton import InferResult
from blurfleet_preprocess.input_windows import InputWindows
from blurfleet_preprocess.metrics import GatewayMetrics
from blurfleet_preprocess.room import Share
from blurfleet_preprocess.screening import SOUND, Settled, doubt, settle
from blurfleet_preprocess.stages import Attributes, Stages
from blurfleet_preprocess.streams import Ticket
from blurfleet_preprocess.tensors import ContractMismatch, admit_tensor


class EnginePort(Protocol):
    """Asks a loaded model by name; `blurfleet.serving.triton.TritonClient` is the real one."""

    def infer(
        self,
        model: str,
        image: Tensor,
        *,
        timeout_s: float,
        headers: Mapping[str, str] | None = None,
        life: RequestLife | None = None,
    ) -> InferResult:
        """Return the matte. Raises EngineError, RequestEnded."""
        ...


class FrameSink(Protocol):
    """Takes samples for the agent; neither waits nor raises."""

    def offer(self, sample: FrameSample) -> None:
        """Queue a frame."""
        ...


@dataclass(frozen=True, kw_only=True)
class Caller:
    """Who asks: the place in a stream, the request's span and stages, and whether the picture may be kept as evidence.

    `life` says how long they wait, `room` where a decoded picture finds memory. `sender` is the
    connection of who names no stream: all of them share one, and nothing else.
    """

    ticket: Ticket
    stages: Stages = field(default_factory=Stages)
    evidence_allowed: bool = True
    life: RequestLife = field(default_factory=RequestLife)
    room: Share = field(default_factory=Share)
    sender: str = ""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A matte [H,W] float32 in [0,1] with who made it, all from one routing snapshot.

    `tensor` is what the engine was fed. `withheld` is why the served engine's own matte was not given out, `unchecked`
    why it is in doubt where the fallback could not say. `stages` go on being measured while the picture is made.
    `source` are the bytes of the picture that was sent; `decoded` is None where its tensor needed it reduced only.
    """

    matte: Matte
    engine: RoutedEngine
    role: str
    route: Route
    contract_hash: str
    simulated: bool
    ticket: Ticket
    trace_id: str
    withheld: Reason | None = None
    unchecked: Reason | None = None
    decoded: Decoded | None = None
    source: bytes = b""
    tensor: Tensor | None = None
    stages: Stages = field(default_factory=Stages)

    def whole(self) -> Pixels:
        """Return the picture that was sent, upright RGB [H,W,3] at full size; decoded again where it was reduced."""
        if self.decoded is not None:
            return self.decoded.rgb
        with self.stages.timed("decode"):
            return decode(self.source, self.route.contract, whole=True).rgb


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """One alias as the routing file had it at one moment."""

    route: Route
    simulated: bool
    contract_hash: str

    @property
    def standby(self) -> RoutedEngine | None:
        """Return the fallback where it is another engine than the one served."""
        fallback = self.route.fallback
        return fallback if fallback is not None and fallback.engine != self.route.active.engine else None

    def is_fallback(self, engine: RoutedEngine) -> bool:
        """Tell whether `engine` is the fallback, against which mattes in doubt are checked, whatever its role."""
        return self.route.fallback is not None and self.route.fallback.engine == engine.engine

    def role(self, engine: RoutedEngine) -> str:
        """Return the role in which `engine` answers: an FP32 set's primary may be the very engine that stands by."""
        if engine.engine == self.route.active.engine:
            return self.route.serving
        fallback = self.route.fallback
        return "Fallback" if fallback is not None and engine.engine == fallback.engine else "Primary"


@dataclass(frozen=True, kw_only=True)
class _Asked:
    snapshot: Snapshot
    engine: RoutedEngine
    matte: Tensor


class Gateway:
    """Answers requests for one alias. Knows no transport; safe for many threads."""

    def __init__(
        self,
        *,
        routing: Callable[[], RoutingTable],
        engines: EnginePort,
        frames: FrameSink,
        metrics: GatewayMetrics,
        alias: str,
        infer_timeout_s: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.alias = alias
        self._routing = routing
        self._engines = engines
        self._frames = frames
        self._metrics = metrics
        self._timeout_s = infer_timeout_s
        self._clock = clock
        self._inputs = InputWindows()

    def snapshot(self) -> Snapshot:
        """Return the alias as it is served now. Raises EngineError NothingServed, NodeError (unreadable file)."""
        table = self._routing()
        route = table.models.get(self.alias)
        if route is None:
            raise EngineError(
                Reason.NOTHING_SERVED, "no engine is served yet", where=self.alias, fix="try again in a moment"
            )
        return Snapshot(route=route, simulated=table.simulated, contract_hash=contract_hash(route.contract))

    def picture(self, caller: Caller, data: bytes, admit: Callable[[ImageHeader], None] = lambda _: None) -> Answer:
        """Answer image bytes. Raises ContractRefused (the bytes), EngineError (no engine, or no good matte).

        `admit` hears what the picture is before it is decoded, and may raise: what it refuses costs nothing.
        """
        snapshot = self.snapshot()

        def before(header: ImageHeader) -> None:
            admit(header)
            caller.room.take(header)

        try:
            with caller.stages.timed("decode"):
                decoded = decode(data, snapshot.route.contract, before=before)
            caller.life.check()
            with caller.stages.timed("contract"):
                tensor = to_tensor(decoded, snapshot.route.contract)
        except ContractRefused as error:
            self._metrics.refusals.labels(error.reason).inc()
            raise
        kept = decoded if decoded.reduced_by == 1 else None
        return replace(self._answer(caller, snapshot, tensor, kept), source=data)

    def tensor(self, caller: Caller, body: bytes, declared: str) -> Answer:
        """Answer a ready tensor in `.npy` form whose maker declares the contract's hash.

        Raises ContractMismatch, ContractRefused (shape, dtype, values), EngineError.
        """
        return self.ready_tensor(caller, declared, lambda snapshot: admit_tensor(body, snapshot.route.contract))

    def check_declared(self, declared: str) -> None:
        """Refuse a hash of another contract than the one served before a tensor is read. Raises ContractMismatch."""
        snapshot = self.snapshot()
        if declared != snapshot.contract_hash:
            self._metrics.refusals.labels(Reason.CONTRACT_MISMATCH).inc()
            raise ContractMismatch(snapshot.route.contract, declared)

    def ready_tensor(self, caller: Caller, declared: str, admit: Callable[[Snapshot], Tensor]) -> Answer:
        """Answer the tensor that `admit` makes of what was sent, under the snapshot the answer comes from.

        `declared` is the hash of the contract it was made by. Raises ContractMismatch, ContractRefused (values that the
        contract cannot give: NonFiniteInput, ImpossibleInput, SuspectInput), EngineError, what `admit` raises.
        """
        snapshot = self.snapshot()
        try:
            if declared != snapshot.contract_hash:
                raise ContractMismatch(snapshot.route.contract, declared)
            with caller.stages.timed("contract"):
                tensor = admit(snapshot)
                verdict = self._inputs.judge(caller.ticket, tensor, snapshot.route.contract, caller.sender)
                self._metrics.ready_tensors.labels(verdict.standing.value).inc()
        except ContractRefused as error:
            self._metrics.refusals.labels(error.reason).inc()
            raise
        return self._answer(caller, snapshot, tensor, None)

    def probe_alias(self) -> tuple[Snapshot, int]:
        """Run one inference through the alias itself; return the snapshot and the epoch that answered.

        Raises EngineError, NodeError.
        """
        snapshot = self.snapshot()
        contract = snapshot.route.contract
        grey = np.full((contract.height.opt, contract.width.opt, 3), 128, dtype=np.uint8)
        result = self._engines.infer(self.alias, to_tensor(grey, contract), timeout_s=self._timeout_s)
        return snapshot, result.model_version

    def _answer(self, caller: Caller, snapshot: Snapshot, tensor: Tensor, decoded: Decoded | None) -> Answer:
        asked = self._ask(caller, snapshot, tensor)
        with caller.stages.timed("check"):
            sound = doubt(asked.matte[0, 0]) is None
            second = None if sound else self._second_opinion(caller, asked, tensor)
            settled = SOUND if sound else settle(asked.matte[0, 0], None if second is None else second[0, 0])
        self._tell(caller, asked, tensor, second, settled)
        caller.stages.span.set_attributes(_facts(asked.snapshot, asked.engine))
        if settled.reason is not None and settled.use != "Engine":
            caller.stages.span.set_attribute("blurfleet.withheld", settled.reason.value)
        if settled.use == "Neither":
            assert settled.reason is not None
            raise EngineError(
                settled.reason, f"the matte was withheld: {settled.message}", where=asked.engine.engine, fix="try again"
            )
        standby = asked.snapshot.standby
        replaced = settled.use == "Fallback" and second is not None and standby is not None
        engine = standby if replaced and standby is not None else asked.engine
        caller.stages.span.set_attributes(_facts(asked.snapshot, engine))
        return Answer(
            matte=second[0, 0] if replaced and second is not None else asked.matte[0, 0],
            engine=engine,
            role=asked.snapshot.role(engine),
            route=asked.snapshot.route,
            contract_hash=asked.snapshot.contract_hash,
            simulated=asked.snapshot.simulated,
            ticket=caller.ticket,
            trace_id=caller.stages.trace_id,
            withheld=settled.reason if replaced else None,
            unchecked=settled.reason if settled.use == "Engine" and not asked.snapshot.is_fallback(engine) else None,
            decoded=decoded,
            tensor=tensor,
            stages=caller.stages,
        )

    def _ask(self, caller: Caller, snapshot: Snapshot, tensor: Tensor) -> _Asked:
        """Ask the served engine; if it does not answer, whoever a fresh snapshot names, else the standby, once."""
        try:
            engine = snapshot.route.active
            return self._asked(caller, snapshot, engine, tensor)
        except EngineError as error:
            fresh = self.snapshot()
            other = fresh.route.active if fresh.route.active.engine != engine.engine else fresh.standby
            late = isinstance(error, EngineTimeout)
            if other is None or fresh.contract_hash != snapshot.contract_hash or (late and other is fresh.standby):
                raise
            return self._asked(caller, fresh, other, tensor)

    def _asked(self, caller: Caller, snapshot: Snapshot, engine: RoutedEngine, tensor: Tensor) -> _Asked:
        with caller.stages.timed("infer", _facts(snapshot, engine)) as span:
            matte = self._infer(engine, tensor, forwarded(span.get_span_context()), caller.life)
        return _Asked(snapshot=snapshot, engine=engine, matte=matte)

    def _second_opinion(self, caller: Caller, asked: _Asked, tensor: Tensor) -> Tensor | None:
        """Return the standby's matte on the same tensor, since the first one is in doubt; None without a standby."""
        standby = asked.snapshot.standby
        if standby is None or standby.engine == asked.engine.engine:
            return None
        try:
            with caller.stages.within("triton.infer", _facts(asked.snapshot, standby)) as span:
                return self._infer(standby, tensor, forwarded(span.get_span_context()), caller.life)
        except EngineError:
            return None

    def _infer(self, engine: RoutedEngine, tensor: Tensor, headers: Mapping[str, str], life: RequestLife) -> Tensor:
        try:
            matte = self._engines.infer(
                engine.engine, tensor, timeout_s=self._timeout_s, headers=headers, life=life
            ).matte
            if matte.ndim != 4 or matte.shape[:2] != (1, 1) or min(matte.shape[2:]) < 2:
                raise EngineError(
                    Reason.WRONG_SHAPE, f"answered {list(matte.shape)}, not a matte [1,1,H,W]", where=engine.engine
                )
        except EngineError as error:
            self._metrics.engine_errors.labels(error.reason).inc()
            raise
        return matte

    def _tell(self, caller: Caller, asked: _Asked, tensor: Tensor, second: Tensor | None, settled: Settled) -> None:
        if settled.reason is not None:
            counter = self._metrics.suspect if settled.use == "Engine" else self._metrics.withheld
            counter.labels(settled.reason).inc()
        lone = settled.kind is FrameKind.SUSPECT and asked.snapshot.standby is None
        self._frames.offer(
            FrameSample(
                model=self.alias,
                stream=caller.ticket.stream,
                frame_id=caller.ticket.frame_id,
                epoch=asked.snapshot.route.epoch,
                engine=asked.engine.engine,
                digest=asked.engine.digest,
                at=self._clock(),
                tensor=tensor,
                matte=asked.matte,
                # The fallback alone on stage has nobody to be compared with: its empty scenes are plain frames.
                kind=FrameKind.SAMPLE if lone else settled.kind,
                reason="" if lone or settled.reason is None else settled.reason.value,
                trace_id=caller.stages.trace_id,
                span_id=caller.stages.span_id,
                fallback_matte=second,
                evidence_allowed=caller.evidence_allowed,
            )
        )


def _facts(snapshot: Snapshot, engine: RoutedEngine) -> Attributes:
    """Return what a span says of who answered."""
    return {
        "blurfleet.model": snapshot.route.alias,
        "blurfleet.model_id": snapshot.route.model_id,
        "blurfleet.engine": engine.engine,
        "blurfleet.digest": engine.digest,
        "blurfleet.precision": engine.precision,
        "blurfleet.role": snapshot.role(engine),
        "blurfleet.epoch": snapshot.route.epoch,
        "blurfleet.contract": snapshot.contract_hash,
        "blurfleet.simulated": snapshot.simulated,
    }
