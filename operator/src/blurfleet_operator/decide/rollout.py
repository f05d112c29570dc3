"""The decision about one rollout: observe, in this order, what it may do, what went wrong, what holds, what comes next.

    acceptance -> begin (set, retry) -> abort -> failures (class goes back) -> holds -> wave -> node plans -> conditions

Trips and failed golden frames are looked at in every phase: no refused spec, manual gate or pause mutes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from blurfleet.api.base import seconds
from blurfleet.api.capabilities import needed
from blurfleet.api.engineset import content_digest
from blurfleet.api.meta import timestamp
from blurfleet.api.nodeengine import NodeModel
from blurfleet.api.quarantine import QuarantineSpec
from blurfleet.api.rollout import RolloutStatus
from blurfleet.reasons import Reason
from blurfleet_operator.decide import attempt, choice, failures, holds, nodeplan, waves
from blurfleet_operator.decide.acceptance import Asked, refusal
from blurfleet_operator.decide.conditions import Shown, conditions_for
from blurfleet_operator.decide.observation import Decision, Finding, NodeView, Observation, Said, instant


@dataclass(frozen=True, kw_only=True)
class Step:
    """The attempt half-way through a decision."""

    obs: Observation
    now: float
    selected: tuple[NodeView, ...]
    status: RolloutStatus
    refused: Finding | None = None
    begins: bool = False
    events: tuple[Said, ...] = ()
    quarantines: tuple[QuarantineSpec, ...] = ()

    @cached_property
    def fit(self) -> tuple[NodeView, ...]:
        """Return the selected nodes without the drained ones: those that waves are made of."""
        return tuple(n for n in self.selected if n.name not in self.drained)

    @cached_property
    def drained(self) -> frozenset[str]:
        """Return the names of the drained nodes."""
        return frozenset(self.status.drained)

    @cached_property
    def reached(self) -> tuple[NodeView, ...]:
        """Return the nodes the attempt has come to."""
        spec = self.obs.rollout.spec
        index = len(spec.waves) - 1 if self.status.outcome == "Promoted" else self.status.wave_index
        names = frozenset(waves.reached(spec.waves, index, self.fit))
        return tuple(n for n in self.selected if n.name in names)

    @property
    def strangers(self) -> tuple[str, ...]:
        """Return the names in the waves reached so far that are no selected nodes; of no matter once it is over."""
        waves_ = self.obs.rollout.spec.waves
        return () if self.status.outcome else waves.strangers(waves_, self.status.wave_index, self.selected)

    @property
    def unreadable(self) -> tuple[str, ...]:
        """Return the unreadable nodes that may be selected: of what they are only the name is known."""
        names = self.obs.rollout.spec.selector.nodes
        return tuple(n for n in self.obs.unreadable if not names or n in names)

    def scene(self) -> failures.Scene:
        """Return the attempt's nodes and digests."""
        return failures.Scene(
            model=self.obs.rollout.spec.model,
            attempt=self.status.attempt,
            rollout=f"{self.obs.rollout.namespace}/{self.obs.rollout.name}",
            set_name=self.status.set,
            nodes=self.selected,
            digests=_digests(self),
            now=self.now,
            since=instant(self.obs.rollout.created) or 0.0,
        )

    def standing(self) -> holds.Standing:
        """Return where the reached nodes stand."""
        scene = self.scene()
        wanted: dict[str, str] = {}
        of_kind: dict[object, str] = {}
        for node in self.reached:
            kind = choice.kind_of(node)
            if kind not in of_kind:
                bad = choice.quarantined_digests(self.obs.quarantines, node.device_class)
                engine = choice.best(self.obs.sets, self.status.set, node, bad)
                of_kind[kind] = engine.digest if engine else ""
            wanted[node.name] = of_kind[kind]
        return holds.Standing(
            scene=scene,
            reached=self.reached,
            wanted=wanted,
            tripped=failures.tripped_nodes(scene, self.status.trips),
            paused=self.obs.rollout.spec.paused,
            drained=tuple(n for n in self.selected if n.name in self.drained),
            known_good=attempt.quick_classes(self.status, self.obs.rollout.spec.rollback_window, self.now),
            strangers=self.strangers,
            unreadable=self.unreadable,
            needed=needed(self.status.policy),
        )


def decide(obs: Observation, now: float) -> Decision:
    """Return what to write about one rollout. `now` is in seconds since the epoch."""
    selected = tuple(n for n in obs.nodes if n.known_class and choice.selects(obs.rollout.spec.selector, n))
    obs = attempt.at_first(obs)
    status = obs.rollout.status
    last = len(obs.rollout.spec.waves) - 1
    status = status.model_copy(update={"wave_index": min(status.wave_index, last)})
    step = _accept(Step(obs=obs, now=now, selected=selected, status=status))
    step = replace(step, obs=attempt.true_sets(step.obs, step.status))
    if step.refused is not None and step.refused.reason is Reason.MODEL_OWNED:
        return _shown(_owned(step), {})
    step = _abort(step)
    step = _fail(step)
    step = _advance(step)
    return _shown(step, _plans(step))


def _digests(step: Step) -> Mapping[str, frozenset[str]]:
    """Return the digests of the attempt's set per class; where the set was deleted, what nodes were given of it."""
    status, obs = step.status, step.obs
    found: dict[str, frozenset[str]] = {}
    for variant in obs.sets[status.set].variants if status.set in obs.sets else ():
        device_class = variant.target.device_class
        found[device_class] = found.get(device_class, frozenset()) | {variant.artifact.digest}
    for node in step.selected if status.set not in obs.sets else ():
        told = node.wanted(obs.rollout.spec.model)
        given = {e.digest for e in (told.primary, told.candidate) if e and e.set == status.set} if told else set()
        found[node.device_class] = found.get(node.device_class, frozenset()) | given
    return found


def _with(step: Step, *, say: Said | None = None, **changes: object) -> Step:
    """Return the step with fields of its status changed and one more event."""
    events = step.events if say is None else (*step.events, say)
    return replace(step, status=step.status.model_copy(update=changes), events=events)


def _accept(step: Step) -> Step:
    obs, status = step.obs, step.status
    begins = attempt.starting(obs)
    found = refusal(Asked(obs=obs, selected=step.selected, starting=begins, now=step.now))
    if found is not None:
        return replace(step, refused=found, begins=begins)
    if begins:
        fresh = attempt.begin(obs, step.selected, step.now)
        same = status.set == obs.rollout.spec.engine_set and not attempt.replaced(obs, status)
        reason = Reason.RETRYING if same else Reason.ACCEPTED
        words = Said(reason=reason, message=f"attempt {fresh.attempt} with set {fresh.set}")
        return _with(replace(step, status=fresh), say=words)
    known = attempt.adopted(obs, step.selected, status.known_good, timestamp(step.now))
    if not status.set_digest:
        step = _with(step, set_digest=content_digest(obs.sets[status.set]))
    name = obs.rollout.spec.policy_ref
    if status.policy_name != name:
        step = _with(step, policy=obs.policies[name], policy_name=name)
    return _with(step, known_good=known)


def _abort(step: Step) -> Step:
    token = step.obs.rollout.spec.ops.abort
    if not attempt.is_new(token, step.status.acted.abort):
        return step
    step = _with(step, acted=attempt.obeyed(step.status.acted, abort=token))
    classes = tuple(sorted({n.device_class for n in step.selected}))
    if attempt.gone_back(step.status, classes):
        return step
    if attempt.not_begun(step.status, step.obs.rollout.spec):
        words = f"abort {token}: set {step.obs.rollout.spec.engine_set} has not begun, so that nothing goes back"
        return _with(step, say=Said(reason=Reason.ABORTED, message=words))
    return _with(
        step,
        outcome="Aborted",
        progress_at=timestamp(step.now),
        known_good=attempt.given_up(step.status, classes),
        say=Said(reason=Reason.ABORTED, message=f"abort {token}: back to the known-good set", type="Warning"),
    )


def _owned(step: Step) -> Step:
    """Obey commands while another rollout has the nodes: they must not come into force when it goes."""
    step = _abort(step)
    return _with(step, acted=attempt.obeyed(step.status.acted, promote=step.obs.rollout.spec.ops.promote))


def _fail(step: Step) -> Step:
    scene = step.scene()
    trips = failures.note_trips(scene, step.status.trips)
    for note in trips:
        if note not in step.status.trips:
            words = f"{note.node} tripped on {note.digest}: {note.reason}"
            step = _with(step, say=Said(reason=Reason.TRIPPED, message=words, type="Warning"))
    step = _with(step, trips=trips)
    step = _drain(step, scene)
    rule = step.obs.rollout.spec.correlation
    already = step.status.reverted_classes
    for failure in failures.class_failures(scene, trips, rule, step.obs.quarantines, already):
        step = _revert(step, failure, scene.rollout)
    return step


def _drain(step: Step, scene: failures.Scene) -> Step:
    """Take suspect nodes out of the waves; one that passes again, or in a new attempt, comes back by itself."""
    names = tuple(sorted(n.name for n in failures.suspects(scene)))
    before = step.drained
    for name in names:
        if name not in before:
            words = f"{name} is drained: engine and oracle both fail golden frames there; no engine is blamed"
            step = _with(step, say=Said(reason=Reason.NODE_SUSPECT, message=words, type="Warning"))
    return _with(step, drained=names)


def _revert(step: Step, failure: failures.ClassFailure, rollout: str) -> Step:
    status = step.status
    known = attempt.given_up(status, (failure.device_class,))
    fresh = (failure.quarantine(rollout),) if failure.digest else ()
    obs = replace(step.obs, quarantines=(*step.obs.quarantines, *fresh))
    return _with(
        replace(step, obs=obs, quarantines=(*step.quarantines, *fresh)),
        outcome=status.outcome if status.outcome == "Aborted" else "RolledBack",
        reverted_classes=tuple(sorted({*status.reverted_classes, failure.device_class})),
        known_good=known,
        progress_at=timestamp(step.now),
        say=Said(
            reason=failure.reason,
            message=f"{failure.device_class}: {failure.message}",
            type="Warning",
            reverted=failure.device_class,
        ),
    )


def _advance(step: Step) -> Step:
    """Move to the next wave, or to Promoted, when every reached node serves and nothing holds."""
    spec, status = step.obs.rollout.spec, step.status
    token = spec.ops.promote
    if attempt.is_new(token, status.acted.promote):
        step = _with(step, gate_opened=status.wave_index, acted=attempt.obeyed(status.acted, promote=token))
    standing = step.standing()
    step = _progress(step, standing)
    if step.refused is not None or step.status.outcome or not step.status.set:
        return step
    if standing.waiting or not standing.reached or holds.first_hold(standing) is not None:
        return _with(step, wave_healthy_since="")
    if not step.status.wave_healthy_since:
        step = _with(step, wave_healthy_since=timestamp(step.now))
    if soak_left(step) > 0 or gate_closed(step):
        return step
    return _next_wave(step)


def _progress(step: Step, standing: holds.Standing) -> Step:
    """Note when more nodes serve than before: the deadline counts from there."""
    serving = sum(standing.serves(n) for n in standing.reached)
    before = int(step.status.nodes.split("/")[0])
    total = len(waves.covered(step.obs.rollout.spec.waves, step.fit))
    moved = timestamp(step.now) if serving > before else step.status.progress_at
    return _with(step, nodes=f"{serving}/{total}", tripped=len(standing.tripped), progress_at=moved)


def soak_left(step: Step) -> float:
    """Return the seconds the wave still has to stay healthy; 0 once `ops.promote` opened it."""
    since = instant(step.status.wave_healthy_since)
    if step.status.gate_opened == step.status.wave_index:
        return 0.0
    soak = seconds(step.obs.rollout.spec.waves[step.status.wave_index].soak)
    return soak if since is None else max(0.0, since + soak - step.now)


def gate_closed(step: Step) -> bool:
    """Tell whether the wave waits for a person."""
    wave = step.obs.rollout.spec.waves[step.status.wave_index]
    return wave.gate == "Manual" and step.status.gate_opened != step.status.wave_index


def _next_wave(step: Step) -> Step:
    spec, index = step.obs.rollout.spec, step.status.wave_index
    stamp = timestamp(step.now)
    if index + 1 < len(spec.waves):
        words = f"wave {spec.waves[index].name} is done; {spec.waves[index + 1].name} begins"
        return _with(
            step,
            wave_index=index + 1,
            wave_started=stamp,
            wave_healthy_since="",
            progress_at=stamp,
            say=Said(reason=Reason.WAVE_IN_PROGRESS, message=words),
        )
    classes = tuple(sorted({n.device_class for n in step.reached}))
    words = f"set {step.status.set} is served by all {len(step.reached)} nodes"
    return _with(
        step,
        outcome="Promoted",
        progress_at=stamp,
        known_good=attempt.promoted(step.obs, step.status, classes, step.now),
        say=Said(reason=Reason.PROMOTED, message=words),
    )


def _plans(step: Step) -> dict[str, NodeModel]:
    if not step.status.set:
        return {}
    standing = step.standing()
    stopped = holds.first_hold(standing, holds.STOPS) is not None or step.refused is not None
    plan = nodeplan.Plan(
        obs=step.obs,
        status=step.status,
        reached=frozenset(n.name for n in step.reached),
        tripped=frozenset(standing.tripped),
        may_assign=not stopped,
        may_promote=not stopped,
        quick=attempt.quick_classes(step.status, step.obs.rollout.spec.rollback_window, step.now),
        now=step.now,
    )
    found = {n.name: nodeplan.plan_node(plan, n) for n in step.selected}
    left = [n for n in step.obs.nodes if n.known_class and n.name not in found]
    found |= {n.name: nodeplan.released(plan, n) for n in left}
    return {name: entry for name, entry in found.items() if entry is not None}


def _shown(step: Step, models: Mapping[str, NodeModel]) -> Decision:
    shown = Shown(
        obs=step.obs,
        status=step.status,
        standing=step.standing(),
        selected=step.selected,
        models=models,
        refused=step.refused,
        begins=step.begins,
        soak_left=soak_left(step) if step.status.set else 0.0,
        gate_closed=bool(step.status.set) and gate_closed(step),
        now=step.now,
    )
    status, said, requeue = conditions_for(shown)
    # A transition that was already said with its own words is not said again.
    told = {e.reason for e in step.events}
    events = (*step.events, *(e for e in said if e.reason not in told))
    return Decision(status=status, models=models, quarantines=step.quarantines, events=events, requeue_after=requeue)
