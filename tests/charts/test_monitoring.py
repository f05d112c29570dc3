"""Every alert of the chart on data, by the real promtool: it fires on its fault, and nothing else fires."""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.obs.chart_rules import groups
from tests.obs.prometheus_programs import Programs, ensure_programs

ROOT = Path(__file__).parents[2]
RUNBOOKS = ROOT / "docs/runbooks"
HEALTHY_MINUTES = 60

Series = dict[str, str]
A100 = 'device_type="a100",node="a100-0",model="bokeh"'
ORIN = 'device_type="jetson-orin",node="orin-0",model="bokeh"'
ROLLOUT = 'rollout="blur/bokeh",model="bokeh"'
POD = 'namespace="blurfleet-system",pod="agent-x"'
FOR_EVER = "stale _x400"  # as a scrape ends that no longer brings a series


def steady(value: float, step: float = 0.0) -> str:
    """Return samples of an hour of health at 15 s, rising by `step` each."""
    return f"{value}+{step}x{HEALTHY_MINUTES * 4 - 1}"


def node(labels: str, name: str, device_type: str) -> Series:
    """Return what the agent of a healthy node exports, and what the operator says of it."""
    who = f'device_type="{device_type}",node="{name}"'
    return {
        f'blurfleet_serving_info{{{labels},set="mixed",role="Primary",precision="Mixed"}}': steady(1),
        f"blurfleet_serving_epoch{{{labels}}}": steady(3),
        f"blurfleet_fallback_ready{{{labels}}}": steady(1),
        f"blurfleet_guard_last_sample_timestamp_seconds{{{labels}}}": steady(0, 15),
        f"fp16_max_abs_error{{{labels}}}": steady(0.0008),
        f'blurfleet_trips_total{{{labels},reason="DEERExceeded"}}': steady(2),
        f'blurfleet_journal_unsynced{{node="{name}"}}': steady(0),
        f'blurfleet_evidence_unwritten_total{{node="{name}"}}': steady(0),
        f"blurfleet_runtime_mismatch{{{who}}}": steady(0),
        f"blurfleet_node_silent{{{who}}}": steady(0),
        f"blurfleet_node_suspect{{{labels}}}": steady(0),
        f"blurfleet_input_drift{{{labels}}}": steady(0),
    }


HEALTHY: Series = {
    **node(A100, "a100-0", "a100"),
    **node(ORIN, "orin-0", "jetson-orin"),
    f'up{{job="blurfleet-system/blurfleet",endpoint="metrics",{POD}}}': steady(1),
    f'blurfleet_frames_withheld_total{{{POD},node="orin-0",reason="NonFiniteOutput"}}': steady(0),
    f'blurfleet_rollout_phase{{{ROLLOUT},phase="Promoted"}}': steady(1),
    f'blurfleet_rollout_reason{{{ROLLOUT},reason="Promoted"}}': steady(1),
    'blurfleet_quarantines{device_type="a100",reason="DEERExceeded"}': steady(1),
    'blurfleet_quarantine_newest_timestamp_seconds{device_type="a100",reason="DEERExceeded"}': steady(-86400),
    "blurfleet_operator_acting": steady(1),
    "blurfleet_operator_pass_seconds_count": steady(0, 2),
    "blurfleet_operator_failures_total": steady(4),
}


@dataclass(frozen=True, kw_only=True)
class Fault:
    """After an hour of health `then` replaces or joins series; `alert` fires within `minutes`, and only then."""

    alert: str
    then: Series
    labels: Mapping[str, str]
    summary: str
    minutes: int = 1
    not_at: int | None = None
    beside: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def phase(name: str, reason: str) -> Series:
    return {
        f'blurfleet_rollout_phase{{{ROLLOUT},phase="Promoted"}}': FOR_EVER,
        f'blurfleet_rollout_reason{{{ROLLOUT},reason="Promoted"}}': FOR_EVER,
        f'blurfleet_rollout_phase{{{ROLLOUT},phase="{name}"}}': "1+0x400",
        f'blurfleet_rollout_reason{{{ROLLOUT},reason="{reason}"}}': "1+0x400",
    }


P1, P2 = {"severity": "page", "priority": "P1"}, {"severity": "warning", "priority": "P2"}
ON_ORIN = {"device_type": "jetson-orin", "node": "orin-0", "model": "bokeh"}
ON_A100 = {"device_type": "a100", "node": "a100-0", "model": "bokeh"}
OF_ROLLOUT = {"rollout": "blur/bokeh", "model": "bokeh"}
FAULTS = [
    Fault(
        alert="BlurfleetTripped",
        then={f'blurfleet_tripped{{{ORIN},reason="DEERExceeded"}}': "1+0x400"},
        labels={**ON_ORIN, "reason": "DEERExceeded", **P1},
        summary="orin-0: bokeh tripped on DEERExceeded",
    ),
    Fault(
        alert="BlurfleetDriftHigh",
        then={f"fp16_max_abs_error{{{ORIN}}}": "0.0041+0x400"},
        labels={**ON_ORIN, **P1},
        summary="orin-0: bokeh is 0.0041 from its FP32 engine, limit 0.0035",
        minutes=3,
        not_at=1,
    ),
    Fault(
        alert="BlurfleetDriftHigh",
        then={f"fp16_max_abs_error{{{A100}}}": "0.0013+0x400"},
        labels={**ON_A100, **P1},
        summary="a100-0: bokeh is 0.0013 from its FP32 engine, limit 0.0012",
        minutes=2,
        not_at=0,
    ),
    Fault(
        alert="BlurfleetDriftHigh",
        then={f"fp16_max_abs_error{{{A100}}}": "NaN NaN NaN NaN NaN NaN NaN NaN NaN NaN NaN NaN NaN"},
        labels={**ON_A100, **P1},
        summary="a100-0: bokeh is NaN from its FP32 engine, limit 0.0012",
        minutes=2,
    ),
    Fault(
        alert="BlurfleetFallbackNotReady",
        then={f"blurfleet_fallback_ready{{{ORIN}}}": "0+0x400"},
        labels={**ON_ORIN, **P1},
        summary="orin-0: bokeh has nothing proven to swap to",
        minutes=3,
        not_at=1,
    ),
    Fault(
        alert="BlurfleetNoSamples",
        then={f"blurfleet_guard_last_sample_timestamp_seconds{{{ORIN}}}": "3585+0x400"},
        labels={**ON_ORIN, **P2},
        summary="orin-0: no frame of bokeh is judged",
        minutes=12,
        not_at=9,
    ),
    Fault(
        alert="BlurfleetNoSamples",
        then={f"blurfleet_guard_last_sample_timestamp_seconds{{{ORIN}}}": FOR_EVER},
        labels={**ON_ORIN, **P2},
        summary="orin-0: no frame of bokeh is judged",
        minutes=12,
    ),
    Fault(
        alert="BlurfleetFramesWithheld",
        then={f'blurfleet_frames_withheld_total{{{POD},node="orin-0",reason="NonFiniteOutput"}}': "1+0x400"},
        labels={"node": "orin-0", "pod": "agent-x", "reason": "NonFiniteOutput", **P2},
        summary="orin-0: the gateway withheld mattes of the primary: NonFiniteOutput",
    ),
    Fault(
        alert="BlurfleetJournalUnsynced",
        then={'blurfleet_journal_unsynced{node="orin-0"}': "1+0x400"},
        labels={"node": "orin-0", **P2},
        summary="orin-0 cannot write its journal",
        minutes=2,
        not_at=0,
    ),
    Fault(
        alert="BlurfleetEvidenceUnwritten",
        then={'blurfleet_evidence_unwritten_total{node="orin-0"}': "1+0x400"},
        labels={"node": "orin-0", **P2},
        summary="orin-0 could not keep the evidence of a verdict",
    ),
    Fault(
        alert="BlurfleetRuntimeMismatch",
        then={'blurfleet_runtime_mismatch{device_type="jetson-orin",node="orin-0"}': "1+0x400"},
        labels={"device_type": "jetson-orin", "node": "orin-0", **P2},
        summary="orin-0 runs another engine runtime than the chart's values say",
        minutes=6,
        not_at=4,
    ),
    Fault(
        alert="BlurfleetInputDrift",
        then={f"blurfleet_input_drift{{{ORIN}}}": "1+0x400"},
        labels={**ON_ORIN, **P2},
        summary="orin-0: live pictures of bokeh are unlike those it was calibrated with",
        minutes=11,
        not_at=9,
    ),
    Fault(
        alert="BlurfleetTargetDown",
        then={f'up{{job="blurfleet-system/blurfleet",endpoint="metrics",{POD}}}': "0+0x400"},
        labels={"namespace": "blurfleet-system", "pod": "agent-x", "endpoint": "metrics", **P2},
        summary="agent-x is not scraped",
        minutes=6,
        not_at=4,
    ),
    Fault(
        alert="BlurfleetAgentsSilent",
        then={name: FOR_EVER for name in HEALTHY if "journal_unsynced" in name},
        labels=P1,
        summary="no agent of the fleet is scraped",
        minutes=12,
        not_at=3,
        beside={"BlurfleetAgentUnscraped": {"node": "a100-0", **P2}},
    ),
    Fault(
        alert="BlurfleetClassReverted",
        then={f'blurfleet_class_reverted{{{ROLLOUT},device_type="jetson-orin"}}': "1+0x400"},
        labels={**OF_ROLLOUT, "device_type": "jetson-orin", **P1},
        summary="blur/bokeh: class jetson-orin of bokeh was sent back",
    ),
    Fault(
        alert="BlurfleetRolledBack",
        then=phase("RolledBack", "RolledBack"),
        labels={**OF_ROLLOUT, **P1},
        summary="blur/bokeh of bokeh was rolled back: RolledBack",
    ),
    Fault(
        alert="BlurfleetRollbackStuck",
        then=phase("RollingBack", "RolledBack"),
        labels={**OF_ROLLOUT, **P1},
        summary="blur/bokeh of bokeh has been rolling back for ten minutes",
        minutes=11,
        not_at=9,
    ),
    Fault(
        alert="BlurfleetAborted",
        then=phase("Aborted", "Aborted"),
        labels={**OF_ROLLOUT, **P2},
        summary="blur/bokeh of bokeh was aborted",
    ),
    Fault(
        alert="BlurfleetStalled",
        then=phase("Stalled", "NoVariantForNode"),
        labels={**OF_ROLLOUT, **P2},
        summary="blur/bokeh of bokeh is stalled: NoVariantForNode",
        minutes=2,
        not_at=0,
    ),
    Fault(
        alert="BlurfleetHolding",
        then=phase("Holding", "HoldTripped"),
        labels={**OF_ROLLOUT, **P2},
        summary="blur/bokeh of bokeh holds: HoldTripped",
        minutes=16,
        not_at=14,
    ),
    Fault(
        alert="BlurfleetQuarantineMade",
        then={
            'blurfleet_quarantine_newest_timestamp_seconds{device_type="a100",reason="DEERExceeded"}': "3590+0x400",
        },
        labels={"device_type": "a100", "reason": "DEERExceeded", **P2},
        summary="an engine was quarantined for a100: DEERExceeded",
    ),
    Fault(
        alert="BlurfleetQuarantineMade",
        then={'blurfleet_quarantine_newest_timestamp_seconds{device_type="",reason="Recalled"}': "3590+0x400"},
        labels={"reason": "Recalled", **P2},
        summary="an engine was quarantined for every class: Recalled",
    ),
    Fault(
        alert="BlurfleetNodeSuspect",
        then={f"blurfleet_node_suspect{{{ORIN}}}": "1+0x400"},
        labels={**ON_ORIN, **P1},
        summary="orin-0 fails golden frames with FP32 of bokeh: suspect its device",
    ),
    Fault(
        alert="BlurfleetNodeSilent",
        then={'blurfleet_node_silent{device_type="jetson-orin",node="orin-0"}': "1+0x400"},
        labels={"device_type": "jetson-orin", "node": "orin-0", **P1},
        summary="orin-0 is not heard from",
        minutes=2,
        not_at=0,
    ),
    Fault(
        alert="BlurfleetAgentUnscraped",
        then={'blurfleet_journal_unsynced{node="orin-0"}': FOR_EVER},
        labels={"node": "orin-0", **P2},
        summary="no agent of orin-0 is scraped: alerts about it are blind",
        minutes=12,
    ),
    Fault(
        alert="BlurfleetOperatorDown",
        then={"blurfleet_operator_acting": FOR_EVER},
        labels=P1,
        summary="no operator acts",
        minutes=12,
        not_at=3,
    ),
    Fault(
        alert="BlurfleetOperatorStale",
        then={"blurfleet_operator_pass_seconds_count": "478+0x400"},
        labels=P1,
        summary="the operator has decided nothing for five minutes",
        minutes=9,
        not_at=4,
    ),
    Fault(
        alert="BlurfleetOperatorFailing",
        then={"blurfleet_operator_failures_total": "5+1x400"},
        labels=P2,
        summary="writes of the operator are refused, or its passes fail",
        minutes=8,
        not_at=1,
    ),
]


@functools.cache
def rules() -> tuple[dict[str, Any], ...]:
    return tuple(rule for group in groups() for rule in group["rules"])


@pytest.fixture(scope="module")
def programs() -> Programs:
    return ensure_programs()


@pytest.fixture(scope="module")
def rule_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rules") / "rules.yaml"
    path.write_text(yaml.safe_dump({"groups": groups()}))
    return path


def promtool(programs: Programs, *arguments: str) -> None:
    done = subprocess.run([programs.promtool, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def firing(minute: int, alerts: list[tuple[str, Mapping[str, str]]]) -> dict[str, Any]:
    samples = []
    for name, labels in alerts:
        pairs = {"alertname": name, "alertstate": "firing", **labels}
        selector = ",".join(f'{k}="{v}"' for k, v in pairs.items())
        samples.append({"labels": f"ALERTS{{{selector}}}", "value": 1})
    return {"expr": 'ALERTS{alertstate="firing"}', "eval_time": f"{minute}m", "exp_samples": samples}


def evaluate(programs: Programs, rule_file: Path, folder: Path, series: Series, **tests: Any) -> None:
    body = {
        "rule_files": [str(rule_file)],
        "evaluation_interval": "15s",
        "tests": [
            {"interval": "15s", "input_series": [{"series": s, "values": v} for s, v in series.items()], **tests}
        ],
    }
    path = folder / "test.yaml"
    path.write_text(yaml.safe_dump(body))
    promtool(programs, "test", "rules", str(path))


def after(then: Series) -> Series:
    """Return an hour of health, then what `then` says; a series of `then` alone begins with the fault."""
    health_alone = {name: f"{values} {_onwards(name)}" for name, values in HEALTHY.items() if name not in then}
    broken = {name: f"{HEALTHY.get(name, f'_x{HEALTHY_MINUTES * 4}')} {values}" for name, values in then.items()}
    return {**health_alone, **broken}


def _onwards(name: str) -> str:
    """Return how a healthy series goes on for another hour and a half."""
    start, _, rest = HEALTHY[name].partition("+")
    step = float(rest.partition("x")[0])
    return f"{float(start) + step * HEALTHY_MINUTES * 4}+{step}x400"


def test_rules_are_what_prometheus_accepts(programs: Programs, rule_file: Path) -> None:
    promtool(programs, "check", "rules", str(rule_file))


def test_every_alert_has_a_fault_that_it_is_tried_on() -> None:
    assert {f.alert for f in FAULTS} == {rule["alert"] for rule in rules()}


def test_every_alert_says_how_grave_it_is_and_names_a_runbook_that_is_there() -> None:
    for rule in rules():
        assert rule["labels"] in (P1, P2), rule["alert"]
        assert {"summary", "description", "runbook_url"} == set(rule["annotations"]), rule["alert"]
        page = RUNBOOKS / rule["annotations"]["runbook_url"].removeprefix("docs/runbooks/")
        assert page.is_file(), rule["alert"]
        assert f"`{rule['alert']}`" in page.read_text(), f"{page.name} does not name {rule['alert']}"


def test_runbooks_are_linked_where_they_are_published() -> None:
    base = "https://wiki.example/runbooks"
    found = groups(monitoring={"prometheusRule": True, "runbooks": base})
    assert all(r["annotations"]["runbook_url"].startswith(f"{base}/") for g in found for r in g["rules"])


def test_an_installation_without_operator_has_no_alert_that_misses_it() -> None:
    found = {r["alert"] for g in groups(operator={"enabled": False}) for r in g["rules"]}
    assert "BlurfleetTripped" in found
    assert "BlurfleetOperatorDown" not in found


@pytest.mark.parametrize("fault", FAULTS, ids=[f"{f.alert}-{n}" for n, f in enumerate(FAULTS)])
def test_an_alert_fires_on_its_fault_alone(programs: Programs, rule_file: Path, tmp_path: Path, fault: Fault) -> None:
    at = HEALTHY_MINUTES + fault.minutes
    candidates = [r for r in rules() if r["alert"] == fault.alert]
    rule = next((r for r in candidates if fault.labels.get("device_type", "") in r["expr"]), candidates[0])
    others = [pair for name, labels in fault.beside.items() for pair in _each_node(name, labels)]
    tests: list[dict[str, Any]] = [firing(HEALTHY_MINUTES - 1, [])]
    if fault.not_at is not None:
        tests.append(firing(HEALTHY_MINUTES + fault.not_at, []))
    tests.append(firing(at, [(fault.alert, fault.labels), *others]))
    said = {**rule["annotations"], "summary": fault.summary}
    alert = {
        "eval_time": f"{at}m",
        "alertname": fault.alert,
        "exp_alerts": [{"exp_labels": dict(fault.labels), "exp_annotations": said}],
    }
    evaluate(programs, rule_file, tmp_path, after(fault.then), alert_rule_test=[alert], promql_expr_test=tests)


def _each_node(name: str, labels: Mapping[str, str]) -> list[tuple[str, Mapping[str, str]]]:
    return [(name, {**labels, "node": node}) for node in ("a100-0", "orin-0")]


def test_nothing_fires_while_all_is_well(programs: Programs, rule_file: Path, tmp_path: Path) -> None:
    evaluate(programs, rule_file, tmp_path, after({}), promql_expr_test=[firing(m, []) for m in (1, 30, 59, 75, 120)])


def test_where_all_data_is_missing_only_the_alerts_about_that_fire(
    programs: Programs, rule_file: Path, tmp_path: Path
) -> None:
    gone = dict.fromkeys(HEALTHY, FOR_EVER)
    missing = [("BlurfleetAgentsSilent", P1), ("BlurfleetOperatorDown", P1)]
    evaluate(programs, rule_file, tmp_path, after(gone), promql_expr_test=[firing(75, missing), firing(120, missing)])


def test_data_that_comes_back_after_a_gap_raises_no_alarm_of_its_own(
    programs: Programs, rule_file: Path, tmp_path: Path
) -> None:
    back = {name: f"_x80 {_onwards(name)}" for name in HEALTHY}
    evaluate(
        programs, rule_file, tmp_path, after(back), promql_expr_test=[firing(m, []) for m in (81, 82, 85, 90, 100)]
    )


def test_a_gate_that_waits_for_a_person_is_no_hold_to_be_told_of(
    programs: Programs, rule_file: Path, tmp_path: Path
) -> None:
    waits = after(phase("Holding", "WaitingForGate"))
    evaluate(programs, rule_file, tmp_path, waits, promql_expr_test=[firing(100, [])])


def test_a_node_on_its_fallback_is_not_said_to_drift_nor_to_be_unwatched(
    programs: Programs, rule_file: Path, tmp_path: Path
) -> None:
    swapped = {
        f"fp16_max_abs_error{{{ORIN}}}": "0.4+0x400",
        f"blurfleet_guard_last_sample_timestamp_seconds{{{ORIN}}}": "3585+0x400",
        f'blurfleet_serving_info{{{ORIN},set="mixed",role="Primary",precision="Mixed"}}': FOR_EVER,
        f'blurfleet_serving_info{{{ORIN},set="mixed",role="Fallback",precision="FP32"}}': "1+0x400",
        f'blurfleet_tripped{{{ORIN},reason="MaxAbsErrorExceeded"}}': "1+0x400",
    }
    tripped = ("BlurfleetTripped", {**ON_ORIN, "reason": "MaxAbsErrorExceeded", **P1})
    evaluate(programs, rule_file, tmp_path, after(swapped), promql_expr_test=[firing(75, [tripped])])
