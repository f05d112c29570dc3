"""One QualityRun per verdict that a node reports, and which old ones go."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from blurfleet.api.base import seconds
from blurfleet.api.kinds import Resource
from blurfleet.api.meta import ObjectMeta, timestamp
from blurfleet.api.nodeengine import CandidateStatus, Figure, TripStatus
from blurfleet.api.qualityrun import QualityRunSpec, QualityRunStatus
from blurfleet.store.port import Ref
from blurfleet_operator.decide.failures import failed_in_shadow
from blurfleet_operator.decide.observation import NodeView, RolloutView, instant

HISTORY_LIMIT = 100  # runs of a rollout that are kept, where nothing else is set

_GOLDEN_DONE = ("GoldenPassed", "Shadowing", "Proven")


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A verdict as a node reports it; the same one has the same key whoever sees it, however often."""

    rollout: RolloutView
    node: NodeView
    said: CandidateStatus | TripStatus
    stage: str
    verdict: str

    @cached_property
    def name(self) -> str:
        """Return the name of its QualityRun."""
        said = self.said
        unique = said.at if isinstance(said, TripStatus) else self.verdict
        rollout, node = self.rollout, self.node.name
        text = "|".join((rollout.uid, said.attempt, node, rollout.spec.model, self.stage, said.digest, unique))
        return f"{node}-{self.stage.lower()}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"

    @property
    def key(self) -> str:
        """Return the key of its QualityRun."""
        return str(Ref(kind="QualityRun", name=self.name, namespace=self.rollout.namespace))

    def run(self, now: float) -> Resource:
        """Return its QualityRun, as of `now` where the node does not say when."""
        said = self.said
        fields = {
            "rollout": self.rollout.name,
            "model": self.rollout.spec.model,
            "node": self.node.name,
            "device_class": self.node.device_class,
            "engine_set": said.set,
            "digest": said.digest,
            "attempt": said.attempt,
            "stage": self.stage,
            "verdict": self.verdict,
            **(_of_trip(said, now) if isinstance(said, TripStatus) else _of_candidate(said, self.stage, now)),
        }
        meta = ObjectMeta(name=self.name, namespace=self.rollout.namespace)
        spec = QualityRunSpec.model_validate(fields)
        return Resource(kind="QualityRun", meta=meta, spec=spec, status=QualityRunStatus())


def verdicts(rollout: RolloutView, node: NodeView) -> list[Verdict]:
    """Return what `node`'s status holds for this rollout's attempts: golden, shadow and live."""
    observed = node.observed(rollout.spec.model)
    if observed is None:
        return []
    owner = f"{rollout.uid or rollout.name}/"
    found = []
    candidate, trip = observed.candidate, observed.last_trip
    if candidate is not None and candidate.attempt.startswith(owner):
        for stage, verdict in _stages(candidate):
            found.append(Verdict(rollout=rollout, node=node, said=candidate, stage=stage, verdict=verdict))
    if trip is not None and trip.attempt.startswith(owner) and trip.stage != "Golden":
        found.append(Verdict(rollout=rollout, node=node, said=trip, stage=trip.stage, verdict="Fail"))
    return found


def passed(run: Resource) -> bool:
    """Tell whether a QualityRun says that all is well: it can wait for those that do not."""
    assert isinstance(run.spec, QualityRunSpec)
    return run.spec.verdict == "Pass"


def _stages(candidate: CandidateStatus) -> list[tuple[str, str]]:
    if candidate.phase == "GoldenFailed":
        return [("Golden", "Fail")]
    if failed_in_shadow(candidate):
        return [("Golden", "Pass"), ("Shadow", "Fail")]
    stages = [("Golden", "Pass")] if candidate.phase in _GOLDEN_DONE else []
    if candidate.phase == "Proven" and candidate.samples_required > 0:
        stages.append(("Shadow", "Pass"))
    return stages


def _of_candidate(candidate: CandidateStatus, stage: str, now: float) -> dict[str, object]:
    last = stage == "Shadow" or candidate.phase in ("GoldenFailed", "GoldenPassed")
    return {
        "reason": candidate.reason if last else "GoldenPassed",
        "figures": candidate.figures if last else (),
        "oracle_passed": candidate.oracle_passed if stage == "Golden" else None,
        "samples_valid": candidate.samples_valid if stage == "Shadow" else 0,
        "samples_required": candidate.samples_required if stage == "Shadow" else 0,
        "evidence": candidate.evidence if last else "",
        "at": timestamp(now),
    }


def _of_trip(trip: TripStatus, now: float) -> dict[str, object]:
    figure = Figure(metric=trip.metric, value=trip.value, limit=trip.limit, verdict="Fail") if trip.metric else None
    return {
        "reason": trip.reason,
        "figures": (figure,) if figure else (),
        "evidence": trip.evidence,
        "at": trip.at or timestamp(now),
    }


def outdated(
    runs: Iterable[Resource], current: frozenset[str], now: float, limit: int = HISTORY_LIMIT
) -> list[Resource]:
    """Return the runs to delete: past their TTL, or beyond the newest `limit` of their rollout.

    A verdict that a node still reports (`current`, by key) stays, else it would be written again at once.
    """
    gone: list[Resource] = []
    by_rollout: dict[tuple[str, str], list[tuple[float, Resource]]] = {}
    for run in runs:
        assert isinstance(run.spec, QualityRunSpec)
        at = instant(run.spec.at) or now
        if run.key in current:
            continue
        if now - at > seconds(run.spec.ttl):
            gone.append(run)
        else:
            by_rollout.setdefault((run.meta.namespace or "", run.spec.rollout), []).append((at, run))
    for entries in by_rollout.values():
        newest_first = sorted(entries, key=lambda e: (e[0], e[1].meta.name), reverse=True)
        gone += [run for _, run in newest_first[limit:]]
    return gone
