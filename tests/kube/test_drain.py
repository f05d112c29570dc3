"""A node whose FP32 engines fail golden frames, on the real server: whether, and how long, it is told to drain."""

from __future__ import annotations

from collections.abc import Callable

from fleet_objects import Fleet
from scripted_nodes import ScriptedNode

from blurfleet.api.meta import Condition
from blurfleet.api.nodeengine import CandidatePhase, NodeEngineStatus
from blurfleet.reasons import Reason
from blurfleet.store.port import Ref
from blurfleet_cli.cluster.kubeapi import KubeApi


def says(node: ScriptedNode, phase: CandidatePhase, *, passes: bool) -> None:
    """Write what the agent would: how far the candidate came, and whether oracle and standby pass golden frames."""
    me = Ref(kind="NodeEngine", name=node.name)
    found = node.store.get(me)
    assert found is not None
    assert isinstance(found.status, NodeEngineStatus)
    [model] = found.status.models
    assert model.candidate is not None
    candidate = model.candidate.model_copy(update={"phase": phase, "oracle_passed": passes})
    standby = Condition(type="FallbackReady", status="True" if passes else "False", reason=Reason.GOLDEN_FAILED)
    model = model.model_copy(update={"candidate": candidate, "conditions": (standby,)})
    node.store.write_status(me, found.status.model_copy(update={"models": (model,)}))


def test_a_broken_node_is_drained_while_another_answers_and_comes_back_once_its_standby_passes(
    fleet: Fleet, started: dict[str, ScriptedNode], api: KubeApi, until: Callable[..., None]
) -> None:
    new = fleet.digest("naive-a100")
    for node in started.values():
        node.script.staging.add(new)

    def told(node: ScriptedNode) -> dict[str, object]:
        path = f"/apis/blurfleet.dev/v1alpha1/nodeengines/{node.name}"
        model: dict[str, object] = api.call("GET", path)["spec"]["models"][0]
        return model

    def tried() -> list[ScriptedNode]:
        return [
            n
            for n in started.values()
            if any(m.candidate for m in fleet.store.get(Ref(kind="NodeEngine", name=n.name)).status.models)
        ]

    fleet.set("naive", "naive")
    fleet.change(engineSet="naive")
    until(lambda: bool(tried()), what="a node tries the set")
    broken = tried()[0]
    other = next(n for n in started.values() if n is not broken)
    broken.stop()  # from here on it says what is written for it
    until(lambda: not broken._thread.is_alive(), what="it writes nothing by itself any more")
    says(broken, "GoldenFailed", passes=False)
    until(lambda: told(broken).get("drained") is True, what="drained")
    until(lambda: fleet.condition("bokeh", "NodesHealthy") == ("False", "NodeSuspect"), what="named")
    assert "drained" not in told(other)
    assert fleet.digest("naive-a100") not in fleet.quarantines()
    says(broken, "Golden", passes=False)
    until(lambda: fleet.status().drained == (), what="tried again")
    assert told(broken)["drained"] is True
    assert fleet.condition("bokeh", "NodesHealthy") == ("False", "NodeSuspect")
    says(broken, "Golden", passes=True)
    until(lambda: "drained" not in told(broken), what="takes clients again")
    until(lambda: fleet.condition("bokeh", "NodesHealthy")[0] == "True", what="healthy again")
