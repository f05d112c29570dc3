"""What a node says of what it serves: doubt, silence and a guard that has stopped are said, whatever else is well."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.agent.standins import NEW, OLD, OLD32, name, routed

from blurfleet.api.meta import condition, timestamp
from blurfleet.api.nodeengine import EngineRef, NodeModel
from blurfleet.api.policy import PolicySpec
from blurfleet.quality.rules import default_policy
from blurfleet.reasons import Reason
from blurfleet_agent.recovery import Served
from blurfleet_agent.status import NodeHealth, deafness, model_status
from blurfleet_agent.view import GoldenResult, ModelView, Role
from blurfleet_agent.watch import Told

NOW = 1_800_000_000.0
WELL = NodeHealth(
    store=None, triton=None, journal_synced=True, journal_cut="", evidence_lost="", simulated=True, guard=""
)
TOLD = Told(alias="bokeh", digest=OLD.digest, attempt="a1", phase="Monitor", valid=20, stability=1.0)
SILENT = replace(TOLD, stale=True, act="Hold", reason=Reason.STREAM_STOPPED, message="no valid sample")
GOLDEN_ONLY = PolicySpec(metrics=tuple(r for r in default_policy().metrics if r.source == "Golden"))


def view(engine: EngineRef = OLD, role: Role = "Primary", *, policy: PolicySpec | None = None) -> ModelView:
    passed = GoldenResult(verdict="Pass", reason=Reason.WITHIN_LIMITS, message="", at=NOW)
    return ModelView(
        now=NOW,
        wall=NOW - 86_400.0,
        spec=NodeModel(
            name="bokeh", attempt="a1", primary=OLD, fallback=OLD32, oracle=OLD32, policy=policy or default_policy()
        ),
        ready=frozenset({name(OLD), name(OLD32)}),
        served=Served(
            engine=routed(engine),
            role=role,
            primary=routed(OLD if role == "Fallback" else engine),
            fallback=routed(OLD32),
            epoch=3,
            settled=True,
        ),
        served_ref=engine,
        golden={(OLD32.digest, OLD32.set, "Fallback"): passed},
        swap_proven=True,
    )


def said(kind: str, seen: ModelView, told: Told | None, health: NodeHealth = WELL) -> tuple[str, str]:
    found = condition(model_status(seen, None, told, health, None).conditions, kind)
    assert found is not None
    return found.status, found.reason


@pytest.mark.parametrize(
    ("seen", "told", "analysis", "healthy"),
    [
        pytest.param({}, TOLD, ("True", "WithinLimits"), ("True", "WithinLimits"), id="judged and within limits"),
        pytest.param(
            {}, None, ("Unknown", "InsufficientSamples"), ("Unknown", "NoData"), id="the guard has said nothing yet"
        ),
        pytest.param(
            {},
            replace(TOLD, digest=NEW.digest),
            ("Unknown", "InsufficientSamples"),
            ("Unknown", "NoData"),
            id="its last word is about another engine",
        ),
        pytest.param(
            {},
            replace(TOLD, attempt="a0"),
            ("Unknown", "InsufficientSamples"),
            ("Unknown", "NoData"),
            id="its last word is about another attempt",
        ),
        pytest.param({}, SILENT, ("False", "StreamStopped"), ("Unknown", "StreamStopped"), id="the stream stopped"),
        pytest.param(
            {}, replace(SILENT, valid=0), ("False", "NoData"), ("Unknown", "NoData"), id="no valid frame ever came"
        ),
        pytest.param(
            {},
            replace(TOLD, holding=Reason.DEER_EXCEEDED, reason=Reason.DEER_EXCEEDED),
            ("False", "DEERExceeded"),
            ("Unknown", "DEERExceeded"),
            id="a rule asks to hold",
        ),
        pytest.param(
            {},
            replace(TOLD, held=Reason.DEER_EXCEEDED),
            ("False", "FallbackNotProven"),
            ("False", "FallbackNotProven"),
            id="it tripped and there is no proven standby: it stays said, not only for a moment",
        ),
        pytest.param(
            {"engine": OLD32},
            None,
            ("True", "WithinLimits"),
            ("Unknown", "NoData"),
            id="an FP32 primary is its own oracle",
        ),
        pytest.param(
            {"policy": default_policy().model_copy(update={"shadow_samples": 0})},
            SILENT,
            ("True", "Accepted"),
            ("Unknown", "StreamStopped"),
            id="a policy without shadow asks for no live samples",
        ),
        pytest.param(
            {"policy": GOLDEN_ONLY}, SILENT, ("True", "Accepted"), ("Unknown", "StreamStopped"), id="nor one of golden"
        ),
    ],
)
def test_whether_live_frames_say_something(
    seen: dict[str, Any], told: Told | None, analysis: tuple[str, str], healthy: tuple[str, str]
) -> None:
    assert said("AnalysisConclusive", view(**seen), told) == analysis
    assert said("ActiveHealthy", view(**seen), told) == healthy


@pytest.mark.parametrize(
    ("alive", "receiving", "armed"),
    [
        pytest.param(True, True, ("True", "Serving"), id="the guard works"),
        pytest.param(False, True, ("False", "GuardStopped"), id="its thread has ended"),
        pytest.param(True, False, ("False", "GuardStopped"), id="its socket takes nobody any more"),
    ],
)
def test_a_node_whose_guard_has_stopped_is_not_armed(alive: bool, receiving: bool, armed: tuple[str, str]) -> None:
    assert said("Armed", view(), TOLD, replace(WELL, guard=deafness(alive, receiving))) == armed


def test_a_wall_clock_stepped_back_by_a_day_stamps_by_the_wall_and_ages_by_the_steady_clock() -> None:
    proven = GoldenResult(verdict="Pass", reason=Reason.WITHIN_LIMITS, message="", at=NOW - 20.0)
    seen = replace(view(), golden={(OLD32.digest, OLD32.set, "Fallback"): proven})
    found = condition(model_status(seen, None, TOLD, WELL, None).conditions, "FallbackReady")
    assert found is not None
    assert found.last_transition_time == timestamp(NOW - 86_400.0)
    assert timestamp(NOW - 86_400.0 - 20.0) in found.message


def test_a_drained_node_is_not_ready_whatever_it_serves() -> None:
    seen = view()
    assert said("Ready", seen, TOLD) == ("True", "Serving")
    drained = replace(seen, spec=seen.spec.model_copy(update={"drained": True}))
    assert said("Ready", drained, TOLD) == ("False", "NodeSuspect")
