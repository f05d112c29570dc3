"""What agents can do, by name: an operator asks of a node only what its agent says it can.

Agents and operators are never upgraded all at once. An agent reports its list in `status.facts.capabilities`; names
that an operator does not know are passed over. One that reports none can do what every agent could: stage, check, load,
judge golden and live frames by plain rules, swap, and refuse what is quarantined.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from blurfleet.api.policy import PolicySpec


class Capability(StrEnum):
    """Something that not every agent can. The value is what an agent reports."""

    ANALYSIS_CONCLUSIVE = "AnalysisConclusive"
    TIMED_TRIPS = "TimedTrips"
    RULE_ROLES = "RuleRoles"
    PROBATION = "Probation"

    @property
    def since(self) -> str:
        """Return the first release whose agent has it."""
        return _SINCE[self]

    @property
    def words(self) -> str:
        """Return what it is, to stand after "cannot"."""
        return _WORDS[self]


_SINCE = {
    Capability.ANALYSIS_CONCLUSIVE: "0.1.0",
    Capability.TIMED_TRIPS: "0.1.0",
    Capability.RULE_ROLES: "0.1.0",
    Capability.PROBATION: "0.1.0",
}
_WORDS = {
    Capability.ANALYSIS_CONCLUSIVE: "say whether live analysis is conclusive",
    Capability.TIMED_TRIPS: "judge by rules with trip.for",
    Capability.RULE_ROLES: "judge by rules with a role",
    Capability.PROBATION: "re-prove a primary in probation",
}


def needed(policy: PolicySpec | None) -> frozenset[Capability]:
    """Return what an agent must be able to do to judge by `policy`; none of it may be left out."""
    rules = policy.metrics if policy is not None else ()
    found = {Capability.TIMED_TRIPS for r in rules if r.trip.for_ is not None}
    return frozenset(found | {Capability.RULE_ROLES for r in rules if r.role is not None})


def lacking(wanted: Iterable[Capability], said: Iterable[str]) -> tuple[Capability, ...]:
    """Return what of `wanted` an agent that says `said` cannot do, sorted."""
    return tuple(sorted(set(wanted) - set(said)))


def within(policy: PolicySpec, said: Iterable[str]) -> PolicySpec:
    """Return `policy` without what an agent that says `said` cannot do and may safely leave out.

    Without probation a tripped primary stays off until a person retries: the agent is told so instead of guessing.
    """
    if Capability.PROBATION in set(said) or not policy.probation.enabled:
        return policy
    return policy.model_copy(update={"probation": policy.probation.model_copy(update={"enabled": False})})
