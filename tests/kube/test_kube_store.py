"""The store over a real API server keeps the port's promises, and says the server's own sentences."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from operator_process import OperatorProcess

from blurfleet.api.kinds import Resource, parse_resource
from blurfleet.api.meta import Condition, condition
from blurfleet.api.nodeengine import ModelStatus, NodeEngineSpec, NodeEngineStatus
from blurfleet.api.policy import PolicySpec, PolicyStatus
from blurfleet.deadline import came_true
from blurfleet.errors import InvalidSpec, StoreError
from blurfleet.reasons import Reason
from blurfleet.store.kube import KubeStore, parse_served
from blurfleet.store.kubeclient import Access, KubeClient
from blurfleet.store.port import Event, Ref
from blurfleet_cli.cluster.kubeapi import KubeApi
from blurfleet_cli.cluster.plane import ControlPlane
from blurfleet_cli.ports import free_ports

Until = Callable[..., None]


@pytest.fixture(autouse=True)
def _nobody_else_writes(the_operator: OperatorProcess) -> None:
    the_operator.stop()  # it puts right what a test writes into a node's spec


def policy(space: str, limit: str = "0.18", name: str = "strict") -> Resource:
    rule = {"metric": "DEER", "source": "Live", "limit": limit, "trip": {"frames": 3}}
    meta = {"name": name, "namespace": space}
    body = {"apiVersion": "blurfleet.dev/v1alpha1", "kind": "QualityPolicy", "metadata": meta}
    return parse_resource({**body, "spec": {"metrics": [rule]}})


def node_engine(name: str) -> Resource:
    body = {"apiVersion": "blurfleet.dev/v1alpha1", "kind": "NodeEngine", "metadata": {"name": name}}
    return parse_resource({**body, "spec": {"deviceClass": "a100"}})


def limit_of(resource: Resource | None) -> str | None:
    assert resource is not None
    assert isinstance(resource.spec, PolicySpec)
    return resource.spec.metrics[0].limit


@pytest.fixture(params=["asks", "follows"])
def store(admin_store: KubeStore, request: pytest.FixtureRequest) -> Iterator[KubeStore]:
    if request.param == "follows":
        admin_store.follow("QualityPolicy")
        admin_store.follow("NodeEngine")
    return admin_store


def test_an_applied_object_comes_back_with_uid_generation_and_creation_time(store: KubeStore, space: str) -> None:
    stored = store.apply(policy(space))
    assert limit_of(stored) == "0.18"
    assert (stored.meta.generation, len(stored.meta.uid), stored.meta.namespace) == (1, 36, space)
    assert store.get(Ref(kind="QualityPolicy", name="strict", namespace=space)) == stored


def test_an_unchanged_apply_is_a_no_op_and_a_changed_spec_is_a_new_generation(store: KubeStore, space: str) -> None:
    first = store.apply(policy(space))

    def applied() -> str:
        return store.apply(policy(space)).meta.resource_version

    # An operator of another test may say once what it thinks of the policy.
    assert came_true(lambda: applied() == applied(), 60.0)
    changed = store.apply(policy(space, "0.2"))
    assert (changed.meta.generation, changed.meta.uid) == (2, first.meta.uid)
    assert limit_of(store.get(Ref(kind="QualityPolicy", name="strict", namespace=space))) == "0.2"


def test_what_apply_no_longer_says_is_gone(store: KubeStore, space: str) -> None:
    labelled = policy(space)
    store.apply(replace(labelled, meta=labelled.meta.model_copy(update={"labels": {"team": "video"}})))
    assert store.apply(policy(space)).meta.labels == {}


def test_status_is_replaced_as_a_whole_and_apply_leaves_it_alone(store: KubeStore, space: str) -> None:
    store.apply(node_engine(f"n-{space}"))
    ref = Ref(kind="NodeEngine", name=f"n-{space}")
    model = ModelStatus(name="bokeh", guard="Monitor")
    store.write_status(ref, NodeEngineStatus(models=(model,), active="one"))
    store.write_status(ref, NodeEngineStatus(armed="Yes"))
    store.apply(node_engine(f"n-{space}"))
    found = store.get(ref)
    assert found is not None
    assert found.status == NodeEngineStatus(armed="Yes")
    assert found.meta.generation == 1
    assert store.delete(ref) is True


def test_status_of_an_object_that_does_not_exist_is_refused(store: KubeStore, space: str) -> None:
    with pytest.raises(StoreError) as caught:
        store.write_status(Ref(kind="QualityPolicy", name="none", namespace=space), PolicyStatus())
    assert caught.value.reason is Reason.NOT_FOUND


def test_delete_tells_whether_the_object_existed(store: KubeStore, space: str) -> None:
    store.apply(policy(space))
    ref = Ref(kind="QualityPolicy", name="strict", namespace=space)
    assert store.delete(ref) is True
    assert store.get(ref) is None
    assert store.delete(ref) is False


def test_a_spec_that_breaks_a_rule_is_refused_with_the_server_s_sentence(store: KubeStore, api: KubeApi) -> None:
    body = node_engine("Not-A-Name")
    with pytest.raises(InvalidSpec, match=r"metadata\.name"):
        store.apply(body)


def test_an_event_said_twice_is_one_event_at_the_time_it_happened(store: KubeStore, space: str) -> None:
    store.apply(policy(space))
    ref = Ref(kind="QualityPolicy", name="strict", namespace=space)
    said = Event(involved=ref, reason=Reason.ACCEPTED, message="fine", at=1_800_000_000.125, source="controller")
    store.record(said)
    store.record(said)
    store.record(Event(involved=ref, reason=Reason.PAUSED, message="held", at=1_800_000_001.0, type="Warning"))
    found = store.events(ref)
    assert [(e.reason, e.at, e.type) for e in found] == [
        (Reason.ACCEPTED, 1_800_000_000.125, "Normal"),
        (Reason.PAUSED, 1_800_000_001.0, "Warning"),
    ]


def test_an_event_said_again_after_a_restart_is_counted(plane: ControlPlane, space: str, api: KubeApi) -> None:
    ref = Ref(kind="QualityPolicy", name="strict", namespace=space)
    said = Event(involved=ref, reason=Reason.ACCEPTED, message="fine", at=1_800_000_000.0)
    for _ in range(2):
        with KubeStore(KubeClient(Access(kubeconfig=plane.kubeconfig)), manager="m") as one:
            one.record(said)
    items = api.call("GET", f"/api/v1/namespaces/{space}/events")["items"]
    assert [(i["reason"], i["count"]) for i in items] == [("Accepted", 2)]


def test_a_transition_said_by_one_that_was_killed_is_not_said_again_and_one_of_the_same_words_is_counted(
    plane: ControlPlane, space: str, api: KubeApi
) -> None:
    ref = Ref(kind="QualityPolicy", name="strict", namespace=space)
    path = f"/api/v1/namespaces/{space}/events"
    for transition, counts in (("a", (1, 1)), ("a", (1, 1)), ("b", (2, 2)), ("b", (2, 2))):
        with KubeStore(KubeClient(Access(kubeconfig=plane.kubeconfig)), manager="m") as one:
            for _ in range(2):
                for reason in (Reason.PAUSED, Reason.PROMOTED):
                    at = 1_800_000_000.0
                    one.record(Event(involved=ref, reason=reason, message="m", at=at, transition=transition))
            items = api.call("GET", path)["items"]
            assert {i["reason"]: i["count"] for i in items} == dict(zip(("Paused", "Promoted"), counts, strict=True))
            assert {e.transition for e in one.events(ref)} == {transition}


def test_an_event_that_the_server_forgot_is_made_anew_and_one_without_a_place_is_owed_no_longer(
    store: KubeStore, space: str, api: KubeApi
) -> None:
    ref = Ref(kind="QualityPolicy", name="strict", namespace=space)
    path = f"/api/v1/namespaces/{space}/events"
    first = Event(involved=ref, reason=Reason.ACCEPTED, message="fine", at=1_800_000_000.0)
    other = Event(involved=ref, reason=Reason.PAUSED, message="held", at=1_800_000_001.0)
    for event in (first, other):
        store.record(event)
    for item in api.call("GET", path)["items"]:  # as after an hour
        api.call("DELETE", f"{path}/{item['metadata']['name']}")
    store.record(first)
    assert [(i["reason"], i["count"]) for i in api.call("GET", path)["items"]] == [("Accepted", 1)]
    nowhere = Ref(kind="QualityPolicy", name="strict", namespace=f"{space}-gone")
    with pytest.raises(StoreError, match="not found"):
        store.record(Event(involved=nowhere, reason=Reason.ACCEPTED, message="fine", at=1_800_000_000.0))
    store.settle_events()


def test_watch_names_the_kind_that_changed_and_is_woken_by_it(store: KubeStore, space: str) -> None:
    stop, seen, first = threading.Event(), [], threading.Event()

    def follow() -> None:
        for kinds in store.watch(("QualityPolicy", "EngineSet"), stop.is_set):
            first.set()
            seen.append(kinds)
            if kinds == {"QualityPolicy"} and store.get(Ref(kind="QualityPolicy", name="strict", namespace=space)):
                stop.set()

    thread = threading.Thread(target=follow)
    thread.start()
    assert first.wait(60)
    store.apply(policy(space))
    thread.join(60)
    assert not thread.is_alive()
    assert seen[0] == {"QualityPolicy", "EngineSet"}


def test_a_server_that_is_not_there_is_a_store_error(plane: ControlPlane, tmp_path: Path) -> None:
    config = tmp_path / "kubeconfig"
    port = free_ports(1)[0]
    config.write_text(plane.kubeconfig.read_text().replace(plane.url, f"https://127.0.0.1:{port}"))
    with KubeStore(KubeClient(Access(kubeconfig=config)), manager="m") as store:
        with pytest.raises(StoreError) as caught:
            store.objects("NodeEngine")
        assert caught.value.reason is Reason.STORE_UNREADABLE
        with pytest.raises(StoreError) as refused:
            store.apply(node_engine("x"))
        assert refused.value.reason is Reason.STORE_UNWRITABLE


def test_what_a_newer_version_added_is_passed_over() -> None:
    conditions = [{"type": "Ready", "status": "True", "reason": "NewReason", "message": "so", "since": "v2"}]
    body = {
        "kind": "NodeEngine",
        "metadata": {"name": "n", "managedFields": [], "resourceVersion": "7"},
        "spec": {"deviceClass": "a100", "later": 1},
        "status": {"conditions": conditions, "later": {"x": 1}},
    }
    status = parse_served(body).status
    assert isinstance(status, NodeEngineStatus)
    said: Condition | None = condition(status.conditions, "Ready")
    assert said is not None
    assert (said.reason, said.message) == (Reason.UNEXPECTED, "NewReason: so")


def quarantined(resource: Resource, digest: str) -> Resource:
    assert isinstance(resource.spec, NodeEngineSpec)
    return replace(resource, spec=resource.spec.model_copy(update={"quarantined": (digest,)}))


def test_a_nodes_spec_is_replaced_where_the_copy_is_fresh_and_applied_where_it_was_written_meanwhile(
    admin_store: KubeStore, plane: ControlPlane
) -> None:
    name = "replaced"
    with KubeStore(KubeClient(Access(kubeconfig=plane.kubeconfig)), manager="blurfleet-operator") as store:
        store.feed("NodeEngine")
        store.relist("NodeEngine")
        made = store.apply(node_engine(name))
        fresh = store.apply(quarantined(made, "sha256:" + "1" * 64))
        assert (fresh.meta.uid, fresh.meta.generation) == (made.meta.uid, 2)
        admin_store.write_status(Ref(kind="NodeEngine", name=name), NodeEngineStatus(armed="1/1"))
        late = store.apply(quarantined(fresh, "sha256:" + "2" * 64))
        assert (late.meta.uid, late.meta.generation) == (made.meta.uid, 3)
        assert isinstance(late.spec, NodeEngineSpec)
        assert late.spec.quarantined == ("sha256:" + "2" * 64,)
        assert isinstance(late.status, NodeEngineStatus)
        assert late.status.armed == "1/1", "what another wrote meanwhile stays"
