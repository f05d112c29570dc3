"""An API server that answers badly delays the operator and changes nothing of what comes out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from faulty_proxy import FAULTS, FaultyProxy
from fleet_objects import Fleet
from operator_process import OperatorProcess
from scripted_nodes import ScriptedNode

from blurfleet.errors import StoreError
from blurfleet.store.kube import KubeStore
from blurfleet.store.kubeclient import Access, KubeClient
from blurfleet_cli.cluster.identities import NAMESPACE, OPERATOR, service_account_token
from blurfleet_cli.cluster.kubeapi import KubeApi
from blurfleet_cli.cluster.plane import ControlPlane

Until = Callable[..., None]


@pytest.fixture
def proxy(plane: ControlPlane) -> Iterator[FaultyProxy]:
    with FaultyProxy(plane.url, str(plane.authority)) as started:
        yield started


@pytest.fixture
def behind(
    plane: ControlPlane, api: KubeApi, proxy: FaultyProxy, the_operator: OperatorProcess, tmp_path: Path
) -> Iterator[OperatorProcess]:
    """The operator behind the proxy; the other one must not decide meanwhile."""
    the_operator.stop()
    config = plane.write_kubeconfig(tmp_path / "kubeconfig", service_account_token(api, NAMESPACE, OPERATOR))
    config.write_text(config.read_text().replace(plane.url, proxy.url))
    process = OperatorProcess(config, tmp_path)
    process.start()
    yield process
    process.stop()


@pytest.mark.parametrize("fault", FAULTS)
def test_a_rollout_comes_through(
    fault: str, fleet: Fleet, behind: OperatorProcess, proxy: FaultyProxy, join: Callable[..., ScriptedNode]
) -> None:
    nodes = {n: join(n) for n in ("a", "b")}
    fleet.ground()
    fleet.set("good", "good")
    fleet.set("next", "next")
    fleet.rollout("good")
    fleet.wait_promoted("bokeh", "good", within_s=60)
    proxy.fault = fault
    fleet.change(engineSet="next")
    fleet.wait_promoted("bokeh", "next", within_s=90)
    proxy.fault = ""
    for name, node in nodes.items():
        fleet.wait_serving(name, "next")
        assert node.served.count(fleet.digest("next-a100")) == 1
    said = fleet.said()
    assert len(said) == len(set(said))
    fleet.until(lambda: ("Promoted", "set next is served by all 2 nodes") in fleet.said(), within_s=30)
    assert proxy.injected > 0
    assert behind.running()
    assert behind.alive()


def test_a_followed_kind_is_whole_again_after_its_history_was_compacted(
    plane: ControlPlane, proxy: FaultyProxy, fleet: Fleet, until: Until, tmp_path: Path
) -> None:
    config = tmp_path / "kubeconfig"
    config.write_text(plane.kubeconfig.read_text().replace(plane.url, proxy.url))
    with KubeStore(KubeClient(Access(kubeconfig=config)), manager="m") as store:
        store.follow("EngineSet")
        fleet.set("kept", "kept")
        fleet.set("gone", "gone")

        def names() -> set[str]:
            try:
                return {s.meta.name for s in store.objects("EngineSet") if s.meta.namespace == fleet.space}
            except StoreError:
                return set()  # away for the moment, and says so

        until(lambda: names() == {"kept", "gone"})
        proxy.fault = "gone"
        made = {"kept"}

        def broke() -> bool:
            made.add(f"more-{len(made)}")
            fleet.set(f"more-{len(made) - 1}", "more")
            return proxy.injected > 0

        until(broke, what="a watch broke and its history was gone")
        fleet.api.delete(
            {
                "apiVersion": "blurfleet.dev/v1alpha1",
                "kind": "EngineSet",
                "metadata": {"name": "gone", "namespace": fleet.space},
            }
        )
        until(lambda: names() == made)
