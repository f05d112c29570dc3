"""Beginning an attempt: what starts one, what it remembers, and which commands were already obeyed."""

from __future__ import annotations

from dataclasses import replace

from blurfleet.api.base import seconds
from blurfleet.api.engineset import content_digest
from blurfleet.api.meta import condition, timestamp
from blurfleet.api.rollout import KnownGood, Ops, RolloutSpec, RolloutStatus
from blurfleet.identity import digest12
from blurfleet_operator.decide.choice import known_good_for, source_of
from blurfleet_operator.decide.observation import NodeView, Observation, instant

_KEPT_PER_CLASS = 5


def is_new(given: str | None, acted: str | None) -> bool:
    """Tell whether a token asks for something: removing a token does nothing."""
    return given is not None and given != acted


def at_first(obs: Observation) -> Observation:
    """Return `obs`; of a rollout that was never looked at with all its tokens obeyed.

    A rollout that is made anew from Git carries the commands that another one obeyed: they were given for that one.
    """
    spec, status = obs.rollout.spec, obs.rollout.status
    if status.set or condition(status.conditions, "Progressing") is not None:
        return obs
    acted = obeyed(status.acted, promote=spec.ops.promote, abort=spec.ops.abort, retry=spec.ops.retry)
    return replace(obs, rollout=replace(obs.rollout, status=status.model_copy(update={"acted": acted})))


def starting(obs: Observation) -> bool:
    """Tell whether the spec asks for an attempt that has not begun: another set, other bytes, or a new retry token."""
    spec, status = obs.rollout.spec, obs.rollout.status
    return status.set != spec.engine_set or replaced(obs, status) or is_new(spec.ops.retry, status.acted.retry)


def replaced(obs: Observation, status: RolloutStatus) -> bool:
    """Tell whether the attempt's set was deleted and its name given to other bytes: they are proven like any others."""
    found = obs.sets.get(status.set)
    return found is not None and status.set_digest not in ("", content_digest(found))


def true_sets(obs: Observation, status: RolloutStatus) -> Observation:
    """Return `obs` without the set that bears the name of the attempt's own and is another: as if that were deleted."""
    if not replaced(obs, status):
        return obs
    return replace(obs, sets={name: spec for name, spec in obs.sets.items() if name != status.set})


def not_begun(status: RolloutStatus, spec: RolloutSpec) -> bool:
    """Tell whether the set that is asked for has no attempt and the one before it is over: nothing is to be undone."""
    return status.set != spec.engine_set and (not status.set or status.outcome == "Promoted")


def gone_back(status: RolloutStatus, classes: tuple[str, ...]) -> bool:
    """Tell whether every class already went back, or was told to: an abort can add nothing to that."""
    if status.outcome == "RolledBack":
        return set(classes) <= set(status.reverted_classes)
    return status.outcome == "Aborted"


def begin(obs: Observation, selected: tuple[NodeView, ...], now: float) -> RolloutStatus:
    """Return the status at the begin of an attempt.

    A retry of the same set keeps the wave it was in, and Promoted stays Promoted: only latches and verdicts are new.
    """
    rollout = obs.rollout
    spec, status = rollout.spec, rollout.status
    anew = replaced(obs, status)
    same = status.set == spec.engine_set and not anew
    found = content_digest(obs.sets[spec.engine_set])
    origin = status.attempt.split("/")[1] if same and status.attempt.count("/") >= 2 else str(rollout.generation)
    if anew:
        # The spec, and with it the generation, is what it was: a latch of the old bytes must not be taken for one now.
        origin = f"{origin}.{digest12(found)}"
    going_on = same and status.outcome in ("", "Promoted")
    stamp = timestamp(now)
    return status.model_copy(
        update={
            "set": spec.engine_set,
            "set_digest": found,
            "attempt": f"{rollout.uid or rollout.name}/{origin}/{spec.ops.retry or ''}",
            "outcome": status.outcome if going_on else "",
            "wave_index": min(status.wave_index, len(spec.waves) - 1) if going_on else 0,
            "wave_started": stamp,
            "wave_healthy_since": "",
            "progress_at": stamp,
            "gate_opened": -1,
            "policy": obs.policies.get(spec.policy_ref, status.policy),
            "policy_name": spec.policy_ref,
            "reverted_classes": (),
            "trips": (),
            "tripped": 0,
            "acted": status.acted.model_copy(update={"retry": spec.ops.retry or status.acted.retry}),
            "known_good": adopted(obs, selected, status.known_good, stamp),
        }
    )


def adopted(
    obs: Observation, selected: tuple[NodeView, ...], known: tuple[KnownGood, ...], stamp: str
) -> tuple[KnownGood, ...]:
    """Return `known` with, for classes it does not cover, the set that other rollouts left on all nodes of the class.

    A node's fallback belongs to the set that was last promoted there, so it tells; the primary may be an experiment.
    What this rollout itself put there was never promoted, else it would be known.
    """
    found = [pinned(obs, k) for k in known]
    model = obs.rollout.spec.model
    for device_class in sorted({n.device_class for n in selected}):
        if known_good_for(known, device_class):
            continue
        entries = [n.wanted(model) for n in selected if n.device_class == device_class]
        left = {e.fallback.set: e.fallback for e in entries if e is not None and e.primary and e.fallback}
        served = all(n.serving_digest(model) for n in selected if n.device_class == device_class)
        foreign = not any(e is not None and is_mine(obs, e.attempt) for e in entries)
        if len(left) == 1 and served and foreign and all(source_of(obs.sets, e) for e in left.values()):
            names = {e.policy_name for e in entries if e is not None}
            policy = next(iter(names)) if len(names) == 1 else ""
            good = KnownGood(device_class=device_class, set=left.popitem()[0], policy_name=policy, at=stamp)
            found.append(pinned(obs, good))
    return tuple(found)


def pinned(obs: Observation, good: KnownGood) -> KnownGood:
    """Return `good` with the digests of its set, where they were not kept yet and the set is there."""
    source = obs.sets.get(good.set)
    if good.set_digest or source is None:
        return good
    engines = tuple(sorted({v.artifact.digest for v in source.variants if v.target.device_class == good.device_class}))
    return good.model_copy(update={"set_digest": content_digest(source), "engines": engines})


def promoted(obs: Observation, status: RolloutStatus, classes: tuple[str, ...], now: float) -> tuple[KnownGood, ...]:
    """Return the known-good sets once the attempt's set is promoted on `classes`: it first, the one before renewed."""
    stamp = timestamp(now)
    kept: list[KnownGood] = [k for k in status.known_good if k.device_class not in classes]
    for device_class in classes:
        known = known_good_for(status.known_good, device_class)
        older = [k for k in known if not k.is_of(status.set, status.set_digest)]
        head = [k.model_copy(update={"at": stamp if k.at else ""}) for k in older[:1]]
        new = KnownGood(device_class=device_class, set=status.set, policy_name=status.policy_name, at=stamp)
        kept += [pinned(obs, new), *head, *older[1 : _KEPT_PER_CLASS - 1]]
    return tuple(kept)


def given_up(status: RolloutStatus, classes: tuple[str, ...]) -> tuple[KnownGood, ...]:
    """Return the known-good sets once the attempt's set is given up on `classes`.

    It goes from the list, unless it is all a class has: then its FP32 is what there is to go back to, and no time is
    kept, so that it is never taken for freshly proven.
    """
    kept = []
    for good in status.known_good:
        mine = good.is_of(status.set, status.set_digest) and good.device_class in classes
        known = known_good_for(status.known_good, good.device_class)
        if mine and any(not k.is_of(status.set, status.set_digest) for k in known):
            continue
        kept.append(good.model_copy(update={"at": ""}) if mine else good)
    return tuple(kept)


def quick_classes(status: RolloutStatus, window: str, now: float) -> frozenset[str]:
    """Return the classes on which the attempt's set was good within the rollback window: no canary is needed there.

    The newest known-good set is good until now; an older one was until it was replaced.
    """
    found = set()
    for device_class in {k.device_class for k in status.known_good}:
        known = known_good_for(status.known_good, device_class)
        for position, good in enumerate(known):
            since = instant(good.at)
            if since is None or not good.is_of(status.set, status.set_digest):
                continue
            if position == 0 or now - since <= seconds(window):
                found.add(device_class)
    return frozenset(found)


def keeps(status: RolloutStatus, window: str, now: float) -> tuple[str, ...]:
    """Return the sets whose objects must stay, sorted: what is served, and what each class would go back to.

    A set that another was promoted over is needed until its rollback window (`window`) is over.
    """
    over = status.outcome in ("RolledBack", "Aborted") and bool(status.known_good)
    found = {status.set} - {""} if not over else set()
    for device_class in {k.device_class for k in status.known_good}:
        newest, *older = known_good_for(status.known_good, device_class)
        found.add(newest.set)
        since = instant(older[0].at) if older else None
        if since is not None and newest.is_of(status.set, status.set_digest) and now - since <= seconds(window):
            found.add(older[0].set)
    return tuple(sorted(found))


def is_mine(obs: Observation, name: str) -> bool:
    """Tell whether the attempt `name` is one of this rollout."""
    return name.startswith(f"{obs.rollout.uid or obs.rollout.name}/")


def obeyed(acted: Ops, **tokens: str | None) -> Ops:
    """Return `acted` with the given tokens noted."""
    return acted.model_copy(update={k: v for k, v in tokens.items() if v is not None})
