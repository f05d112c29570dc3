"""The folder store keeps what people wrote, numbers it, and never lets one bad file hide the others."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from blurfleet.api.kinds import Resource, parse_resource
from blurfleet.api.policy import PolicySpec, PolicyStatus
from blurfleet.errors import InvalidSpec, StoreError
from blurfleet.reasons import Reason
from blurfleet.store.folder import FolderStore
from blurfleet.store.port import Event, Ref

REF = Ref(kind="QualityPolicy", name="strict", namespace="default")


def policy(limit: str = "0.18", name: str = "strict") -> Resource:
    rule = {"metric": "DEER", "source": "Live", "limit": limit, "trip": {"frames": 3}}
    body = {"apiVersion": "blurfleet.dev/v1alpha1", "kind": "QualityPolicy", "metadata": {"name": name}}
    return parse_resource({**body, "spec": {"metrics": [rule]}})


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path, clock=lambda: 1_800_000_000.0)


def limit_of(resource: Resource | None) -> str | None:
    assert resource is not None
    assert isinstance(resource.spec, PolicySpec)
    return resource.spec.metrics[0].limit


def test_an_applied_object_comes_back_with_uid_generation_and_creation_time(store: FolderStore) -> None:
    stored = store.apply(policy())
    assert limit_of(stored) == "0.18"
    assert stored.meta.generation == 1
    assert len(stored.meta.uid) == 36
    assert stored.meta.creation_timestamp == "2027-01-15T08:00:00.000Z"
    assert stored.meta.namespace == "default"


def test_an_unchanged_apply_is_a_no_op_and_a_changed_spec_is_a_new_generation(
    store: FolderStore, tmp_path: Path
) -> None:
    store.apply(policy())
    path = tmp_path / "qualitypolicies/default/strict.yaml"
    before = path.stat().st_ino
    assert store.apply(policy()).meta.generation == 1
    assert path.stat().st_ino == before
    assert store.apply(policy("0.2")).meta.generation == 2


def test_a_spec_edited_by_hand_gets_a_new_generation_and_keeps_its_uid(store: FolderStore, tmp_path: Path) -> None:
    uid = store.apply(policy()).meta.uid
    path = tmp_path / "qualitypolicies/default/strict.yaml"
    path.write_text(path.read_text().replace("0.18", "0.25"))
    edited = store.get(REF)
    assert edited is not None
    assert limit_of(edited) == "0.25"
    assert (edited.meta.generation, edited.meta.uid) == (2, uid)


def test_status_lies_beside_the_spec_and_apply_leaves_it_alone(store: FolderStore, tmp_path: Path) -> None:
    store.apply(policy())
    store.write_status(REF, PolicyStatus(observed_generation=7))
    store.apply(policy("0.3"))
    found = store.get(REF)
    assert found is not None
    assert found.status == PolicyStatus(observed_generation=7)
    assert (tmp_path / "qualitypolicies/default/strict.status.yaml").exists()


def test_status_of_an_object_that_does_not_exist_is_refused(store: FolderStore) -> None:
    with pytest.raises(StoreError) as caught:
        store.write_status(REF, PolicyStatus())
    assert caught.value.reason is Reason.NOT_FOUND


@pytest.mark.parametrize(
    ("content", "reason", "words"),
    [
        pytest.param(b"spec: [", Reason.STORE_UNREADABLE, "line", id="torn YAML names the line"),
        pytest.param(b"\xff\xfe\x00", Reason.STORE_UNREADABLE, "cannot be read", id="bytes that are no text"),
        pytest.param(b"", Reason.UNPARSEABLE, "not an object", id="an empty file"),
        pytest.param(
            b"apiVersion: blurfleet.dev/v1alpha1\nkind: QualityPolicy\nmetadata: {name: bad}\n"
            b"spec: {metrics: [{metric: DEER, source: Live, limit: 0.18}]}\n",
            Reason.INVALID_SPEC,
            'write it as text: "0.18"',
            id="a limit that is a float says how to write it",
        ),
        pytest.param(
            b"apiVersion: blurfleet.dev/v1alpha1\nkind: QualityPolicy\nmetadata: {name: other}\nspec: {}\n",
            Reason.STORE_UNREADABLE,
            "its place is that of",
            id="an object under another object's name",
        ),
    ],
)
def test_a_bad_file_is_reported_by_name_and_hides_no_other(
    store: FolderStore, tmp_path: Path, content: bytes, reason: Reason, words: str
) -> None:
    store.apply(policy())
    (tmp_path / "qualitypolicies/default/bad.yaml").write_bytes(content)
    assert [r.meta.name for r in store.objects("QualityPolicy")] == ["strict"]
    (broken,) = store.broken("QualityPolicy")
    assert broken.ref.name == "bad"
    assert broken.error.reason is reason
    assert words in str(broken.error)


def test_a_broken_file_is_mended_by_applying_a_good_object(store: FolderStore, tmp_path: Path) -> None:
    store.apply(policy())
    (tmp_path / "qualitypolicies/default/strict.yaml").write_text("{{{")
    assert limit_of(store.apply(policy("0.4"))) == "0.4"


def test_an_unreadable_status_is_as_if_never_observed(store: FolderStore, tmp_path: Path) -> None:
    store.apply(policy())
    (tmp_path / "qualitypolicies/default/strict.status.yaml").write_text("observedGeneration: [")
    found = store.get(REF)
    assert found is not None
    assert found.status == PolicyStatus()


def test_an_immutable_kind_refuses_a_changed_spec(store: FolderStore) -> None:
    body = {"apiVersion": "blurfleet.dev/v1alpha1", "kind": "PreprocessContract", "metadata": {"name": "c"}}
    store.apply(parse_resource({**body, "spec": {}}))
    with pytest.raises(InvalidSpec) as caught:
        store.apply(parse_resource({**body, "spec": {"resize": "area"}}))
    assert caught.value.reason is Reason.IMMUTABLE


def test_delete_tells_whether_the_object_existed(store: FolderStore) -> None:
    store.apply(policy())
    assert store.delete(REF) is True
    assert store.delete(REF) is False
    assert store.get(REF) is None


def test_an_event_said_twice_in_a_row_is_kept_once(store: FolderStore) -> None:
    event = Event(involved=REF, reason=Reason.ACCEPTED, message="every rule can be evaluated", at=1.0)
    other = Event(involved=REF, reason=Reason.POLICY_WITHOUT_LIMITS, message="no rules", at=2.0, type="Warning")
    for e in (event, event, other, event):
        store.record(e)
    assert [e.reason for e in store.events(REF)] == [Reason.ACCEPTED, Reason.ACCEPTED, Reason.POLICY_WITHOUT_LIMITS]


def test_a_torn_event_line_is_skipped(store: FolderStore, tmp_path: Path) -> None:
    store.record(Event(involved=REF, reason=Reason.ACCEPTED, message="m", at=1.0))
    with (tmp_path / "events.jsonl").open("ab") as handle:
        handle.write(b'{"kind": "Quali')
    assert len(store.events()) == 1


def test_watch_names_the_kind_whose_file_changed(store: FolderStore) -> None:
    seen: list[frozenset[str]] = []
    started, done = threading.Event(), threading.Event()

    def follow() -> None:
        for kinds in store.watch(("QualityPolicy", "EngineSet"), done.is_set):
            seen.append(kinds)
            started.set()
            if kinds == frozenset({"QualityPolicy"}):
                done.set()

    thread = threading.Thread(target=follow)
    thread.start()
    assert started.wait(60)
    for attempt in range(600):
        store.apply(policy(f"0.{attempt + 1}"))
        if done.wait(0.1):
            break
    thread.join(60)
    assert done.is_set()
    assert seen[0] == frozenset({"QualityPolicy", "EngineSet"})
