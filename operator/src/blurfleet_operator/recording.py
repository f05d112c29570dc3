"""What a pass keeps for people to read: verdicts as QualityRuns, and statuses of the kinds that rollouts only read."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from blurfleet.api.kinds import Resource
from blurfleet.api.quarantine import QuarantineSpec
from blurfleet.reasons import Reason
from blurfleet.store.port import Ref
from blurfleet_operator.decide import housekeeping, verdicts
from blurfleet_operator.observe import World
from blurfleet_operator.writer import Writer


def write_verdicts(
    world: World, writer: Writer, limit: int, owed: Mapping[str, Resource], patience: Callable[[], bool]
) -> tuple[dict[str, Resource], bool]:
    """Record what was judged, failures first, and delete what is outdated. Return what is owed, and if more is due."""
    known = {r.key for r in world.of("QualityRun")}
    current = {v.key: v for r in world.rollouts for n in world.nodes for v in verdicts.verdicts(r, n)}
    new = {k: v.run(world.now) for k, v in current.items() if k not in known and k not in owed}
    due = {k: run for k, run in (*owed.items(), *new.items()) if k not in known}
    left = writer.record(sorted(due.values(), key=verdicts.passed), patience)
    outdated = verdicts.outdated(world.of("QualityRun"), frozenset(current), world.now, limit)
    kept = writer.delete_all(outdated, patience)
    return {run.key: run for run in left}, bool(left or kept)


def keep_house(world: World, quarantines: tuple[QuarantineSpec, ...], writer: Writer) -> None:
    """Write the statuses of policies, contracts, sets and quarantines, and end the quarantines that are over."""
    for resource in world.of("QualityPolicy"):
        writer.status(resource, housekeeping.policy_status(resource, world.now))
    for resource in world.of("PreprocessContract"):
        writer.status(resource, housekeeping.contract_status(resource, world.now))
    for resource in world.of("EngineSet"):
        contracts = {
            r.meta.name: r for r in world.of("PreprocessContract") if r.meta.namespace == resource.meta.namespace
        }
        status = housekeeping.set_status(resource, world.nodes, quarantines, contracts, world.now)
        writer.status(resource, status)
    for resource in world.of("EngineQuarantine"):
        assert isinstance(resource.spec, QuarantineSpec)
        if housekeeping.expired(resource.spec, world.now):
            ref, words = Ref(kind=resource.kind, name=resource.meta.name), f"expired at {resource.spec.expiry}"
            writer.say(ref, Reason.QUARANTINE_EXPIRED, words, warning=False, transition=resource.meta.uid)
            writer.delete(resource)
        else:
            writer.status(resource, housekeeping.quarantine_status(resource, world.of("EngineSet"), world.now))
