"""What went wrong where: trips, failed golden frames, and whether a node or a class of nodes goes back."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from blurfleet.api.base import seconds
from blurfleet.api.meta import is_true, timestamp
from blurfleet.api.nodeengine import CandidateStatus
from blurfleet.api.quarantine import QuarantineSpec
from blurfleet.api.rollout import Correlation, TripNote
from blurfleet.reasons import Reason
from blurfleet_operator.decide.observation import NodeView, instant

# A candidate that failed for one of these was judged by its pictures; any other failure is about loading or the node.
JUDGED = frozenset(
    r.value
    for r in (
        Reason.MAX_ABS_ERROR_EXCEEDED,
        Reason.P999_ERROR_EXCEEDED,
        Reason.DEER_EXCEEDED,
        Reason.SSIM_TOO_LOW,
        Reason.LPIPS_EXCEEDED,
        Reason.NON_FINITE_OUTPUT,
        Reason.OUT_OF_RANGE_OUTPUT,
        Reason.COLLAPSED_OUTPUT,
        Reason.TRIPPED,
    )
)
_ENDED = ("Failed", "Refused")
_CAMEL = re.compile(r"^[A-Z][A-Za-z0-9]{0,63}$")
_KEPT_TRIPS = 100
_GOLDEN = "golden frames failed on"


@dataclass(frozen=True, kw_only=True)
class Scene:
    """The nodes of one attempt, and which digests each class was given by its set.

    Nothing of the attempt happened before `since`. Times are seconds since the epoch.
    """

    model: str
    attempt: str
    rollout: str
    set_name: str
    nodes: tuple[NodeView, ...]
    digests: Mapping[str, frozenset[str]]
    now: float
    since: float = 0.0

    def of_class(self, device_class: str) -> list[NodeView]:
        """Return the nodes of a class."""
        return [n for n in self.nodes if n.device_class == device_class]

    def judged(self, node: NodeView) -> CandidateStatus | None:
        """Return the status of the node's candidate where it is of this attempt and set."""
        found = node.observed(self.model)
        candidate = found.candidate if found else None
        if candidate is None or candidate.digest not in self.digests.get(node.device_class, frozenset()):
            return None
        return candidate if candidate.attempt in ("", self.attempt) else None


@dataclass(frozen=True, kw_only=True)
class ClassFailure:
    """A class that goes back: why, and the digest to quarantine (empty: none)."""

    device_class: str
    reason: Reason
    message: str
    digest: str = ""
    cause: str = ""

    def quarantine(self, rollout: str) -> QuarantineSpec:
        """Return the tombstone."""
        cause = self.cause if _CAMEL.match(self.cause) else self.reason.value
        return QuarantineSpec(
            digest=self.digest,
            reason=cause,
            device_class=self.device_class,
            by=_author(rollout),
            note=self.message[:2048],
        )


def _author(rollout: str) -> str:
    return f"EngineRollout/{rollout}"[:253]


def failed_in_shadow(candidate: CandidateStatus) -> bool:
    """Tell whether live frames refused the candidate; staging, loading and memory faults are not that."""
    return candidate.phase in _ENDED and candidate.reason in JUDGED


def note_trips(scene: Scene, known: Iterable[TripNote]) -> tuple[TripNote, ...]:
    """Return the trips of this attempt, one per node (its latest), with what the nodes report now merged in."""
    notes = {t.node: t for t in known if t.attempt == scene.attempt}
    for node in scene.nodes:
        found = _trip(scene, node)
        before = notes.get(node.name)
        if found is None or (before is not None and found.reported in ("", before.reported or before.at)):
            continue
        notes[node.name] = found
    return tuple(sorted(notes.values(), key=lambda t: (t.at, t.node)))[-_KEPT_TRIPS:]


def _trip(scene: Scene, node: NodeView) -> TripNote | None:
    observed = node.observed(scene.model)
    trip = observed.last_trip if observed else None
    mine = scene.digests.get(node.device_class, frozenset())
    if trip is not None and trip.digest in mine and trip.attempt == scene.attempt and trip.stage != "Golden":
        digest, reason, reported = trip.digest, trip.reason, trip.at
    else:
        candidate = scene.judged(node)
        if candidate is None or not failed_in_shadow(candidate):
            return None
        digest, reason, reported = candidate.digest, candidate.reason, ""
    return TripNote(
        node=node.name,
        device_class=node.device_class,
        digest=digest,
        attempt=scene.attempt,
        reason=reason,
        at=timestamp(_happened(scene, node, reported)),
        reported=reported,
    )


def _happened(scene: Scene, node: NodeView, reported: str) -> float:
    """Return when by this clock a node's trip happened: put right where the node's clock is known to be wrong.

    A time that cannot be, in the future or before the attempt, says nothing: then it is the time it was learnt.
    """
    at = instant(reported)
    right = at + node.behind if at is not None else scene.now
    return right if scene.since <= right <= scene.now else scene.now


def tripped_nodes(scene: Scene, notes: Iterable[TripNote]) -> tuple[str, ...]:
    """Return the nodes still off the engine they tripped on; one whose engine was re-proven is not among them."""
    names = []
    for note in notes:
        node = next((n for n in scene.nodes if n.name == note.node), None)
        if node is None:
            continue
        if not node.stands_on(scene.model, note.digest):
            names.append(note.node)
    return tuple(sorted(names))


def correlated(scene: Scene, notes: Iterable[TripNote], rule: Correlation, device_class: str) -> ClassFailure | None:
    """Return the class's failure once min(k, nodes of the class running the digest) tripped within the window."""
    mine = [t for t in notes if t.device_class == device_class]
    drained = {n.name for n in suspects(scene)}
    for digest in sorted({t.digest for t in mine}):
        trips = [t for t in mine if t.digest == digest]
        newest = max(instant(t.at) or scene.now for t in trips)
        near = {t.node: t for t in trips if newest - (instant(t.at) or scene.now) <= seconds(rule.window)}
        # A drained node tests nothing any more: waiting for its trip would keep the others on a bad engine.
        running = {n.name for n in scene.of_class(device_class) if _runs(scene, n, digest)} - drained | set(near)
        needed = min(rule.nodes, len(running))
        if len(near) >= needed:
            names = ", ".join(sorted(near))
            message = (
                f"{len(near)} of {len(running)} {device_class} nodes running {digest} tripped within {rule.window} "
                f"({names}): {trips[-1].reason}"
            )
            return ClassFailure(
                device_class=device_class,
                reason=Reason.CLASS_REVERTED,
                message=message,
                digest=digest,
                cause=trips[-1].reason,
            )
    return None


def _runs(scene: Scene, node: NodeView, digest: str) -> bool:
    # Heard from or not: in a partition the few that are reached must not speak for the class. Each swaps by itself.
    wanted = node.wanted(scene.model)
    given = {e.digest for e in (wanted.primary, wanted.candidate) if e is not None} if wanted else set()
    return digest in given


def golden_failure(scene: Scene, device_class: str) -> ClassFailure | None:
    """Return the class's failure where a candidate failed golden frames that prove the engine, not the node, is bad.

    The oracle passing the same frames blames this precision: quarantined. The oracle failing as well, while the
    known-good set's FP32 passes its own frames on that node, blames weights or export: back to known-good.
    """
    for node in scene.of_class(device_class):
        candidate = scene.judged(node)
        if candidate is None or candidate.phase != "GoldenFailed":
            continue
        if candidate.oracle_passed:
            message = f"{_GOLDEN} {node.name}, whose oracle passes: {_words(candidate)}"
            return ClassFailure(
                device_class=device_class,
                reason=Reason.GOLDEN_FAILED,
                message=message,
                digest=candidate.digest,
                cause=candidate.reason,
            )
        if candidate.oracle_passed is False and _healthy_elsewhere(scene, node):
            message = (
                f"{_GOLDEN} {node.name} for the engine and for its set's FP32, while the known-good "
                f"FP32 passes there: weights or export of {scene.set_name} are bad"
            )
            return ClassFailure(device_class=device_class, reason=Reason.GOLDEN_FAILED, message=message)
    return None


def suspects(scene: Scene) -> tuple[NodeView, ...]:
    """Return the nodes on which every FP32 engine fails golden frames: the device is at fault, and no engine is blamed.

    Where the known-good set's FP32 passes on the node it is the new set that is bad, which `golden_failure` sees.
    """
    found = []
    for node in scene.nodes:
        candidate = scene.judged(node)
        failed = candidate is not None and candidate.phase == "GoldenFailed" and candidate.oracle_passed is False
        if failed and not _healthy_elsewhere(scene, node):
            found.append(node)
    return tuple(found)


def _healthy_elsewhere(scene: Scene, node: NodeView) -> bool:
    wanted = node.wanted(scene.model)
    fallback = wanted.fallback if wanted else None
    said = node.said(scene.model, "FallbackReady")
    return fallback is not None and fallback.set != scene.set_name and said is not None and is_true((said,), said.type)


def _words(candidate: CandidateStatus) -> str:
    worst = next((f for f in candidate.figures if f.verdict == "Fail"), None)
    figure = f" ({worst.metric} {worst.value}, limit {worst.limit})" if worst else ""
    return f"{candidate.reason}{figure}"


def quarantined_since(
    quarantines: Iterable[QuarantineSpec], device_class: str, given: frozenset[str], rollout: str
) -> ClassFailure | None:
    """Return the class's failure where somebody quarantined what the running attempt of `rollout` gives it.

    A tombstone of the rollout itself is what is left of a pass that died: the failure is then the one it was made for,
    in the same words, though nodes may show no more of it.
    """
    for q in quarantines:
        if q.digest in given and q.device_class in (None, device_class):
            if q.by == _author(rollout) and q.note:
                reason = Reason.GOLDEN_FAILED if q.note.startswith(_GOLDEN) else Reason.CLASS_REVERTED
                return ClassFailure(device_class=device_class, reason=reason, message=q.note)
            message = f"{q.digest} was quarantined on {q.device_class or 'every class'}: {q.reason}"
            return ClassFailure(device_class=device_class, reason=Reason.QUARANTINED, message=message)
    return None


def class_failures(
    scene: Scene,
    notes: tuple[TripNote, ...],
    rule: Correlation,
    quarantines: tuple[QuarantineSpec, ...],
    already: Iterable[str],
) -> list[ClassFailure]:
    """Return the classes that go back now, each for the first of: quarantine, correlated trips, golden frames."""
    found = []
    for device_class in sorted({n.device_class for n in scene.nodes} - set(already)):
        given = scene.digests.get(device_class, frozenset())
        failure = (
            quarantined_since(quarantines, device_class, given, scene.rollout)
            or correlated(scene, notes, rule, device_class)
            or golden_failure(scene, device_class)
        )
        if failure is not None:
            found.append(failure)
    return found
