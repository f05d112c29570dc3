"""Why an attempt does not go on: each reason by a sentence, and which of two is shown."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from simulated_fleet import FACTS, NOW, digest, set_spec

from blurfleet.api.capabilities import Capability
from blurfleet.api.meta import Condition, timestamp
from blurfleet.api.nodeengine import (
    CandidateStatus,
    ModelStatus,
    NodeEngineSpec,
    NodeEngineStatus,
    NodeModel,
    Serving,
)
from blurfleet.reasons import Reason
from blurfleet_operator.decide.choice import engine_ref
from blurfleet_operator.decide.failures import Scene
from blurfleet_operator.decide.holds import CHAIN, Standing, first_hold
from blurfleet_operator.decide.observation import NodeView

WANT = digest("mixed-a100")
ENGINE = next(
    engine_ref("mixed", v) for v in set_spec("mixed", precision="Mixed").variants if v.artifact.digest == WANT
)
MODEL = NodeModel(name="bokeh", attempt="u/1/", candidate=ENGINE)


def node(
    *,
    age: float = 0.0,
    conditions: dict[str, str] | None = None,
    serves: bool = False,
    capable: bool = False,
    **candidate: Any,
) -> NodeView:
    said = tuple(
        Condition(type=kind, status=status, reason=Reason.NO_DATA) for kind, status in (conditions or {}).items()
    )
    base = {"digest": WANT, "attempt": "u/1/", "phase": "Golden", "reason": "GoldenPending"}
    serving = Serving(digest=WANT, engine="e", role="Primary", precision="Mixed", epoch=2) if serves else None
    status = ModelStatus(
        name="bokeh", candidate=CandidateStatus.model_validate({**base, **candidate}), conditions=said, serving=serving
    )
    facts = FACTS.model_copy(update={"capabilities": (Capability.ANALYSIS_CONCLUSIVE,) if capable else ()})
    return NodeView(
        name="a100-0",
        spec=NodeEngineSpec(device_class="a100", models=(MODEL,)),
        status=NodeEngineStatus(heartbeat=timestamp(NOW - age), facts=facts, models=(status,)),
    )


def standing(
    view: NodeView,
    *,
    tripped: tuple[str, ...] = (),
    paused: bool = False,
    drained: tuple[NodeView, ...] = (),
    known_good: frozenset[str] = frozenset(),
    needed: frozenset[Capability] = frozenset(),
    strangers: tuple[str, ...] = (),
    unreadable: tuple[str, ...] = (),
) -> Standing:
    scene = Scene(
        model="bokeh",
        attempt="u/1/",
        rollout="default/bokeh",
        set_name="mixed",
        nodes=(view,),
        digests={"a100": frozenset({WANT})},
        now=NOW,
    )
    reached = () if view in drained else (view,)
    return Standing(
        scene=scene,
        reached=reached,
        wanted={"a100-0": WANT},
        tripped=tripped,
        paused=paused,
        drained=drained,
        known_good=known_good,
        needed=needed,
        strangers=strangers,
        unreadable=unreadable,
    )


FAILED = {"phase": "GoldenFailed", "reason": "MaxAbsErrorExceeded"}
SAME_CLASS = replace(node(), name="a100-1")
OTHER_CLASS = replace(node(), name="orin-0", spec=NodeEngineSpec(device_class="jetson-orin"))
ROLES, ANALYSIS = frozenset({Capability.RULE_ROLES}), frozenset({Capability.ANALYSIS_CONCLUSIVE})
SHADOW = {"phase": "Shadowing", "reason": "Shadowing", "samples_required": 20}

TABLE: list[Any] = [
    pytest.param({}, {}, None, id="golden frames are running"),
    pytest.param({"serves": True}, {}, None, id="the node serves it"),
    pytest.param({}, {"tripped": ("a100-0",)}, Reason.HOLD_TRIPPED, id="a node tripped"),
    pytest.param(
        {}, {"drained": (OTHER_CLASS,)}, Reason.HOLD_NODE_SUSPECT, id="a drained node has no healthy one of its class"
    ),
    pytest.param({}, {"drained": (SAME_CLASS,)}, None, id="a drained node has a healthy one of its class beside it"),
    pytest.param({"serves": True}, {"strangers": ("a100-7",)}, Reason.UNKNOWN_NODE, id="the wave names no such node"),
    pytest.param(FAILED, {}, Reason.ORACLE_UNAVAILABLE, id="the engine fails and the oracle did not run"),
    pytest.param({"phase": "Failed", "reason": "LoadFailed"}, {}, Reason.BLOCKED_BY_FAILED_LOAD, id="it does not load"),
    pytest.param(
        {"phase": "Refused", "reason": "InsufficientMemory"}, {}, Reason.BLOCKED_BY_FAILED_LOAD, id="it does not fit"
    ),
    pytest.param(
        {"phase": "Refused", "reason": "ContractChanged"}, {}, Reason.CONTRACT_CHANGED, id="pictures fail, tensors pass"
    ),
    pytest.param({"age": 90.0}, {}, None, id="a heartbeat of 90 s is heard"),
    pytest.param({"age": 90.1}, {}, Reason.PARTIAL_FLEET, id="an older heartbeat is not"),
    pytest.param({"conditions": {"SwapProven": "False"}}, {}, Reason.SWAP_NOT_PROVEN, id="the node cannot swap"),
    pytest.param(
        {"conditions": {"FallbackReady": "False"}}, {}, Reason.FALLBACK_NOT_PROVEN, id="the fallback is rotten"
    ),
    pytest.param({}, {"paused": True}, Reason.PAUSED, id="a person paused it"),
    pytest.param(SHADOW, {}, Reason.HOLD_NO_DATA, id="no live sample yet"),
    pytest.param({**SHADOW, "samples_valid": 19}, {}, Reason.HOLD_INSUFFICIENT_SAMPLES, id="one sample too few"),
    pytest.param({**SHADOW, "samples_valid": 20}, {}, None, id="enough samples"),
    pytest.param(
        {**SHADOW, "phase": "Proven", "samples_valid": 19},
        {},
        Reason.HOLD_INSUFFICIENT_SAMPLES,
        id="proof claimed on too few samples is none",
    ),
    pytest.param(
        {"conditions": {"AnalysisConclusive": "Unknown"}, "serves": True},
        {},
        Reason.NO_DATA,
        id="live analysis is in doubt",
    ),
    pytest.param(
        {"conditions": {"AnalysisConclusive": "Unknown"}},
        {},
        None,
        id="live analysis of the engine before it does not hold the new one",
    ),
    pytest.param(
        {"serves": True, "conditions": {"AnalysisConclusive": "False"}},
        {"known_good": frozenset({"a100"})},
        None,
        id="cameras are off on a class where the set is known good",
    ),
    pytest.param(
        {"serves": True, "conditions": {"AnalysisConclusive": "False"}},
        {"known_good": frozenset({"jetson-orin"})},
        Reason.NO_DATA,
        id="known good on another class says nothing",
    ),
    pytest.param({"serves": True, "capable": True}, {}, Reason.NO_DATA, id="an agent that can say it does not"),
    pytest.param(
        {"serves": True, "capable": True, "conditions": {"AnalysisConclusive": "True"}}, {}, None, id="it is conclusive"
    ),
    pytest.param({}, {"needed": ROLES}, Reason.AGENT_TOO_OLD, id="the agent cannot do what the policy asks"),
    pytest.param({"capable": True}, {"needed": ANALYSIS}, None, id="the agent can do what is asked"),
    pytest.param({"age": 91.0}, {"needed": ROLES}, Reason.PARTIAL_FLEET, id="what a silent agent can do is not asked"),
    # Order.
    pytest.param(
        {"conditions": {"SwapProven": "False"}},
        {"needed": ROLES},
        Reason.AGENT_TOO_OLD,
        id="an agent that is too old before what it says",
    ),
    pytest.param(
        {},
        {"tripped": ("a100-0",), "drained": (OTHER_CLASS,)},
        Reason.HOLD_TRIPPED,
        id="a trip before a suspect node",
    ),
    pytest.param(
        {"phase": "Refused", "reason": "SwapNotProven", "conditions": {"SwapProven": "False"}},
        {},
        Reason.SWAP_NOT_PROVEN,
        id="a node that cannot swap is named for that, not for refusing the candidate",
    ),
    pytest.param({"age": 91.0}, {"paused": True}, Reason.PARTIAL_FLEET, id="a silent node before a pause"),
    pytest.param({}, {"unreadable": ("a100-7",)}, Reason.PARTIAL_FLEET, id="a node that cannot be read"),
    pytest.param(SHADOW, {"paused": True}, Reason.PAUSED, id="a pause before missing samples"),
]


@pytest.mark.parametrize(("fields", "circumstances", "reason"), TABLE)
def test_the_first_reason_to_hold_is_shown(
    fields: dict[str, Any], circumstances: dict[str, Any], reason: Reason | None
) -> None:
    found = first_hold(standing(node(**fields), **circumstances))
    assert (found.reason if found else None) == reason


def test_the_order_of_the_chain_is_the_documented_one() -> None:
    assert [check.__name__ for check in CHAIN] == [
        "tripped",
        "suspects",
        "named",
        "preprocessing",
        "capable",
        "swap_proven",
        "failed_loads",
        "oracle_missing",
        "readable",
        "unreachable",
        "fallback_ready",
        "is_paused",
        "any_data",
        "enough_samples",
        "conclusive",
    ]
