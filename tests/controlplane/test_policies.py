"""Cross-object rules on the API server: quarantine, references of a running rollout, allowed namespaces."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from helm_python import Chart

from blurfleet.errors import AdmissionRefused, StoreError
from blurfleet.reasons import Reason
from blurfleet_cli.cluster.kubeapi import KubeApi

ROOT = Path(__file__).parents[2]
Make = Callable[..., Any]


def reduced(body: dict[str, Any], device_class: str) -> str:
    """The digest of the reduced engine for a class."""
    return next(
        str(v["artifact"]["digest"])
        for v in body["spec"]["variants"]
        if v["precision"] != "FP32" and v["target"]["class"] == device_class
    )


def refuses(call: Callable[[], Any]) -> bool:
    try:
        call()
    except AdmissionRefused:
        return True
    return False


@pytest.fixture
def quarantine(api: KubeApi, until: Make) -> Iterator[Callable[..., dict[str, Any]]]:
    made: list[dict[str, Any]] = []

    def make(digest: str, sets: tuple[str, ...] = (), **more: str) -> dict[str, Any]:
        body = {
            "apiVersion": "blurfleet.dev/v1alpha1",
            "kind": "EngineQuarantine",
            "metadata": {"name": f"q-{digest[7:19]}"},
            "spec": {"digest": digest, "reason": "DEERExceeded", **more},
        }
        api.apply(body)
        made.append(body)
        api.merge(api.path(body, "status"), {"status": {"engineSets": [f"default/{name}" for name in sets]}})
        return body

    yield make
    for body in made:
        api.delete(body)


@pytest.fixture
def engine_set(example: Make) -> dict[str, Any]:
    """A set with digests that no other test quarantines."""
    body: dict[str, Any] = example("EngineSet")
    mark = hashlib.sha256(body["metadata"]["name"].encode()).hexdigest()[:16]
    for variant in body["spec"]["variants"]:
        variant["artifact"]["digest"] = variant["artifact"]["digest"][:-16] + mark
    return body


def test_a_set_with_a_quarantined_digest_is_refused_each_time_until_it_is_lifted(
    api: KubeApi, engine_set: dict[str, Any], quarantine: Make, until: Make
) -> None:
    digest = reduced(engine_set, "a100")
    tombstone = quarantine(digest, note="edges gone on node n7")
    until(lambda: refuses(lambda: api.create(engine_set, dry_run=True)))
    for _ in range(5):
        with pytest.raises(AdmissionRefused) as refused:
            api.create(engine_set)
        said = refused.value.message
        assert f"digest {digest} is quarantined everywhere: DEERExceeded (edges gone on node n7)" in said
        assert f"delete the EngineQuarantine {tombstone['metadata']['name']} to lift it, or use another set" in said
    api.delete(tombstone)
    until(lambda: not refuses(lambda: api.create(engine_set, dry_run=True)))


def test_a_quarantine_of_one_class_leaves_the_other_alone(
    api: KubeApi, engine_set: dict[str, Any], quarantine: Make, until: Make
) -> None:
    body = quarantine(reduced(engine_set, "a100"), **{"class": "jetson-orin"})
    other = dict(engine_set)
    orin = quarantine(reduced(engine_set, "jetson-orin"), **{"class": "jetson-orin"})
    until(lambda: refuses(lambda: api.create(other, dry_run=True)))
    with pytest.raises(AdmissionRefused, match="quarantined on jetson-orin: DEERExceeded"):
        api.create(other)
    api.delete(orin)
    until(lambda: not refuses(lambda: api.create(other, dry_run=True)))
    api.delete(body)


def test_an_existing_set_may_be_reapplied_and_labelled_under_quarantine(
    api: KubeApi, engine_set: dict[str, Any], quarantine: Make, until: Make
) -> None:
    api.create(engine_set)
    quarantine(reduced(engine_set, "a100"))
    probe = {**engine_set, "metadata": {**engine_set["metadata"], "name": "another"}}
    until(lambda: refuses(lambda: api.create(probe, dry_run=True)))
    again = api.apply(engine_set)
    assert again["metadata"]["generation"] == 1
    labelled = {**engine_set, "metadata": {**engine_set["metadata"], "labels": {"team": "blur"}}}
    assert api.apply(labelled)["metadata"]["labels"] == {"team": "blur"}


def test_a_rollout_is_not_pointed_at_a_set_that_holds_a_quarantined_digest(
    api: KubeApi, example: Make, engine_set: dict[str, Any], quarantine: Make, until: Make
) -> None:
    name, digest = engine_set["metadata"]["name"], reduced(engine_set, "a100")
    running = example("EngineRollout")
    running["spec"]["engineSet"] = name
    api.create(running)
    quarantine(digest, (name,))
    fresh = example("EngineRollout")
    fresh["spec"]["engineSet"] = name
    until(lambda: refuses(lambda: api.create(fresh, dry_run=True)))
    with pytest.raises(AdmissionRefused, match=f"engine set {name} holds digest {digest}, quarantined everywhere"):
        api.create(fresh)
    # The one that already names it still takes a command, and may be pointed elsewhere but not back.
    running["spec"]["ops"] = {"abort": "now"}
    assert api.apply(running)["spec"]["ops"] == {"abort": "now"}
    running["spec"]["engineSet"] = "another"
    api.apply(running)
    running["spec"]["engineSet"] = name
    with pytest.raises(AdmissionRefused, match="use another set"):
        api.apply(running)


def test_a_rollout_of_another_class_may_use_the_set(
    api: KubeApi, example: Make, engine_set: dict[str, Any], quarantine: Make, until: Make
) -> None:
    name = engine_set["metadata"]["name"]
    quarantine(reduced(engine_set, "jetson-orin"), (name,), **{"class": "jetson-orin"})
    both, one = example("EngineRollout"), example("EngineRollout")
    for body, classes in ((both, ["a100", "jetson-orin"]), (one, ["a100"])):
        body["spec"].update(engineSet=name, selector={"classes": classes})
    until(lambda: refuses(lambda: api.create(both, dry_run=True)))
    api.create(one, dry_run=True)


@pytest.mark.parametrize(
    ("phase", "outcome"), [("Progressing", ""), ("Holding", ""), ("Stalled", ""), ("RollingBack", "RolledBack")]
)
def test_the_policy_of_a_rollout_under_way_stays(phase: str, outcome: str, api: KubeApi, example: Make) -> None:
    body = example("EngineRollout")
    api.create(body)
    status = {"phase": phase, "outcome": outcome, "set": body["spec"]["engineSet"]}
    api.merge(api.path(body, "status"), {"status": status})
    body["spec"]["policyRef"] = "laxer"
    with pytest.raises(AdmissionRefused, match=f"is {phase} under policy default, which was read at its start"):
        api.apply(body)
    body["spec"]["engineSet"] = "next"
    api.apply(body)


def test_the_policy_of_a_rollout_that_ended_may_change(api: KubeApi, example: Make) -> None:
    body = example("EngineRollout")
    api.create(body)
    status = {"phase": "Promoted", "outcome": "Promoted", "set": body["spec"]["engineSet"]}
    api.merge(api.path(body, "status"), {"status": status})
    body["spec"]["policyRef"] = "stricter"
    assert api.apply(body)["spec"]["policyRef"] == "stricter"


def test_the_policy_of_a_set_that_has_not_begun_may_change(api: KubeApi, example: Make) -> None:
    body = example("EngineRollout")
    api.create(body)
    api.merge(api.path(body, "status"), {"status": {"phase": "Stalled", "outcome": "", "set": "before"}})
    body["spec"]["policyRef"] = "stricter"
    assert api.apply(body)["spec"]["policyRef"] == "stricter"


def test_rollouts_are_made_only_in_allowed_namespaces(api: KubeApi, example: Make, until: Make) -> None:
    chart = Chart.load(ROOT / "charts/blurfleet")
    values = {"policies": {"rolloutNamespaces": ["blur", "depth"]}}
    rendered = chart.render(values, name="blurfleet", namespace="blurfleet-system")
    text = rendered["blurfleet/templates/policy-rollouts.yaml"]
    extra = [b for b in yaml.safe_load_all(text) if b["metadata"]["name"] == "blurfleet-rollout-namespaces"]
    assert len(extra) == 2
    body, earlier = example("EngineRollout"), example("EngineRollout")
    path = api.path(api.create(earlier))
    elsewhere = "may not begin or advance in namespace default; allowed: blur, depth"
    try:
        for part in extra:
            api.apply(part)
        until(lambda: refuses(lambda: api.create(body, dry_run=True)))
        with pytest.raises(AdmissionRefused, match="may not be made in namespace default; allowed: blur, depth"):
            api.create(body)
        wider = {"selector": {"classes": ["a100"]}}
        for begins in ({"engineSet": "other"}, {"ops": {"retry": "x"}}, {"ops": {"promote": "x"}}, wider):
            with pytest.raises(AdmissionRefused, match=elsewhere):
                api.merge(path, {"spec": begins})
        api.merge(path, {"spec": {"ops": {"abort": "x"}, "paused": True}})
        api.merge(path, {"metadata": {"labels": {"a": "b"}}})
    finally:
        for part in reversed(extra):
            api.delete(part)
    until(lambda: not refuses(lambda: api.create(body, dry_run=True)))


def test_a_set_that_a_rollout_serves_or_would_go_back_to_is_not_deleted(
    api: KubeApi, example: Make, until: Make
) -> None:
    bodies = {name: example("EngineSet") for name in ("served", "before", "other")}
    for body in bodies.values():
        api.create(body)
    names = {key: body["metadata"]["name"] for key, body in bodies.items()}
    rollout = example("EngineRollout")
    api.create(rollout)
    api.merge(api.path(rollout, "status"), {"status": {"keeps": [names["served"], names["before"]]}})
    for key in ("served", "before"):
        until(lambda key=key: refuses(lambda: api.call("DELETE", api.path(bodies[key]) + "?dryRun=All")))
        said = f"EngineSet {names[key]} is what EngineRollout {rollout['metadata']['name']} serves or would go back to"
        with pytest.raises(AdmissionRefused, match=said):
            api.delete(bodies[key])
    api.delete(bodies["other"])
    # A person may say that it may go; without the rollout it goes at once.
    api.merge(api.path(bodies["before"]), {"metadata": {"annotations": {"blurfleet.dev/let-go": "true"}}})
    api.delete(bodies["before"])
    api.delete(rollout)
    until(lambda: not refuses(lambda: api.delete(bodies["served"])))


def test_a_namespace_that_goes_takes_sets_in_use_along(api: KubeApi, example: Make, until: Make) -> None:
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "leaving"}}
    api.create(space)
    made, rollout = example("EngineSet"), example("EngineRollout")
    for body in (made, rollout):
        body["metadata"]["namespace"] = "leaving"
        api.create(body)
    api.merge(api.path(rollout, "status"), {"status": {"keeps": [made["metadata"]["name"]]}})
    until(lambda: refuses(lambda: api.call("DELETE", api.path(made) + "?dryRun=All")))
    api.delete(space)

    def gone() -> bool:
        try:
            api.get(space)
        except StoreError as error:
            return error.reason is Reason.NOT_FOUND
        return False

    until(gone)
