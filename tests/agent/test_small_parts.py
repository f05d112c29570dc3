"""Faults, metrics, evidence budget, what is remembered, and which engine judges which."""

from __future__ import annotations

import math
import os
from pathlib import Path

import httpx
import pytest
from prometheus_client import CollectorRegistry

from blurfleet.api.engineset import Blob
from blurfleet.api.nodeengine import EngineRef, NodeEngineSpec, NodeEngineStatus, NodeModel
from blurfleet.api.policy import PolicySpec
from blurfleet.errors import BlurfleetError, EngineError, NodeError
from blurfleet.quality.rules import default_policy
from blurfleet.reasons import Reason
from blurfleet_agent.ballast import Ballast
from blurfleet_agent.desired import spec_problem
from blurfleet_agent.evidence_files import make_room
from blurfleet_agent.exporter import Metrics
from blurfleet_agent.faults import next_fault
from blurfleet_agent.main import _serve_metrics, collect
from blurfleet_agent.remembered import Remembered, read_remembered, remember, write_remembered
from blurfleet_agent.repository import ModelRepository
from blurfleet_agent.settings import AgentSettings
from blurfleet_agent.staging import Staging
from blurfleet_agent.status import worth_writing
from blurfleet_agent.view import Fault


@pytest.mark.parametrize(
    ("reason", "tried", "final"),
    [
        pytest.param(Reason.LOAD_FAILED, 1, False, id="a second failed load is tried again"),
        pytest.param(Reason.LOAD_FAILED, 2, True, id="the third is the last"),
        pytest.param(Reason.MISSING_FILE, 0, True, id="a missing file is not going to appear"),
        pytest.param(Reason.INSUFFICIENT_MEMORY, 50, False, id="memory may come free any time"),
        pytest.param(Reason.INSUFFICIENT_STORAGE, 50, False, id="disk space may come free any time"),
        pytest.param(Reason.ARTIFACT_UNAVAILABLE, 50, False, id="a store may come back any time"),
        pytest.param(Reason.DIGEST_MISMATCH, 2, True, id="wrong bytes three times are wrong bytes"),
    ],
)
def test_faults(reason: Reason, tried: int, final: bool) -> None:
    old = Fault(reason=reason, message="x", attempts=tried) if tried else None
    error: BlurfleetError = EngineError(reason, "again")
    found = next_fault(old, error, 100.0, attempts=3, back_off_s=2.0, max_back_off_s=60.0)
    assert (found.attempts, found.final) == (tried + 1, final)
    assert found.retry_at == 100.0 + min(60.0, 2.0 * 2.0**tried)


def metrics() -> tuple[CollectorRegistry, Metrics]:
    registry = CollectorRegistry()
    return registry, Metrics(registry, node="orin-0", device_class="jetson-orin")


LABELS = {"device_type": "jetson-orin", "node": "orin-0", "model": "bokeh"}


def test_nan_reaches_the_gauge_and_no_histogram_or_counter() -> None:
    registry, exported = metrics()
    exported.sample("bokeh", source="Live", verdict="Pass", max_abs=0.001, deer=0.02, now=5.0)
    exported.sample("bokeh", source="Live", verdict="Fail", max_abs=math.nan, deer=math.nan, now=6.0)
    exported.swapped("bokeh", seconds=math.nan, epoch=2)
    gauge = registry.get_sample_value("fp16_max_abs_error", LABELS)
    assert gauge is not None
    assert math.isnan(gauge)
    assert registry.get_sample_value("blurfleet_deer_ratio_sum", LABELS) == 0.02
    assert registry.get_sample_value("blurfleet_deer_ratio_count", LABELS) == 1.0
    assert registry.get_sample_value("blurfleet_swap_seconds_count", LABELS) is None
    assert registry.get_sample_value("blurfleet_guard_last_sample_timestamp_seconds", LABELS) == 6.0


def test_an_infinite_deer_is_counted_beyond_every_bucket_and_leaves_the_sum_a_number() -> None:
    registry, exported = metrics()
    for deer in (0.05, math.inf, 1e30):
        exported.sample("bokeh", source="Live", verdict="Fail", max_abs=0.5, deer=deer, now=5.0)
    buckets = {
        le: registry.get_sample_value("blurfleet_deer_ratio_bucket", {**LABELS, "le": le}) for le in ("1.0", "+Inf")
    }
    assert buckets == {"1.0": 1.0, "+Inf": 3.0}
    assert registry.get_sample_value("blurfleet_deer_ratio_sum", LABELS) == 20.05


@pytest.mark.parametrize(
    ("host", "shown"),
    [
        pytest.param("127.0.0.1", "127.0.0.1:", id="loopback"),
        pytest.param("0.0.0.0", "0.0.0.0:", id="every address"),
        pytest.param("::1", "[::1]:", id="an address of IPv6 is written as a URL has it"),
    ],
)
def test_metrics_are_served_on_the_host_that_was_set(host: str, shown: str) -> None:
    server = _serve_metrics(CollectorRegistry(), host, 0)
    try:
        assert server.address.startswith(shown)
        assert httpx.get(f"http://{server.address}/metrics", trust_env=False).status_code == 200
    finally:
        server.close()


def test_a_host_that_is_not_of_this_machine_is_refused_by_name() -> None:
    with pytest.raises(NodeError) as refused:
        _serve_metrics(CollectorRegistry(), "192.0.2.1", 0)
    assert (refused.value.reason, refused.value.where) == (Reason.PORT_IN_USE, "192.0.2.1:0")
    assert "BLURFLEET_METRICS_HOST" in refused.value.fix


def test_the_hosts_are_loopback_unless_the_environment_names_others(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NODE", "DEVICE_CLASS", "NODE_DIR", "STORE", "TRITON_GRPC", "MODEL_REPOSITORY"):
        monkeypatch.setenv(f"BLURFLEET_{name}", "x")
    assert AgentSettings().metrics_host == "127.0.0.1"
    monkeypatch.setenv("BLURFLEET_METRICS_HOST", "10.1.2.3")
    assert AgentSettings().metrics_host == "10.1.2.3"


def test_no_label_carries_a_digest_frame_or_user() -> None:
    registry, exported = metrics()
    exported.sample("bokeh", source="Shadow", verdict="Pass", max_abs=0.1, deer=0.1, now=1.0)
    exported.tripped("bokeh", "DEERExceeded", swapped=True)
    names = {label for family in registry.collect() for sample in family.samples for label in sample.labels}
    versions = {"agent_version", "triton_version", "runtime_version", "memory_source", "simulated"}
    assert names <= {"device_type", "node", "model", "reason", "scope", "source", "verdict", "le", *versions}


def test_two_agents_in_one_process_do_not_share_metrics() -> None:
    first, one = metrics()
    second, _ = metrics()
    one.tripped("bokeh", "x", swapped=False)
    assert first.get_sample_value("blurfleet_trips_total", {**LABELS, "reason": "x"}) == 1.0
    assert second.get_sample_value("blurfleet_trips_total", {**LABELS, "reason": "x"}) is None


def test_evidence_beyond_the_budget_goes_oldest_first_and_the_newest_stays(tmp_path: Path) -> None:
    for name in ("20260101-a", "20260102-b", "20260103-c"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "frame.npz").write_bytes(os.urandom(1000))
    assert make_room(tmp_path, 2000) == ("20260101-a",)
    assert make_room(tmp_path, 10) == ("20260102-b",)
    assert [p.name for p in tmp_path.iterdir()] == ["20260103-c"]


def ref(letter: str, set_name: str, precision: str = "Mixed") -> EngineRef:
    blob = Blob(uri=f"file:///{letter}", digest="sha256:" + letter * 64)
    return EngineRef.model_validate(
        {
            "set": set_name,
            "variant": letter,
            "digest": blob.digest,
            "precision": precision,
            "artifact": blob,
            "build_record": blob,
        }
    )


def spec(**fields: object) -> NodeEngineSpec:
    model = NodeModel.model_validate({"name": "bokeh", "policy": default_policy(), **fields})
    return NodeEngineSpec(device_class="jetson-orin", models=(model,))


GOLD_OLD = Blob(uri="file:///g1", digest="sha256:" + "1" * 64)
GOLD_NEW = Blob(uri="file:///g2", digest="sha256:" + "2" * 64)


def test_golden_frames_and_oracles_are_remembered_by_the_set_they_belong_to(tmp_path: Path) -> None:
    old, old32, new, new32 = ref("a", "old"), ref("b", "old", "FP32"), ref("c", "new"), ref("d", "new", "FP32")
    notes = remember(Remembered(), spec(primary=old, fallback=old32, oracle=old32, golden=GOLD_OLD), 1)
    wish = spec(primary=old, fallback=old32, candidate=new, oracle=new32, golden=GOLD_NEW)
    notes = remember(notes, wish, 2)
    assert notes.sets["old"].golden == GOLD_OLD
    assert notes.sets["new"].golden == GOLD_NEW
    assert notes.sets["old"].oracle == old32
    assert notes.sets["new"].oracle == new32
    assert notes.find(old.digest) == old
    write_remembered(tmp_path / "desired.json", notes)
    assert read_remembered(tmp_path / "desired.json") == notes
    (tmp_path / "desired.json").write_text("{torn")
    assert read_remembered(tmp_path / "desired.json") == Remembered()


@pytest.mark.parametrize(
    ("device_class", "fields", "reason"),
    [
        pytest.param("jetson-orin", {}, None, id="a good spec"),
        pytest.param("tpu", {}, "UnknownClass", id="a class nobody knows"),
        pytest.param("a100", {}, "UnknownClass", id="another device's class"),
        pytest.param("jetson-orin", {"policy": PolicySpec()}, "PolicyWithoutLimits", id="no limits"),
        pytest.param(
            "jetson-orin",
            {"contract_hash": "sha256:" + "0" * 64},
            "ContractChanged",
            id="another contract",
        ),
    ],
)
def test_specs_that_cannot_be_acted_on(device_class: str, fields: dict[str, object], reason: str | None) -> None:
    wish = spec(**fields).model_copy(update={"device_class": device_class})
    found = spec_problem(wish, wish.models[0], "jetson-orin")
    assert (found.reason if found is not None else None) == reason


def test_a_heartbeat_alone_is_not_worth_a_write_but_a_transition_is() -> None:
    old = NodeEngineStatus(heartbeat="a")
    assert not worth_writing(old, old.model_copy(update={"heartbeat": "b"}), 5.0)
    assert worth_writing(old, old.model_copy(update={"armed": "Yes"}), 0.0)


def test_folders_of_engines_that_are_neither_loaded_nor_wanted_go(tmp_path: Path) -> None:
    repository = ModelRepository(tmp_path / "models", tmp_path / "stage")
    (tmp_path / "model.py").write_text("x")
    for name in ("bokeh__kept", "bokeh__left"):
        repository.publish_engine(name, f'name: "{name}"', {"model.py": tmp_path / "model.py"})
    repository.write_alias("bokeh", 3, 'name: "bokeh"')
    staging = Staging(tmp_path / "artifacts")
    collect(staging, repository, Ballast(tmp_path / "ballast"), set(), frozenset({"bokeh__kept"}), 1000)
    assert repository.engines() == ("bokeh__kept",)
    assert repository.aliases() == {"bokeh": (3,)}
    assert (tmp_path / "ballast").stat().st_size > 0
