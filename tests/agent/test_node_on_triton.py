"""The life of an engine on one node, on the real Triton."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from tests.agent.conftest import Site
from tests.agent.tiny import engine, golden, picture, reference, tensor_of

from blurfleet.api.engineset import Blob
from blurfleet.api.nodeengine import EngineRef, NodeModel
from blurfleet.api.policy import MetricName, PolicySpec, Rule, Trip
from blurfleet.quality.evidence import load_evidence
from blurfleet.quality.replay import replay_evidence
from blurfleet.serving.frames import FrameSender
from blurfleet_agent.main import RunningNode

Until = Callable[..., None]


@dataclass(frozen=True, kw_only=True)
class Served:
    """A node that serves a sound FP32 engine of set `base`; `oracle` is the same engine as set `next` names it."""

    site: Site
    fp32: EngineRef
    oracle: EngineRef
    bundle: Blob
    sender: FrameSender
    node: RunningNode

    def want(self, **fields: Any) -> None:
        """Write the wish: FP32 as fallback, the set's golden bundle, and what differs."""
        self.site.want(self.model(**fields))

    def model(self, **fields: Any) -> NodeModel:
        return self.site.model(**{"fallback": self.fp32, "oracle": self.oracle, "golden": self.bundle, **fields})

    def next_engine(self, kind: str, **fields: Any) -> EngineRef:
        return engine(self.site.shelf, kind, **{"set_name": "next", "salt": self.site.alias, **fields})


@pytest.fixture
def served(site: Site, until: Until) -> Iterator[Served]:
    fp32 = engine(site.shelf, "sound", set_name="base", precision="FP32", salt=site.alias)
    bundle = golden(site.shelf)
    site.want(site.model(primary=fp32, fallback=fp32, oracle=fp32, golden=bundle))
    with site.running() as node:
        sender = FrameSender(site.settings.frames_socket)
        until(lambda: site.serves(fp32.digest) and site.condition("SwapProven").status == "True")
        oracle = fp32.model_copy(update={"set": "next"})
        yield Served(site=site, fp32=fp32, oracle=oracle, bundle=bundle, sender=sender, node=node)
        sender.close()


def test_a_primary_is_staged_loaded_proven_and_served(site: Site, until: Until) -> None:
    fp32 = engine(site.shelf, "sound", set_name="base", precision="FP32", salt=site.alias)
    site.want(site.model(primary=fp32, fallback=fp32, oracle=fp32, golden=golden(site.shelf)))
    with site.running():
        until(lambda: site.serves(fp32.digest))
        until(lambda: site.condition("Ready").status == "True")
        tensor = tensor_of(picture(7))
        answer = site.ask(tensor)
        assert answer.model_version == site.route().epoch == 1
        assert np.abs(answer.matte - reference(tensor)).max() < 1e-6
        until(lambda: site.condition("SwapProven").status == "True")
        status = site.status()
        assert status.simulated
        assert (status.precision, status.fallback, status.connected) == ("FP32", "Ready", "Yes")


def test_a_candidate_that_drifts_on_golden_frames_is_refused_while_its_oracle_passes(
    served: Served, until: Until
) -> None:
    site, fp32 = served.site, served.fp32
    bad = served.next_engine("shifted", precision="FP16")
    served.want(primary=fp32, candidate=bad)
    until(lambda: site.phase() == "GoldenFailed")
    found = site.model_status().candidate
    assert found.oracle_passed is True
    assert found.reason == "DEERExceeded" or found.reason == "MaxAbsErrorExceeded"
    figure = next(f for f in found.figures if f.metric == "MaxAbsError")
    assert figure.verdict == "Fail"
    assert abs(float(figure.value) - 0.17) < 0.001
    assert site.serves(fp32.digest)
    evidence = load_evidence(Path(found.evidence))
    assert evidence.digest == bad.digest
    assert replay_evidence(Path(found.evidence)).same


def test_a_nan_trips_on_one_frame_swaps_and_stays_latched_until_another_attempt(served: Served, until: Until) -> None:
    site, fp32 = served.site, served.fp32
    risky = served.next_engine("nan-when-bright")
    served.want(primary=fp32, candidate=risky)
    sound = tensor_of(picture(11))
    until(lambda: site.frame(sound, served.sender) is not None and site.phase() == "Proven", every=0.1)
    served.want(primary=risky)
    until(lambda: site.serves(risky.digest))
    epoch = site.route().epoch
    site.frame(sound, served.sender)
    bright = tensor_of(picture(11, bright=True))
    assert not np.isfinite(site.frame(bright, served.sender)).all()
    until(lambda: site.serves(fp32.digest, "Fallback"))
    trip = site.model_status().last_trip
    assert (trip.reason, trip.stage, trip.frames_to_detect, trip.epoch) == ("NonFiniteOutput", "Live", 1, epoch + 1)
    assert site.route().epoch == epoch + 1
    assert trip.swap_ms < 2000
    assert np.isfinite(site.ask(bright).matte).all()
    until(lambda: Path(trip.evidence).exists())
    assert replay_evidence(Path(trip.evidence)).same
    for _ in range(5):
        site.frame(bright, served.sender)
    until(lambda: site.condition("Armed").reason == "Latched")
    assert site.serves(fp32.digest, "Fallback")
    served.want(attempt="a2", primary=risky)
    until(lambda: site.serves(risky.digest))
    assert site.route().epoch == epoch + 2


def test_three_striped_frames_in_a_row_trip_on_edges(served: Served, until: Until) -> None:
    site, fp32 = served.site, served.fp32
    striped = served.next_engine("striped", precision="INT8")
    edges = Rule(metric=MetricName.DEER, source="Live", limit="0.18", trip=Trip(frames=3, window=3))
    lenient = PolicySpec(
        metrics=(Rule(metric=MetricName.DEER, source="Golden", limit="0.15", action="Warn"), edges), shadow_samples=0
    )
    wish = {"policy": lenient, "policy_name": "lenient"}
    served.want(primary=fp32, candidate=striped, **wish)
    until(lambda: site.phase() == "Proven")
    served.want(primary=striped, **wish)
    until(lambda: site.serves(striped.digest))
    for seed in range(3):
        site.frame(tensor_of(picture(20 + seed)), served.sender)
    until(lambda: site.serves(fp32.digest, "Fallback"))
    trip = site.model_status().last_trip
    assert (trip.reason, trip.frames_to_detect) == ("DEERExceeded", 3)
    until(lambda: Path(trip.evidence).exists())
    assert replay_evidence(Path(trip.evidence)).same


def test_an_engine_without_its_model_file_is_refused_by_name_and_the_serving_one_goes_on(
    served: Served, until: Until
) -> None:
    site, fp32 = served.site, served.fp32
    bare = served.next_engine("sound", salt=f"{site.alias}-bare", model_py=False)
    served.want(primary=fp32, candidate=bare)
    until(lambda: site.phase() == "Failed")
    found = site.model_status().candidate
    assert found.reason == "MissingFile"
    assert "model.py" in found.message
    assert site.serves(fp32.digest)
    assert site.ask(tensor_of(picture(3))).model_version == site.route().epoch


def test_an_engine_that_does_not_load_is_tried_a_bounded_number_of_times(served: Served, until: Until) -> None:
    site, fp32 = served.site, served.fp32
    broken = served.next_engine("refuses-to-load")
    served.want(primary=fp32, candidate=broken)
    until(lambda: site.phase() == "Failed")
    assert site.model_status().candidate.reason == "LoadFailed"
    assert "this engine does not load" in site.model_status().candidate.message
    assert site.serves(fp32.digest)


def test_a_candidate_that_does_not_fit_in_memory_is_refused_before_its_load(served: Served, until: Until) -> None:
    site, fp32 = served.site, served.fp32
    huge = served.next_engine("sound", salt=f"{site.alias}-huge", memory_bytes=1 << 50)
    served.want(primary=fp32, candidate=huge)
    until(lambda: site.condition("CandidateLoaded").reason == "InsufficientMemory")
    assert site.phase() == "Loading"
    assert site.serves(fp32.digest)


def test_golden_pictures_that_miss_their_tensors_blame_preprocessing_and_swap_nothing(
    served: Served, until: Until
) -> None:
    site, fp32 = served.site, served.fp32
    fresh = served.next_engine("tiny-drift")
    spoilt = golden(site.shelf, seeds=(4, 5), spoil_pictures=True)
    served.want(primary=fp32, candidate=fresh, golden=spoilt)
    until(lambda: site.phase() == "Refused")
    found = site.model_status().candidate
    assert found.reason == "ContractChanged"
    assert "preprocessing" in found.message
    assert site.serves(fp32.digest)


def test_a_quarantined_digest_is_swapped_away_from_at_once(served: Served, until: Until) -> None:
    site, fp32 = served.site, served.fp32
    good = served.next_engine("tiny-drift")
    policy = site.model().policy.model_copy(update={"shadow_samples": 0})
    wish = {"policy": policy}
    served.want(primary=fp32, candidate=good, **wish)
    until(lambda: site.phase() == "Proven")
    served.want(primary=good, **wish)
    until(lambda: site.serves(good.digest))
    site.want(served.model(primary=good, **wish), quarantined=(good.digest,))
    until(lambda: site.serves(fp32.digest, "Fallback"))
    assert site.condition("Armed").reason == "Quarantined"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param({"node": {"device_class": "tpu"}}, "UnknownClass", id="a class nobody knows"),
        pytest.param(
            {"node": {}, "model": {"policy": PolicySpec()}}, "PolicyWithoutLimits", id="a policy without limits"
        ),
    ],
)
def test_a_spec_that_cannot_be_acted_on_says_why_and_leaves_what_serves(
    served: Served, until: Until, change: dict[str, Any], reason: str
) -> None:
    site, fp32 = served.site, served.fp32
    other = served.next_engine("tiny-drift")
    site.write_past_admission(
        served.model(primary=fp32, candidate=other, **change.get("model", {})), **change.get("node", {})
    )
    until(lambda: site.condition("Ready").reason == reason)
    assert site.phase() == "Refused"
    assert site.serves(fp32.digest)


def test_an_unreadable_store_file_leaves_the_node_serving_and_says_so(served: Served, until: Until) -> None:
    site = served.site
    good = site.spec_file.read_text()
    site.spec_file.write_text("spec: [unclosed")
    until(lambda: yaml.safe_load(site.status_file.read_text())["connected"] == "No")
    assert site.ask(tensor_of(picture(3))).model_version == 1
    site.spec_file.write_text(good)
    until(lambda: site.condition("Connected").status == "True")
    assert site.serves(served.fp32.digest)
