"""One QualityRun per verdict that a node reports, and which old ones go."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from blurfleet.api.base import seconds
from blurfleet.api.kinds import Resource
from blurfleet.api.meta import ObjectMeta, timestamp
from blurfleet.api.nodeengine import CandidateStatus, Figure, TripStatus
from blurfleet.api.qualityrun import QualityRunSpec, QualityRunStatus
from blurfleet_operator.decide.failures import failed_in_shadow
from blurfleet_operator.decide.observation import NodeView, RolloutView, instant

HISTORY_LIMIT = 100  # runs of a rollout that are kept, where nothing else is set

_GOLDEN_DONE = ("GoldenPassed", "Shadowing", "Proven")


def verdicts(rollout: RolloutView, node: NodeView, now: float) -> list[Resource]:
    """Return the runs that `node`'s status holds for this rollout's attempts: golden, shadow and live."""
    observed = node.observed(rollout.spec.model)
    if observed is None:
        return []
    owner = rollout.uid or rollout.name
    found = []
    candidate, trip = observed.candidate, observed.last_trip
    if candidate is not None and candidate.attempt.startswith(f"{owner}/"):
        found += [_of_candidate(rollout, node, candidate, s, v, now) for s, v in _stages(candidate)]
    if trip is not None and trip.attempt.startswith(f"{owner}/") and trip.stage != "Golden":
        found.append(_of_trip(rollout, node, trip, now))
    return found


def _stages(candidate: CandidateStatus) -> list[tuple[str, str]]:
    if candidate.phase == "GoldenFailed":
        return [("Golden", "Fail")]
    if failed_in_shadow(candidate):
        return [("Golden", "Pass"), ("Shadow", "Fail")]
    stages = [("Golden", "Pass")] if candidate.phase in _GOLDEN_DONE else []
    if candidate.phase == "Proven" and candidate.samples_required > 0:
        stages.append(("Shadow", "Pass"))
    return stages


def _of_candidate(
    rollout: RolloutView, node: NodeView, candidate: CandidateStatus, stage: str, verdict: str, now: float
) -> Resource:
    last = stage == "Shadow" or candidate.phase in ("GoldenFailed", "GoldenPassed")
    return _run(
        rollout,
        {
            "node": node.name,
            "device_class": node.device_class,
            "engine_set": candidate.set,
            "digest": candidate.digest,
            "attempt": candidate.attempt,
            "stage": stage,
            "verdict": verdict,
            "reason": candidate.reason if last else "GoldenPassed",
            "figures": candidate.figures if last else (),
            "oracle_passed": candidate.oracle_passed if stage == "Golden" else None,
            "samples_valid": candidate.samples_valid if stage == "Shadow" else 0,
            "samples_required": candidate.samples_required if stage == "Shadow" else 0,
            "evidence": candidate.evidence if last else "",
            "at": timestamp(now),
        },
        unique=verdict,
    )


def _of_trip(rollout: RolloutView, node: NodeView, trip: TripStatus, now: float) -> Resource:
    figure = Figure(metric=trip.metric, value=trip.value, limit=trip.limit, verdict="Fail") if trip.metric else None
    return _run(
        rollout,
        {
            "node": node.name,
            "device_class": node.device_class,
            "engine_set": trip.set,
            "digest": trip.digest,
            "attempt": trip.attempt,
            "stage": trip.stage,
            "verdict": "Fail",
            "reason": trip.reason,
            "figures": (figure,) if figure else (),
            "evidence": trip.evidence,
            "at": trip.at or timestamp(now),
        },
        unique=trip.at,
    )


def _run(rollout: RolloutView, fields: dict[str, object], *, unique: str) -> Resource:
    spec = QualityRunSpec.model_validate({"rollout": rollout.name, "model": rollout.spec.model, **fields})
    text = "|".join((rollout.uid, spec.attempt, spec.node, spec.model, spec.stage, spec.digest, unique))
    short = hashlib.sha256(text.encode()).hexdigest()[:10]
    meta = ObjectMeta(name=f"{spec.node}-{spec.stage.lower()}-{short}", namespace=rollout.namespace)
    return Resource(kind="QualityRun", meta=meta, spec=spec, status=QualityRunStatus())


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
