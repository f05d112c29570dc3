"""What the API server itself refuses about one object, and the sentence it says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from blurfleet.api.columns import COLUMNS
from blurfleet.api.kinds import KINDS, parse_resource
from blurfleet.errors import AdmissionRefused, InvalidSpec
from blurfleet_cli.cluster.kubeapi import KubeApi

ROOT = Path(__file__).parents[2]
Change = Callable[[dict[str, Any]], Any]


def _quarantine(name: str = "probe") -> dict[str, Any]:
    return {
        "apiVersion": "blurfleet.dev/v1alpha1",
        "kind": "EngineQuarantine",
        "metadata": {"name": name},
        "spec": {"digest": "sha256:" + "a" * 64, "reason": "DEERExceeded"},
    }


def _run(name: str) -> dict[str, Any]:
    spec = {"node": "n", "deviceClass": "a100", "model": "bokeh", "digest": "d", "stage": "Live", "verdict": "Fail"}
    body = _quarantine(name)
    return {**body, "kind": "QualityRun", "spec": {**spec, "reason": "DEERExceeded"}}


def _first(kind: str, key: str) -> Change:
    return lambda spec: spec["variants"][0][kind].pop(key)


def _rule(**fields: Any) -> Change:
    return lambda spec: spec["metrics"].insert(0, {"source": "Live", **fields})


def _waves(*waves: dict[str, Any]) -> Change:
    return lambda spec: spec.update(waves=list(waves))


TRIP = {"metric": "DEER", "limit": "0.18"}

# sentence -> kind, change of the example's spec, words of the refusal
REFUSED: dict[str, tuple[str, Change, str]] = {
    "a reduced-precision variant without FP32 for its target": (
        "EngineSet",
        lambda s: s.update(variants=[v for v in s["variants"] if v["precision"] != "FP32"]),
        "needs an FP32 variant for the same target",
    ),
    "a reduced-precision variant whose FP32 is for another runtime version": (
        "EngineSet",
        lambda s: s["variants"][0]["target"].update(runtimeVersion="10.14.0.1"),
        "needs an FP32 variant for the same target",
    ),
    "two variants of one name": (
        "EngineSet",
        lambda s: s["variants"].append(dict(s["variants"][0])),
        "Duplicate value",
    ),
    "a digest that is none": (
        "EngineSet",
        lambda s: s["variants"][0]["artifact"].update(digest="sha256:abc"),
        "not a digest; write sha256: and 64 lower-case hex digits",
    ),
    "no variants at all": ("EngineSet", lambda s: s.update(variants=[]), "should have at least 1 items"),
    "an axis whose opt is above its max": (
        "PreprocessContract",
        lambda s: s["height"].update(opt=640),
        "height needs min <= opt <= max",
    ),
    "a length off the axis's grid": (
        "PreprocessContract",
        lambda s: s["width"].update(multipleOf=32, min=300),
        "width: min, opt and max must be multiples of multipleOf",
    ),
    "a scale of zero": ("PreprocessContract", lambda s: s.update(scale="0"), "scale must be a positive decimal"),
    "a mean that is no number": (
        "PreprocessContract",
        lambda s: s.update(mean=["0.4", "half", "0.4"]),
        "mean needs three decimal numbers",
    ),
    "a standard deviation of zero": (
        "PreprocessContract",
        lambda s: s.update(std=["0.2", "0", "0.2"]),
        "std needs three positive decimal numbers",
    ),
    "a background brighter than white": (
        "PreprocessContract",
        lambda s: s.update(background=[0, 256, 0]),
        "three levels in 0..255",
    ),
    "a trip with both frames and time": (
        "QualityPolicy",
        _rule(**TRIP, trip={"frames": 3, "for": "2m"}),
        "exactly one of `frames` and `for`",
    ),
    "a trip with neither frames nor time": ("QualityPolicy", _rule(**TRIP, trip={}), "exactly one of"),
    "a window smaller than its frames": (
        "QualityPolicy",
        _rule(**TRIP, trip={"frames": 3, "window": 2}),
        "trip.window goes with trip.frames and is not smaller",
    ),
    "a window that goes with time": (
        "QualityPolicy",
        _rule(**TRIP, trip={"for": "2m", "window": 3}),
        "trip.window goes with trip.frames",
    ),
    "a gap that goes with frames": (
        "QualityPolicy",
        _rule(**TRIP, trip={"frames": 3, "maxGap": "1s"}),
        "trip.maxGap goes with trip.for",
    ),
    "a sentinel with a limit": (
        "QualityPolicy",
        _rule(metric="NonFinite", limit="0.1"),
        "NonFinite is a sentinel and takes no limit",
    ),
    "a metric without its limit": ("QualityPolicy", _rule(metric="SSIM"), "SSIM needs a limit"),
    "an unknown metric": ("QualityPolicy", _rule(metric="SIMM", limit="1"), 'supported values: "NonFinite"'),
    "a limit that is no decimal": (
        "QualityPolicy",
        _rule(metric="SSIM", limit="85%"),
        'not a decimal number; write it as text, for example \\"0.0035\\"',
    ),
    "a limit that is a number": ("QualityPolicy", _rule(metric="SSIM", limit=0.85), "must be of type string"),
    "an empty duration": ("QualityPolicy", lambda s: s.update(staleAfter=""), "should be at least 1 chars long"),
    "wave percentages that shrink": (
        "EngineRollout",
        _waves({"name": "a", "percent": 50}, {"name": "b", "percent": 20}),
        "wave percentages must not decrease",
    ),
    "a wave of both nodes and percent": (
        "EngineRollout",
        _waves({"name": "a", "percent": 50, "nodes": ["n1"]}),
        "wave a needs exactly one of `percent` and `nodes`",
    ),
    "a wave of neither nodes nor percent": ("EngineRollout", _waves({"name": "a"}), "wave a needs exactly one of"),
    "two waves of one name": (
        "EngineRollout",
        _waves({"name": "a", "percent": 50}, {"name": "a", "percent": 100}),
        "Duplicate value",
    ),
    "a last wave that is not everybody": (
        "EngineRollout",
        _waves({"name": "a", "percent": 50}),
        "the last wave must be 100 percent or name its nodes",
    ),
    "a soak that is no duration": (
        "EngineRollout",
        _waves({"name": "a", "percent": 100, "soak": "5 minutes"}),
        "not a duration; write for example 250ms, 90s, 2m or 1h30m",
    ),
    "more than 100 percent": ("EngineRollout", _waves({"name": "a", "percent": 101}), "less than or equal to 100"),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED.keys())
def test_refused_with_a_sentence(case: tuple[str, Change, str], api: KubeApi, example: Callable[..., Any]) -> None:
    kind, change, words = case
    body = example(kind)
    api.create(body, dry_run=True)
    change(body["spec"])
    with pytest.raises(AdmissionRefused) as refused:
        api.create(body, dry_run=True)
    assert words.replace('\\"', '"') in refused.value.message.replace('\\"', '"')


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED.keys())
def test_the_models_refuse_the_same(case: tuple[str, Change, str], example: Callable[..., Any]) -> None:
    kind, change, _ = case
    body = example(kind)
    change(body["spec"])
    with pytest.raises(InvalidSpec):
        parse_resource(body)


def test_unknown_field_is_refused_when_asked_strictly(api: KubeApi, example: Callable[..., Any]) -> None:
    body = example("EngineRollout")
    body["spec"]["wave"] = []
    with pytest.raises(AdmissionRefused, match="unknown field"):
        api.call("POST", api.where(body["apiVersion"], body["kind"]), body, fieldValidation="Strict", dryRun="All")


def test_immutable_kinds_take_labels_but_no_other_spec(api: KubeApi, example: Callable[..., Any]) -> None:
    changes: dict[str, tuple[dict[str, Any], Change]] = {
        "EngineSet": (example("EngineSet"), lambda s: s["variants"][0].update(memoryBytes=1)),
        "PreprocessContract": (example("PreprocessContract"), lambda s: s.update(colorOrder="BGR")),
        "QualityRun": (_run("immutable"), lambda s: s.update(verdict="Pass")),
    }
    for kind, (body, change) in changes.items():
        stored = api.create(body)
        stored["metadata"]["labels"] = {"seen": "true"}
        stored = api.replace(stored)
        assert stored["metadata"]["generation"] == 1
        change(stored["spec"])
        with pytest.raises(AdmissionRefused, match=f"{kind} is immutable; create one with another name"):
            api.replace(stored)


def test_a_rollout_keeps_its_model(api: KubeApi, example: Callable[..., Any]) -> None:
    stored = api.create(example("EngineRollout"))
    stored["spec"]["model"] = "depth"
    with pytest.raises(AdmissionRefused, match="model cannot change; create another EngineRollout"):
        api.replace(stored)


@pytest.mark.parametrize(
    "change", [{"digest": "sha256:" + "b" * 64}, {"class": "a100"}], ids=["another digest", "another class"]
)
def test_a_quarantine_cannot_become_another(api: KubeApi, change: dict[str, str]) -> None:
    body = _quarantine("fixed")
    stored = api.apply(body)
    stored["spec"].update(change)
    with pytest.raises(AdmissionRefused, match="digest and class of a quarantine cannot change"):
        api.replace(stored)
    api.delete(body)


def test_a_quarantine_ends_at_a_time_or_not_at_all(api: KubeApi) -> None:
    body = _quarantine("expiring")
    body["spec"]["expiry"] = "tomorrow"
    with pytest.raises(AdmissionRefused, match="expiry is not a time; write for example 2030"):
        api.create(body, dry_run=True)
    body["spec"]["expiry"] = "2030-01-31T12:00:00Z"
    api.create(body, dry_run=True)


def test_defaults_are_filled_in_as_the_models_have_them(api: KubeApi, example: Callable[..., Any]) -> None:
    body = example("EngineRollout")
    body["spec"] = {"model": "bokeh", "engineSet": "s", "policyRef": "p"}
    stored = api.create(body, dry_run=True)
    assert stored["spec"]["waves"] == [{"name": "all", "percent": 100, "nodes": [], "soak": "0s", "gate": "Auto"}]
    assert parse_resource(stored).spec == parse_resource(body).spec


def test_examples_are_accepted_and_read_back_the_same(api: KubeApi) -> None:
    paths = sorted((ROOT / "examples").glob("**/*.yaml"))
    bodies = [body for path in paths for body in yaml.safe_load_all(path.read_text(encoding="utf-8"))]
    assert len(bodies) >= 5
    for body in bodies:
        assert parse_resource(api.apply(body)).spec == parse_resource(body).spec


@pytest.mark.parametrize("name", KINDS)
def test_status_is_written_apart_and_columns_are_shown(name: str, api: KubeApi, example: Callable[..., Any]) -> None:
    bodies: dict[str, dict[str, Any]] = {
        "EngineQuarantine": _quarantine("columns"),
        "QualityRun": _run("columns"),
        "NodeEngine": {**_quarantine("columns"), "kind": "NodeEngine", "spec": {"deviceClass": "a100"}},
    }
    body = bodies[name] if name in bodies else example(name)
    stored = api.create({**body, "status": {"observedGeneration": 7}})
    assert "status" not in stored
    seen = api.merge(api.path(stored, "status"), {"status": {"observedGeneration": 1}, "spec": {"model": "x"}})
    assert seen["status"]["observedGeneration"] == 1
    assert seen["spec"] == stored["spec"]
    table = api.call("GET", api.path(stored), headers={"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"})
    shown = [c["name"] for c in table["columnDefinitions"]]
    assert shown[1:] == [c.name for c in COLUMNS[name]]
    api.delete(stored)
