"""Evidence of verdicts on this node: written within a budget, oldest out first; a full disk is reported, not raised."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import structlog

from blurfleet.api.meta import timestamp
from blurfleet.api.nodeengine import EngineRef, NodeModel
from blurfleet.errors import NodeError
from blurfleet.identity import digest12
from blurfleet.quality.evidence import (
    Evidence,
    EvidenceSample,
    FrameArrays,
    evidence_sample,
    figures_text,
    policy_json,
    rules_json,
    write_evidence,
)
from blurfleet.quality.rules import bind, resolve
from blurfleet.quality.state import state_to_json
from blurfleet.reasons import Reason
from blurfleet_agent.exporter import Metrics
from blurfleet_agent.golden import GoldenRun
from blurfleet_agent.settings import AgentSettings
from blurfleet_agent.trips import TripNote
from blurfleet_agent.view import GoldenResult, Role


class EvidenceFiles:
    """Writes one folder per verdict below the node's evidence folder."""

    def __init__(self, settings: AgentSettings, metrics: Metrics, *, clock: Callable[[], float] = time.time) -> None:
        self._settings = settings
        self._metrics = metrics
        self._clock = clock
        self.on_lost: Callable[[str], None] = lambda _message: None
        self._log = structlog.get_logger("blurfleet.evidence")

    def place(self, stage: str, alias: str, digest: str, reason: str, now: float) -> str:
        """Return the folder that the evidence of this verdict goes to."""
        stamp = timestamp(now).replace(":", "").replace("-", "")
        return str(self._settings.evidence_dir / f"{stamp}-{alias}-{stage.lower()}-{digest12(digest)}-{reason}")

    def trip(self, note: TripNote) -> bool:
        """Keep the evidence of a live or shadow trip at `note.trip.evidence`; tell whether it is kept."""
        watch, trip, frames = note.watch, note.trip, note.frames
        if not frames:
            return False
        engines = {"engine": note.engine, "oracle": note.oracle, "fallback": watch.fallback}
        evidence = Evidence(
            stage=trip.stage,
            node=self._settings.node,
            device_class=watch.device_class,
            model=watch.alias,
            engine_set=note.engine.set,
            digest=note.engine.digest,
            attempt=watch.attempt,
            epoch=trip.epoch,
            verdict="Fail",
            reason=Reason(trip.reason),
            message=f"{trip.metric} {trip.value} against {trip.limit} on frame {trip.frame} of {trip.stream}",
            at=trip.at,
            simulated=self._settings.simulated,
            fallback_ready=trip.stage == "Live",
            policy=policy_json(watch.policy),
            state_before=state_to_json(frames[0].before),
            identities={k: f"{e.engine} {e.digest} {e.precision}" for k, e in engines.items() if e is not None}
            | {"policy": watch.policy_name, "trace": note.found.trace},
            times={"decided": note.now, "swap_ms": trip.swap_ms},
            samples=tuple(evidence_sample(f.sample, f.at) for f in frames),
        )
        arrays = {
            i: FrameArrays(candidate=f.matte, oracle=f.oracle, tensor=f.tensor)
            for i, f in enumerate(frames)
            if f.evidence_allowed and self._settings.evidence
        }
        return self._write(Path(trip.evidence), evidence, arrays)

    def golden(self, model: NodeModel, ref: EngineRef, role: Role, run: GoldenRun, result: GoldenResult) -> str:
        """Keep the evidence of a failed golden gate; return its folder, empty where it could not be kept."""
        now = self._clock()  # the result's own time is for the loop's timers
        rules = bind(resolve(model.policy, self._settings.device_class, role), "Golden")
        samples = tuple(
            EvidenceSample(
                stream="golden",
                frame=i,
                at=now,
                valid=m.judgeable,
                trace=run.frames.names[i],
                figures=figures_text(m.figures()),
            )
            for i, m in enumerate(run.measurements)
        )
        evidence = Evidence(
            stage="Golden",
            node=self._settings.node,
            device_class=self._settings.device_class,
            model=model.name,
            engine_set=ref.set,
            digest=ref.digest,
            attempt=model.attempt,
            verdict=result.verdict,
            reason=result.reason,
            message=result.message,
            at=timestamp(now),
            simulated=self._settings.simulated,
            rules=rules_json(rules),
            figures=result.figures,
            identities={"engine": f"{ref.variant} {ref.digest} {ref.precision}", "policy": model.policy_name},
            samples=samples,
        )
        arrays = {
            i: FrameArrays(candidate=run.mattes[i], oracle=run.frames.references[i], tensor=run.frames.tensors[i])
            for i in range(len(samples))
        }
        folder = self.place("Golden", model.name, ref.digest, result.reason, now)
        return folder if self._write(Path(folder), evidence, arrays) else ""

    def _write(self, folder: Path, evidence: Evidence, arrays: Mapping[int, FrameArrays]) -> bool:
        try:
            with contextlib.suppress(FileNotFoundError):
                make_room(self._settings.evidence_dir, self._settings.evidence_budget_bytes)
            write_evidence(folder, evidence, arrays)
        except (NodeError, OSError) as error:
            self._metrics.evidence_lost()
            self._log.error("evidence lost", reason=Reason.EVIDENCE_UNWRITTEN, error=str(error))
            self.on_lost(f"{folder.name}: {error}")
            return False
        self.on_lost("")
        return True


def make_room(folder: Path, budget_bytes: int) -> tuple[str, ...]:
    """Remove the oldest evidence until the folder fits `budget_bytes`; the newest stays. Raises OSError."""
    entries = sorted((p for p in folder.iterdir() if p.is_dir()), key=lambda p: p.name)
    sizes = {p: sum(f.stat().st_size for f in p.rglob("*") if f.is_file()) for p in entries}
    total = sum(sizes.values())
    gone = []
    for path in entries[:-1]:
        if total <= budget_bytes:
            break
        shutil.rmtree(path)
        total -= sizes[path]
        gone.append(path.name)
    return tuple(gone)
