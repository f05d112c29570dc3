"""What a person is shown: phase, printer columns and conditions, derived from the outcome and from what is observed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from blurfleet.api.admission import quarantines_hitting
from blurfleet.api.base import seconds
from blurfleet.api.meta import Condition, ConditionStatus, condition, set_condition
from blurfleet.api.nodeengine import NodeModel
from blurfleet.api.rollout import KnownGood, Phase, RolloutStatus
from blurfleet.reasons import Reason
from blurfleet_operator.decide import attempt, holds, kstatus
from blurfleet_operator.decide.acceptance import quarantine_words
from blurfleet_operator.decide.observation import Finding, NodeView, Observation, Said, instant

_INCONCLUSIVE = (holds.oracle_missing, holds.any_data, holds.enough_samples, holds.live_doubt)
_LONGEST_WAIT_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Shown:
    """All that the display depends on."""

    obs: Observation
    status: RolloutStatus
    standing: holds.Standing
    selected: tuple[NodeView, ...]
    models: Mapping[str, NodeModel]
    refused: Finding | None
    begins: bool
    soak_left: float
    gate_closed: bool
    now: float

    @property
    def deadline_left(self) -> float:
        """Return the seconds until the attempt counts as stalled; a soak is a wait that was asked for."""
        since = instant(self.status.progress_at)
        if since is None:
            return _LONGEST_WAIT_S
        healthy = instant(self.status.wave_healthy_since)
        waves_ = self.obs.rollout.spec.waves
        soaked = healthy + seconds(waves_[self.status.wave_index].soak) if healthy is not None else since
        return max(since, soaked) + seconds(self.obs.rollout.spec.progress_deadline) - self.now


def conditions_for(shown: Shown) -> tuple[RolloutStatus, tuple[Said, ...], float]:
    """Return the finished status, the events of its transitions, and in how many seconds to look again."""
    phase, head = headline(shown)
    generation = shown.obs.rollout.generation
    conditions = _readiness(shown, phase, head)
    for kind, status, reason, message in _facts(shown, phase, head):
        new = Condition(type=kind, status=status, reason=reason, message=message[:2048], observed_generation=generation)
        conditions = set_condition(conditions, new, shown.now)
    known = sorted({k.set for k in _newest(shown.status)})
    done = shown.status.model_copy(
        update={
            "observed_generation": generation,
            "phase": phase,
            "wave": _wave_name(shown),
            "last_known_good": ",".join(known),
            "keeps": attempt.keeps(shown.status, shown.obs.rollout.spec.rollback_window, shown.now),
            "fallback": ",".join(sorted({m.fallback.set for m in shown.models.values() if m.fallback is not None})),
            "conditions": conditions,
        }
    )
    return done, (*_transition(shown, phase, head), *_warned(shown, conditions)), _requeue(shown)


def headline(shown: Shown) -> tuple[Phase, Finding]:
    """Return the phase and the one reason that is shown for it."""
    status = shown.status
    if shown.refused is not None and (shown.begins or not status.outcome):
        return "Stalled", shown.refused
    if status.outcome in ("RolledBack", "Aborted"):
        return _gone_back(shown)
    held = holds.first_hold(shown.standing)
    if status.outcome == "Promoted":
        return "Promoted", held or Finding(
            reason=Reason.PROMOTED, message=f"set {status.set} is served by {status.nodes} nodes"
        )
    empty = not shown.standing.reached and not shown.standing.drained
    if empty and not shown.standing.strangers:
        held = Finding(reason=Reason.NO_NODES_SELECTED, message="the selector and wave match no node")
    if shown.deadline_left <= 0:
        detail = f": {held.message}" if held else ""
        message = f"no progress within {shown.obs.rollout.spec.progress_deadline}{detail}"
        return "Stalled", Finding(reason=Reason.PROGRESS_DEADLINE_EXCEEDED, message=message)
    if held is not None and held.reason is Reason.INSUFFICIENT_SAMPLES:
        # The first frames of a new engine are on their way: the wave is not done, but nothing is wrong.
        message = f"wave {_wave_name(shown)}: {held.message}"
        return "Progressing", Finding(reason=Reason.WAVE_IN_PROGRESS, message=message)
    if held is not None:
        return "Pending" if held.reason is Reason.NO_NODES_SELECTED else "Holding", held
    return _waiting(shown)


def _waiting(shown: Shown) -> tuple[Phase, Finding]:
    wave = _wave_name(shown)
    if shown.standing.waiting:
        names = ", ".join(n.name for n in shown.standing.waiting)
        return "Progressing", Finding(reason=Reason.WAVE_IN_PROGRESS, message=f"wave {wave}: waiting for {names}")
    if shown.soak_left > 0:
        soak = shown.obs.rollout.spec.waves[shown.status.wave_index].soak
        return "Progressing", Finding(reason=Reason.WAITING_FOR_SOAK, message=f"wave {wave} soaks for {soak}")
    if shown.gate_closed:
        message = f"wave {wave} is healthy and waits for a new token in spec.ops.promote"
        return "Holding", Finding(reason=Reason.WAITING_FOR_GATE, message=message)
    return "Progressing", Finding(reason=Reason.WAVE_IN_PROGRESS, message=f"wave {wave} is in progress")


def _gone_back(shown: Shown) -> tuple[Phase, Finding]:
    status = shown.status
    settled = all(_settled(shown, n) for n in shown.selected)
    if status.outcome == "Aborted":
        reason, words = Reason.ABORTED, f"aborted; nodes go back to {_back(shown, shown.selected)}"
        return ("Aborted" if settled else "RollingBack"), Finding(reason=reason, message=words)
    mine = [n for n in shown.selected if n.device_class in status.reverted_classes]
    words = f"{', '.join(status.reverted_classes)} went back to {_back(shown, mine)}"
    return ("RolledBack" if settled else "RollingBack"), Finding(reason=Reason.ROLLED_BACK, message=words)


def _back(shown: Shown, nodes: Iterable[NodeView]) -> str:
    """Return what `nodes` are really told to serve: the known-good set may be gone, and then it is not that."""
    told = [shown.models[n.name].primary for n in nodes if n.name in shown.models]
    engines = sorted({f"{e.set}/{e.precision}" for e in told if e is not None})
    return ", ".join(engines) if engines else "nothing, as no node is told anything"


def _newest(status: RolloutStatus) -> list[KnownGood]:
    seen: dict[str, KnownGood] = {}
    for good in status.known_good:
        seen.setdefault(good.device_class, good)
    return list(seen.values())


def _settled(shown: Shown, node: NodeView) -> bool:
    """Tell whether a node serves the primary it is told to, or cannot be waited for any longer."""
    told = shown.models.get(node.name)
    if told is None or not node.reachable(shown.now):
        return True
    if shown.deadline_left <= 0:
        return True
    if told.candidate is not None:
        return False
    return told.primary is None or node.serving_digest(told.name) == told.primary.digest


def _readiness(shown: Shown, phase: Phase, head: Finding) -> tuple[Condition, ...]:
    """Return the conditions with the three that kstatus reads."""
    held = holds.first_hold(shown.standing)
    promoted = shown.status.outcome == "Promoted"
    ready = promoted and shown.refused is None and held is None and not shown.standing.waiting
    because = head if ready else _why_not(shown, head)
    return kstatus.placed(
        shown.status.conditions,
        kstatus.rollout_state(phase, because.reason, ready=ready, arriving=_arrival_left(shown) > 0),
        because,
        generation=shown.obs.rollout.generation,
        now=shown.now,
        unsure=promoted and held is not None and held.reason is Reason.PARTIAL_FLEET,
    )


def _arrival_left(shown: Shown) -> float:
    reason = shown.refused.reason if shown.refused is not None else Reason.ACCEPTED
    return kstatus.arrival_left(shown.status.conditions, reason, shown.now)


def _references(shown: Shown) -> tuple[str, ConditionStatus, Reason, str]:
    kind, missing = "ReferencesFound", shown.refused
    if missing is not None and missing.reason in kstatus.ARRIVES:
        return kind, "False", missing.reason, missing.message
    return kind, "True", Reason.ACCEPTED, "set, contract and policy exist"


def _facts(shown: Shown, phase: Phase, head: Finding) -> list[tuple[str, ConditionStatus, Reason, str]]:
    promoted = shown.status.outcome == "Promoted"
    because = _why_not(shown, head)
    going: ConditionStatus = "True" if phase in ("Progressing", "RollingBack") else "False"
    return [
        ("Progressing", going, *_of(head)),
        ("Promoted", "True" if promoted and not shown.begins else "False", *_of(head if promoted else because)),
        _references(shown),
        _fallback_ready(shown),
        _reachable(shown),
        _healthy(shown),
        _semantic(shown),
        _conclusive(shown),
    ]


def _of(finding: Finding) -> tuple[Reason, str]:
    return finding.reason, finding.message


def _why_not(shown: Shown, head: Finding) -> Finding:
    """Return why the rollout is not ready: a set that went back and is quarantined says so at every re-apply."""
    spec = shown.obs.rollout.spec
    if shown.refused is not None or shown.status.outcome not in ("RolledBack", "Aborted"):
        if shown.refused is not None:
            return shown.refused
        return (
            head
            if head.reason is not Reason.PROMOTED
            else Finding(reason=Reason.WAVE_IN_PROGRESS, message=f"{shown.status.nodes} nodes serve {shown.status.set}")
        )
    classes = {n.device_class for n in shown.selected}
    held = shown.obs.sets.get(spec.engine_set)
    hits = quarantines_hitting(held, shown.obs.quarantines, classes) if held is not None else []
    if hits:
        return Finding(reason=Reason.QUARANTINED, message=quarantine_words(spec.engine_set, hits))
    return head


def _fallback_ready(shown: Shown) -> tuple[str, ConditionStatus, Reason, str]:
    kind, model = "FallbackReady", shown.obs.rollout.spec.model
    said = [(n.name, n.said(model, kind)) for n in shown.standing.reached if n.reachable(shown.now)]
    for name, found in said:
        if found is not None and found.status == "False":
            return kind, "False", Reason.FALLBACK_NOT_PROVEN, f"{name}: {found.message or found.reason}"
    if said and all(found is not None and found.status == "True" for _, found in said):
        return kind, "True", Reason.GOLDEN_PASSED, f"{len(said)} nodes proved their fallback"
    return kind, "Unknown", Reason.GOLDEN_PENDING, "not every node has proved its fallback yet"


def _reachable(shown: Shown) -> tuple[str, ConditionStatus, Reason, str]:
    kind = "NodesReachable"
    strangers = [n.name for n in shown.obs.nodes if not n.known_class and not shown.obs.rollout.spec.selector.classes]
    if strangers:
        return kind, "False", Reason.UNKNOWN_CLASS, f"{', '.join(strangers)}: unknown device class, left alone"
    lost = [n.name for n in shown.selected if not n.reachable(shown.now)]
    if lost:
        return kind, "Unknown", Reason.PARTIAL_FLEET, f"not heard from {', '.join(lost)}"
    if not shown.selected:
        return kind, "Unknown", Reason.NO_NODES_SELECTED, "the selector matches no node"
    return kind, "True", Reason.SERVING, f"heard from {len(shown.selected)} nodes"


def _healthy(shown: Shown) -> tuple[str, ConditionStatus, Reason, str]:
    """Tell whether no node is suspect, in this attempt or of an earlier one: a node without clients is not healthy."""
    kind, fails = "NodesHealthy", [n.name for n in shown.standing.drained]
    known = frozenset(fails)
    away = [n.name for n in shown.selected if n.name not in known and _sends_away(shown, n)]
    words = []
    if fails:
        words.append(f"drained: {', '.join(fails)}; every FP32 engine fails golden frames there")
    if away:
        words.append(f"still drained: {', '.join(away)}; no standby has passed golden frames there since")
    if words:
        return kind, "False", Reason.NODE_SUSPECT, "; ".join(words)
    return kind, "True", Reason.SERVING, "no node is suspect"


def _sends_away(shown: Shown, node: NodeView) -> bool:
    told = shown.models.get(node.name) or node.wanted(shown.obs.rollout.spec.model)
    return told is not None and told.drained


def _semantic(shown: Shown) -> tuple[str, ConditionStatus, Reason, str]:
    """Tell that a new set means something else than the old one: a warning, which holds nothing."""
    kind, model = "SemanticChange", shown.obs.rollout.spec.model
    said = [(n.name, found) for n in shown.standing.reached if (found := n.said(model, kind)) is not None]
    for name, found in said:
        if found.status == "True":
            return kind, "True", Reason.SEMANTIC_CHANGE, f"{name}: {found.message}"
    if said and all(found.status == "False" for _, found in said):
        return kind, "False", Reason.WITHIN_LIMITS, said[0][1].message
    return kind, "Unknown", Reason.GOLDEN_PENDING, "no node has compared the FP32 engines of the sets yet"


def _conclusive(shown: Shown) -> tuple[str, ConditionStatus, Reason, str]:
    kind = "AnalysisConclusive"
    doubt = holds.first_hold(shown.standing, _INCONCLUSIVE)
    if doubt is not None:
        return kind, "False", doubt.reason, doubt.message
    if shown.status.reverted_classes or shown.standing.tripped:
        return kind, "True", Reason.TRIPPED, "a verdict was reached: the engine fails"
    if shown.standing.reached and not shown.standing.waiting:
        return kind, "True", Reason.WITHIN_LIMITS, "every reached node is within limits"
    return kind, "Unknown", Reason.GOLDEN_PENDING, "not every reached node has a verdict"


def _wave_name(shown: Shown) -> str:
    index = len(shown.obs.rollout.spec.waves) - 1 if shown.status.outcome == "Promoted" else shown.status.wave_index
    return shown.obs.rollout.spec.waves[index].name if shown.status.set else ""


def _transition(shown: Shown, phase: Phase, head: Finding) -> tuple[Said, ...]:
    before = shown.obs.rollout.status
    old = condition(before.conditions, "Progressing")
    if old is not None and (before.phase, old.reason) == (phase, head.reason):
        return ()
    good = phase in ("Progressing", "Promoted", "Pending")
    return (Said(reason=head.reason, message=head.message, type="Normal" if good else "Warning"),)


def _warned(shown: Shown, conditions: tuple[Condition, ...]) -> tuple[Said, ...]:
    before = condition(shown.obs.rollout.status.conditions, "SemanticChange")
    now = condition(conditions, "SemanticChange")
    if now is None or now.status != "True" or (before is not None and before.status == "True"):
        return ()
    return (Said(reason=Reason.SEMANTIC_CHANGE, message=now.message, type="Warning"),)


def _requeue(shown: Shown) -> float:
    waits = [_LONGEST_WAIT_S]
    if not shown.status.outcome and shown.status.set:
        waits += [w for w in (shown.soak_left, shown.deadline_left) if w > 0]
    if shown.refused is not None and shown.refused.reason in kstatus.ARRIVES:
        waits += [w for w in (_arrival_left(shown),) if w > 0]
    return max(0.05, min(waits))
