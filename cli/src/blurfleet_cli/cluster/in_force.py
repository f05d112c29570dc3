"""Are the admission policies in force? Created is not yet: each must refuse what it is there to refuse.

All questions are dry runs. A few objects named `blurfleet-probe` stand while they are asked, as policies look at them;
no node is selected by them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from blurfleet.api.admission import LET_GO
from blurfleet.api.base import API_VERSION
from blurfleet.deadline import came_true
from blurfleet.errors import AdmissionRefused, StoreError
from blurfleet_cli.cluster.identities import AGENT, NAMESPACE, OPERATOR
from blurfleet_cli.cluster.kubeapi import KubeApi

_PROBE = "blurfleet-probe"
_KEPT = "blurfleet-probe-kept"
_QUARANTINED, _OTHER = "sha256:" + "0" * 64, "sha256:" + "1" * 64
_UNREADY = "failed to configure"
_READY_S = 60.0
Question = Callable[[], object]


@contextmanager
def questions(api: KubeApi) -> Iterator[Mapping[str, Question]]:
    """Yield for each policy of the ground a request that it refuses once it is in force. Raises StoreError."""
    tombstone = _body("EngineQuarantine", {"digest": _QUARANTINED, "reason": "Quarantined"}, namespace=None)
    kept = _set(_KEPT, _OTHER)
    rollout = _body("EngineRollout", {**_rollout(_KEPT), "selector": {"matchLabels": {_PROBE: "none"}}})
    another = _body("EngineRollout", _rollout(_PROBE), name=f"{_PROBE}-new")
    node = _body("NodeEngine", {"deviceClass": "a100"}, namespace=None)
    strange = _body("NodeEngine", {"deviceClass": "a100"}, namespace=None, name=f"{_PROBE}-new")
    try:
        for body in (tombstone, kept, rollout):
            _make(api, body)
        api.merge(api.path(tombstone, "status"), {"status": {"engineSets": [f"default/{_PROBE}"]}})
        yield {
            "blurfleet-quarantined-sets": partial(api.create, _set(_PROBE, _QUARANTINED), dry_run=True),
            "blurfleet-quarantined-rollouts": partial(api.create, another, dry_run=True),
            "blurfleet-agents": partial(api.create, strange, dry_run=True, headers=_as(AGENT)),
            "blurfleet-operator": partial(_serve_other, api, node),
            "blurfleet-rollout-references": partial(_change_policy, api, rollout),
            "blurfleet-sets-in-use": partial(_delete_kept, api, rollout, kept),
        }
    finally:
        with suppress(StoreError):  # it is not there where it could not be made
            api.merge(api.path(kept), {"metadata": {"annotations": {LET_GO: "true"}}})
        for body in (rollout, kept, node, tombstone):
            api.delete(body)


def _make(api: KubeApi, body: dict[str, Any]) -> None:
    """Apply `body`; a policy that has not learnt of its parameters' kind yet refuses everything. Raises StoreError."""

    def made() -> bool:
        try:
            api.apply(body)
        except AdmissionRefused as refusal:
            if _UNREADY not in refusal.message:
                raise
            return False
        return True

    if not came_true(made, _READY_S):
        api.apply(body)


def refuses(policy: str, question: Question) -> bool:
    """Tell whether `policy` refuses the request. Raises StoreError where something else is wrong with it."""
    try:
        question()
    except AdmissionRefused as refusal:
        # An expression that ends in an error refuses too, and is no verdict.
        words = (_UNREADY, "resulted in error")
        by = f"ValidatingAdmissionPolicy '{policy}'"
        return by in refusal.message and not any(w in refusal.message for w in words)
    return False


def _as(account: str) -> dict[str, str]:
    # As the account, but with every right: what then refuses is the policy.
    user = f"system:serviceaccount:{NAMESPACE}:{account}"
    return {"Impersonate-User": user, "Impersonate-Group": "system:masters"}


def _serve_other(api: KubeApi, probe: dict[str, Any]) -> None:
    """Say as the operator what a node serves: of one that is there, as a new one would be seen by a fleet at work."""
    there = api.call("GET", api.where(API_VERSION, "NodeEngine"), limit="1")["items"]
    name = there[0]["metadata"]["name"] if there else api.apply(probe)["metadata"]["name"]
    path = api.where(API_VERSION, "NodeEngine", name, subresource="status")
    said, content = {"status": {"active": _PROBE}}, "application/merge-patch+json"
    api.call("PATCH", path, said, content=content, headers=_as(OPERATOR), dryRun="All")


def _under_way(api: KubeApi, rollout: dict[str, Any]) -> None:
    # Said each time anew: an operator at work says otherwise.
    said = {"phase": "RollingBack", "set": _KEPT, "keeps": [_KEPT]}
    api.merge(api.path(rollout, "status"), {"status": said})


def _change_policy(api: KubeApi, rollout: dict[str, Any]) -> None:
    _under_way(api, rollout)
    api.apply({**rollout, "spec": {**rollout["spec"], "policyRef": "other"}}, dry_run=True)


def _delete_kept(api: KubeApi, rollout: dict[str, Any], kept: dict[str, Any]) -> None:
    _under_way(api, rollout)
    api.call("DELETE", api.path(kept), dryRun="All")


def _body(kind: str, spec: dict[str, Any], namespace: str | None = "default", name: str = _PROBE) -> dict[str, Any]:
    meta = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": meta, "spec": spec}


def _rollout(engine_set: str) -> dict[str, Any]:
    return {"model": _PROBE, "engineSet": engine_set, "policyRef": "default"}


def _set(name: str, digest: str) -> dict[str, Any]:
    blob = {"uri": "file:///dev/null", "digest": digest}
    variant = {
        "name": "fp32",
        "target": {"class": "a100", "runtimeVersion": "0"},
        "runtime": "none",
        "precision": "FP32",
        "artifact": blob,
        "buildRecord": blob,
    }
    return _body(
        "EngineSet", {"model": _PROBE, "contractRef": "none", "golden": blob, "variants": [variant]}, name=name
    )
