"""What a platform engineer applies and sees, in one namespace of the real API server."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from blurfleet.api.admission import LET_GO
from blurfleet.api.meta import condition
from blurfleet.api.nodeengine import NodeEngineSpec, NodeEngineStatus
from blurfleet.api.rollout import RolloutStatus
from blurfleet.errors import AdmissionRefused
from blurfleet.identity import digest_bytes
from blurfleet.store.kube import KubeStore
from blurfleet.store.port import Ref
from blurfleet_cli.cluster.kubeapi import KubeApi

EXAMPLES = [
    body
    for path in sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))
    for body in yaml.safe_load_all(path.read_text(encoding="utf-8"))
]


class Fleet:
    """Objects of one namespace, wished for by `person`, who may edit there; `store` and `api` are the administrator."""

    def __init__(self, store: KubeStore, api: KubeApi, space: str, until: Callable[..., None], person: KubeApi) -> None:
        self.store, self.api, self.space, self.until, self.person = store, api, space, until, person

    def digest(self, text: str) -> str:
        """Return the digest of an engine of this test: quarantines are of the whole cluster."""
        return digest_bytes(f"{self.space}/{text}".encode())

    def example(self, kind: str, name: str = "") -> Any:
        found = next(b for b in EXAMPLES if b["kind"] == kind and name in ("", b["metadata"]["name"]))
        body = copy.deepcopy(found)
        body["metadata"]["namespace"] = self.space
        return body

    def policies_work(self) -> bool:
        """Tell whether the admission policies judge: a restarted server refuses all until it found their kinds."""
        try:
            self.person.create(self.example("EngineSet"), dry_run=True)
        except AdmissionRefused as refusal:
            return "failed to configure policy" not in refusal.message
        return True

    def apply_examples(self, *, wave_soak: str) -> None:
        """Apply all examples: their percentages and gates, with soaks that a test has time for, over its own nodes."""
        for body in EXAMPLES:
            mine = self.example(body["kind"], body["metadata"]["name"])
            if body["kind"] == "EngineRollout":
                for wave in mine["spec"]["waves"]:
                    wave.update(soak=wave_soak)
                mine["spec"]["selector"]["matchLabels"] = {"test": self.space}
            self.person.apply(mine)

    def set(self, name: str, primary: str = "", *, base: str = "base", classes: tuple[str, ...] = ("a100",)) -> None:
        """Apply an engine set: FP32 of `base` for each class and, with `primary`, a Mixed engine of those bytes."""
        body = self.example("EngineSet", "bokeh-mixed-2")
        body["metadata"]["name"] = name
        kept = [v for v in body["spec"]["variants"] if v["target"]["class"] in classes]
        kept = [v for v in kept if primary or v["precision"] == "FP32"]
        for v in kept:
            text = f"{primary}-{v['target']['class']}" if v["precision"] != "FP32" else f"{base}-{v['target']['class']}"
            v["artifact"]["digest"] = self.digest(text)
        body["spec"]["variants"] = kept
        self.person.apply(body)

    def ground(self) -> None:
        """Apply contract and policy."""
        self.person.apply(self.example("PreprocessContract"))
        self.person.apply(self.example("QualityPolicy"))

    def let_go(self, name: str) -> None:
        """Say of a set that it may be deleted though a rollout serves it or would go back to it."""
        meta = {"name": name, "namespace": self.space}
        body = {"apiVersion": "blurfleet.dev/v1alpha1", "kind": "EngineSet", "metadata": meta}
        self.api.merge(self.api.path(body), {"metadata": {"annotations": {LET_GO: "true"}}})

    def rollout(self, engine_set: str, name: str = "bokeh", **spec: Any) -> Any:
        """Create or change a rollout: one wave over all nodes of this test, unless `spec` says otherwise."""
        body = self.example("EngineRollout")
        body["metadata"]["name"] = name
        body["spec"] = {
            "model": "bokeh",
            "engineSet": engine_set,
            "policyRef": "default",
            "selector": {"matchLabels": {"test": self.space}},
            "waves": [{"name": "all", "percent": 100, "soak": "0s"}],
            "correlation": {"nodes": 2, "window": "10m"},
            **spec,
        }
        return self.person.apply(body)

    def change(self, name: str = "bokeh", **spec: Any) -> Any:
        """Change fields of the rollout as a person would."""
        body = {"apiVersion": "blurfleet.dev/v1alpha1", "kind": "EngineRollout"}
        path = self.person.path({**body, "metadata": {"name": name, "namespace": self.space}})
        return self.person.merge(path, {"spec": spec})

    def remove(self, kind: str, name: str) -> None:
        """Delete an object of the namespace as a person would; one that is gone is left so."""
        meta = {"name": name, "namespace": self.space}
        self.person.delete({"apiVersion": "blurfleet.dev/v1alpha1", "kind": kind, "metadata": meta})

    def get(self, name: str = "bokeh") -> Any:
        return self.store.get(Ref(kind="EngineRollout", name=name, namespace=self.space))

    def status(self, name: str = "bokeh") -> RolloutStatus:
        found = self.get(name)
        assert found is not None
        return found.status

    def condition(self, name: str, kind: str) -> tuple[str, str]:
        found = condition(self.status(name).conditions, kind)
        return (found.status, found.reason.value) if found else ("", "")

    def wait_promoted(self, name: str, engine_set: str, within_s: float = 60.0) -> None:
        def promoted() -> bool:
            status = self.status(name)
            return (status.phase, status.set) == ("Promoted", engine_set)

        self.until(promoted, within_s, what=f"{engine_set} promoted")

    def node(self, name: str) -> Any:
        return self.store.get(Ref(kind="NodeEngine", name=f"{self.space}-{name}"))

    def serving(self, node: str) -> tuple[str, str, str]:
        """Return set, role and precision of what the node says it serves."""
        known = self.node(node)
        if known is None:
            return "", "", ""
        status = known.status
        assert isinstance(status, NodeEngineStatus)
        found = next((m.serving for m in status.models if m.serving is not None), None)
        return (found.set, found.role, found.precision) if found else ("", "", "")

    def wanted(self, node: str) -> str:
        """Return the digest that the node is told to serve."""
        spec = self.node(node).spec
        assert isinstance(spec, NodeEngineSpec)
        return next((m.primary.digest for m in spec.models if m.primary is not None), "")

    def said(self, name: str = "bokeh") -> list[tuple[str, str]]:
        """Return the events about the rollout: reason and message."""
        ref = Ref(kind="EngineRollout", name=name, namespace=self.space)
        return [(e.reason.value, e.message) for e in self.store.events(ref)]

    def reasons(self, name: str = "bokeh") -> list[str]:
        return [reason for reason, _ in self.said(name)]

    def table(self, plural: str) -> dict[str, str]:
        """Return the first row as kubectl shows it, by column."""
        path = f"/apis/blurfleet.dev/v1alpha1/namespaces/{self.space}/{plural}"
        found = self.api.call("GET", path, headers={"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"})
        names = [c["name"] for c in found["columnDefinitions"]]
        return dict(zip(names, (str(c) for c in found["rows"][0]["cells"]), strict=True))

    def quarantines(self) -> dict[str, str | None]:
        """Return the quarantined digests with their class."""
        return {q.spec.digest: q.spec.device_class for q in self.store.objects("EngineQuarantine")}

    def phase(self, name: str = "bokeh") -> str:
        found = self.get(name)
        return found.status.phase if found is not None else ""

    def why(self, name: str = "bokeh") -> str:
        """Return the reason that is shown for the phase."""
        return self.condition(name, "Ready")[1]

    def wait_phase(self, phase: str, reason: str = "", name: str = "bokeh", within_s: float = 60.0) -> None:
        def there() -> bool:
            return self.phase(name) == phase and reason in ("", self.why(name))

        self.until(there, within_s, what=f"{phase}/{reason}, is {self.phase(name)}/{self.why(name)}")

    def wait_serving(self, node: str, engine_set: str, role: str = "Primary", within_s: float = 60.0) -> None:
        self.until(
            lambda: self.serving(node)[:2] == (engine_set, role), within_s, what=f"{node} serves {engine_set}/{role}"
        )
