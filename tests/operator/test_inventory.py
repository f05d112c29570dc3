"""Which Node is of which class, and what its NodeEngine says of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from blurfleet.api.kinds import Resource
from blurfleet.api.meta import Owner
from blurfleet.api.nodeengine import NodeEngineSpec, NodeModel
from blurfleet_operator.inventory import class_of, owned, register
from blurfleet_operator.settings import DEFAULT_CLASSES, OperatorSettings

A100 = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}
ORIN = {"nvidia.com/gpu.compute.major": "8", "nvidia.com/gpu.compute.minor": "7"}


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        pytest.param(A100, "a100", id="an A100 by its product"),
        pytest.param(ORIN, "jetson-orin", id="an Orin by its compute capability"),
        pytest.param({"nvidia.com/gpu.product": "Orin"}, "jetson-orin", id="an Orin by its product"),
        pytest.param({**A100, "blurfleet.dev/class": "jetson-orin"}, "jetson-orin", id="a person's word goes first"),
        pytest.param({"nvidia.com/gpu.compute.major": "8"}, None, id="half of a rule is no match"),
        pytest.param({"nvidia.com/gpu.product": "NVIDIA-H200"}, None, id="a device of no class"),
        pytest.param({}, None, id="a node without labels"),
    ],
)
def test_class_of(labels: dict[str, str], expected: str | None) -> None:
    assert class_of(labels, DEFAULT_CLASSES) == expected


def node(labels: dict[str, str], **meta: Any) -> dict[str, Any]:
    return {"metadata": {"name": "n1", "uid": "u1", "labels": labels, **meta}}


def test_a_new_node_gets_a_node_engine_that_goes_with_it() -> None:
    (found,) = register([node(A100)], [], DEFAULT_CLASSES)
    assert found.resource.meta.owner_references == (Owner(api_version="v1", kind="Node", name="n1", uid="u1"),)
    assert found.resource.meta.labels == A100
    assert found.resource.spec == NodeEngineSpec(device_class="a100")


def test_nothing_is_written_where_nothing_changed() -> None:
    (found,) = register([node(A100)], [], DEFAULT_CLASSES)
    assert register([node(A100)], [found.resource], DEFAULT_CLASSES) == ()


def test_another_class_is_told_nothing_and_other_labels_keep_the_models() -> None:
    (first,) = register([node(A100)], [], DEFAULT_CLASSES)
    told = NodeEngineSpec(device_class="a100", models=(NodeModel(name="bokeh"),))
    old = first.resource.__class__(kind="NodeEngine", meta=first.resource.meta, spec=told, status=first.resource.status)
    (moved,) = register([node(ORIN)], [old], DEFAULT_CLASSES)
    assert moved.resource.spec == NodeEngineSpec(device_class="jetson-orin")
    (relabelled,) = register([node({**A100, "zone": "b"})], [old], DEFAULT_CLASSES)
    assert (moved.moved, relabelled.moved) == (old, None)
    assert relabelled.resource.spec == told
    assert relabelled.resource.meta.labels["zone"] == "b"


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(node({}), id="a node that lost its labels"),
        pytest.param(node(A100, deletionTimestamp="2026-01-01T00:00:00Z"), id="a node that is being deleted"),
    ],
)
def test_is_left_as_it_is(body: dict[str, Any]) -> None:
    (first,) = register([node(A100)], [], DEFAULT_CLASSES)
    assert register([body], [first.resource], DEFAULT_CLASSES) == ()


def test_classes_may_be_set_by_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLURFLEET_CLASSES", '[{"class": "a100", "labels": {"pool": "gpu-*"}}]')
    assert class_of({"pool": "gpu-7"}, OperatorSettings().classes) == "a100"


def written(old: Resource, **meta: Any) -> Resource:
    """What the server holds after others wrote to the object too."""
    return replace(old, meta=old.meta.model_copy(update=meta))


def test_what_others_put_on_a_node_engine_is_theirs_and_nothing_is_written_for_it() -> None:
    (first,) = register([node(A100)], [], DEFAULT_CLASSES)
    meta = first.resource.meta
    other = Owner(api_version="v1", kind="ConfigMap", name="x", uid="u9")
    theirs = written(
        first.resource,
        labels={**A100, "team": "blur"},
        annotations={**meta.annotations, "note": "x"},
        owner_references=(*(meta.owner_references or ()), other),
    )
    assert register([node(A100)], [theirs], DEFAULT_CLASSES) == ()
    assert (owned(theirs.meta).labels, owned(theirs.meta).annotations) == (A100, meta.annotations)


def test_a_label_that_the_node_lost_or_somebody_changed_is_put_right() -> None:
    (first,) = register([node({**A100, "zone": "b"})], [], DEFAULT_CLASSES)
    (lost,) = register(
        [node(A100)], [written(first.resource, labels={**A100, "zone": "b", "team": "blur"})], DEFAULT_CLASSES
    )
    assert lost.resource.meta.labels == A100
    assert owned(lost.resource.meta).labels == A100
    (changed,) = register(
        [node(A100)], [written(lost.resource, labels={"nvidia.com/gpu.product": "x"})], DEFAULT_CLASSES
    )
    assert changed.resource.meta.labels == A100


def test_a_node_engine_that_cannot_be_read_is_not_made_anew() -> None:
    assert register([node(A100)], [], DEFAULT_CLASSES, unreadable={"n1"}) == ()
