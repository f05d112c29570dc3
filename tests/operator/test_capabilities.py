"""An operator asks of a node only what its agent says it can: the rest is left out, or the node keeps what it has."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from simulated_fleet import CAPABLE, MODEL, Fleet, policy_spec, resource

from blurfleet.api.capabilities import Capability, lacking, needed, within
from blurfleet.api.policy import PolicySpec, Rule, Trip
from blurfleet.quality.rules import default_policy

PLAIN = Rule(metric="DEER", source="Live", limit="0.18", trip=Trip(frames=3))
TIMED = Rule(metric="MaxAbsError", source="Live", limit="0.0035", trip=Trip.model_validate({"for": "2m"}))
ROLED = Rule(metric="DEER", source="Golden", limit="0.15", role="Primary")
OLD: tuple[str, ...] = ()


@pytest.mark.parametrize(
    ("rules", "said", "missing"),
    [
        pytest.param((), OLD, (), id="no rule asks nothing"),
        pytest.param((PLAIN,), OLD, (), id="plain rules are judged by every agent"),
        pytest.param((PLAIN, TIMED), OLD, ("TimedTrips",), id="a timed rule asks for timed trips"),
        pytest.param((PLAIN, TIMED), ("TimedTrips",), (), id="an agent that has them is asked"),
        pytest.param((ROLED,), ("TimedTrips",), ("RuleRoles",), id="a role asks for roles"),
        pytest.param((ROLED, TIMED), OLD, ("RuleRoles", "TimedTrips"), id="all that is missing is named"),
        pytest.param((ROLED, TIMED), (*Capability, "Teleport"), (), id="what a newer agent can besides is passed over"),
        pytest.param(default_policy().metrics, CAPABLE, (), id="this version's agent can all the defaults ask"),
    ],
)
def test_what_a_policy_asks_and_an_agent_lacks(
    rules: tuple[Rule, ...], said: tuple[str, ...], missing: tuple[str, ...]
) -> None:
    assert lacking(needed(PolicySpec(metrics=rules)), said) == missing


def test_probation_is_left_out_where_an_agent_cannot_and_kept_where_it_can() -> None:
    policy = policy_spec()
    assert policy.probation.enabled
    assert not within(policy, OLD).probation.enabled
    assert within(policy, OLD).metrics == policy.metrics
    assert within(policy, ("Probation",)) == policy


def test_every_capability_says_since_when_and_what_it_is() -> None:
    assert all(c.since.count(".") == 2 and c.words for c in Capability)


@pytest.fixture
def fleet() -> Fleet:
    fleet = Fleet()
    fleet.set("fp32")
    fleet.promote("fp32")
    fleet.set("mixed", precision="Mixed", net="net2")
    return fleet


def judged_by(fleet: Fleet, *rules: Rule) -> None:
    fleet.store.apply(resource("QualityPolicy", "newer", policy_spec(metrics=rules)))


def agent_of(fleet: Fleet, *names: str, node: str = "orin-1") -> None:
    """Let the agent of `node` say that it can `names` and no more."""
    fleet.script = replace(fleet.script, capabilities={node: names})
    fleet.tick()


def test_a_node_whose_agent_is_too_old_keeps_what_it_has_and_is_named_until_its_agent_is_newer(fleet: Fleet) -> None:
    agent_of(fleet)
    before = fleet.spec("orin-1")
    judged_by(fleet, PLAIN, TIMED, ROLED)
    fleet.change(engine_set="mixed", policy_ref="newer")
    fleet.tick(20)
    status: Any = fleet.status()
    assert (status.phase, fleet.said("Ready")) == ("Holding", ("False", "AgentTooOld"))
    head = next(c for c in status.conditions if c.type == "Ready")
    assert head.message == (
        "orin-1 keeps what it has: its agent of unknown version cannot judge by rules with a role nor judge by rules "
        "with trip.for; that needs 0.1.0 or newer"
    )
    kept = fleet.spec("orin-1")
    assert (kept.primary, kept.candidate, kept.policy) == (before.primary, None, before.policy)
    assert fleet.all_serve() == {
        "a100-0": "mixed/Primary",
        "orin-0": "mixed/Primary",
        "orin-1": "fp32/Primary",
    }
    agent_of(fleet, *CAPABLE)
    fleet.until(lambda: fleet.status().phase == "Promoted")
    assert set(fleet.all_serve().values()) == {"mixed/Primary"}
    assert fleet.spec("orin-1").policy == fleet.status().policy


def test_an_older_agent_is_led_through_a_rollout_that_asks_nothing_new_without_probation(fleet: Fleet) -> None:
    agent_of(fleet)
    fleet.promote("mixed")
    assert set(fleet.all_serve().values()) == {"mixed/Primary"}
    assert not fleet.spec("orin-1").policy.probation.enabled
    assert fleet.spec("orin-0").policy.probation.enabled
    assert fleet.spec("orin-1").name == MODEL


def test_an_agent_that_became_older_than_what_it_serves_by_is_left_alone_and_named(fleet: Fleet) -> None:
    judged_by(fleet, PLAIN, TIMED)
    fleet.promote("mixed", policy_ref="newer")
    fleet.tick(3)
    before = fleet.spec("orin-1")
    agent_of(fleet)
    fleet.tick(5)
    assert fleet.spec("orin-1") == before
    assert set(fleet.all_serve().values()) == {"mixed/Primary"}
    assert (fleet.status().phase, fleet.said("Ready")) == ("Promoted", ("False", "AgentTooOld"))


def test_a_class_goes_back_on_nodes_of_every_version(fleet: Fleet) -> None:
    agent_of(fleet)
    fleet.promote("mixed")
    fleet.ops(abort="now")
    fleet.until(lambda: fleet.status().phase == "Aborted")
    assert set(fleet.all_serve().values()) == {"fp32/Primary"}
