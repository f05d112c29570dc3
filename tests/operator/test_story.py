"""Whole rollouts, from a person's change of one field to what every node serves."""

from __future__ import annotations

import pytest
from simulated_fleet import Fleet, Script, digest

from blurfleet.errors import AdmissionRefused
from blurfleet.reasons import Reason


@pytest.fixture
def fleet() -> Fleet:
    fleet = Fleet()
    fleet.set("fp32")
    fleet.promote("fp32")
    return fleet


def test_a_first_set_of_fp32_goes_live_on_every_node_and_is_known_good(fleet: Fleet) -> None:
    assert fleet.all_serve() == dict.fromkeys(("a100-0", "orin-0", "orin-1"), "fp32/Primary")
    status = fleet.status()
    assert (status.phase, status.nodes, status.last_known_good, status.fallback) == ("Promoted", "3/3", "fp32", "fp32")
    assert [fleet.said(k)[0] for k in ("Ready", "Promoted", "FallbackReady", "NodesReachable")] == ["True"] * 4


def test_naive_fp16_fails_golden_on_both_classes_and_is_never_served(fleet: Fleet) -> None:
    fleet.set("naive", precision="FP16")
    bad = {c: digest(f"naive-{c}") for c in ("a100", "jetson-orin")}
    fleet.script = Script(golden={("*", d): "oracle passes" for d in bad.values()})
    fleet.change(engine_set="naive")
    fleet.until(lambda: fleet.status().phase == "RolledBack")
    assert fleet.quarantined() == {(d, c) for c, d in bad.items()}
    assert fleet.all_serve() == dict.fromkeys(("a100-0", "orin-0", "orin-1"), "fp32/Primary")
    assert fleet.status().last_known_good == "fp32"
    assert fleet.said("Ready") == ("False", "Quarantined")
    runs = {(r.spec.node, r.spec.stage, r.spec.verdict) for r in fleet.store.objects("QualityRun")}
    assert {("a100-0", "Golden", "Fail"), ("orin-0", "Golden", "Fail"), ("orin-1", "Golden", "Fail")} <= runs
    fleet.change(engine_set="fp32")
    with pytest.raises(AdmissionRefused) as caught:
        fleet.change(engine_set="naive")
    assert caught.value.reason is Reason.QUARANTINED
    assert bad["a100"] in caught.value.message
