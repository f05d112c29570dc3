"""One real control plane per session with the chart's ground, and what acts on it by its own account."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from blurfleet.deadline import came_true
from blurfleet.store.kube import KubeStore
from blurfleet.store.kubeclient import Access, KubeClient
from blurfleet.store.port import ref_of
from blurfleet_cli.cluster.ground import install
from blurfleet_cli.cluster.identities import NAMESPACE, OPERATOR, ensure_node, node_token, service_account_token
from blurfleet_cli.cluster.kubeapi import KubeApi
from blurfleet_cli.cluster.plane import ControlPlane

sys.path.insert(0, str(Path(__file__).parent))

from fleet_objects import Fleet
from operator_process import OperatorProcess
from people import token_of
from scripted_nodes import ScriptedNode

LABELS = {
    "a100": {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"},
    "jetson-orin": {"nvidia.com/gpu.compute.major": "8", "nvidia.com/gpu.compute.minor": "7"},
}
ROOT = Path(__file__).parents[2]
# No test waits for 90 s of silence. Before a keen operator nodes beat each 2 to 2.5 s, real agents each 2: a beat may
# be 5 s late on a loaded machine. Turns must be closer than the silence: who listens less often begins anew each time.
KEEN = {"BLURFLEET_SILENT_AFTER_S": "8", "BLURFLEET_RESYNC_S": "2"}
KEEN_BEAT_S, BEAT_S = 2.0, 10.0
_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with ControlPlane(tmp_path_factory.mktemp("plane"), audit=True) as started:
        admin = started.admin()
        install(admin, ROOT)
        admin.close()
        yield started


@pytest.fixture
def api(plane: ControlPlane) -> Iterator[KubeApi]:
    admin = plane.admin()
    yield admin
    admin.close()


@pytest.fixture
def space(api: KubeApi) -> str:
    """A namespace that nobody else has."""
    name = f"space-{next(_numbers)}"
    api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    return name


@pytest.fixture
def admin_store(plane: ControlPlane) -> Iterator[KubeStore]:
    """The store as the administrator sees it: a platform engineer with kubectl."""
    with KubeStore(KubeClient(Access(kubeconfig=plane.kubeconfig)), manager="blurfleet-test") as store:
        yield store


@pytest.fixture(scope="session")
def until() -> Callable[..., None]:
    """Waits for a condition: the one place with a deadline."""

    def wait(holds: Callable[[], bool], within_s: float = 60.0, what: str = "") -> None:
        assert came_true(holds, within_s), f"did not come true in time: {what}"

    return wait


@pytest.fixture(scope="session")
def the_operator(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    folder = tmp_path_factory.mktemp("operator")
    api = plane.admin()
    token = service_account_token(api, NAMESPACE, OPERATOR)
    api.close()
    process = OperatorProcess(plane.write_kubeconfig(folder / "operator.kubeconfig", token), folder)
    yield process
    process.stop()


@pytest.fixture
def operator(the_operator: OperatorProcess) -> OperatorProcess:
    """The real operator as a process under the chart's account, no administrator; started again if a test ended it."""
    if not the_operator.running():
        the_operator.start()
    return the_operator


@pytest.fixture
def person_of(plane: ControlPlane, api: KubeApi) -> Iterator[Callable[[str], KubeApi]]:
    """Who holds Kubernetes' own `edit` in a namespace, reads the cluster, and is nothing more."""
    made: list[KubeApi] = []

    def make(space: str) -> KubeApi:
        made.append(plane.client(token_of(api, space, "edit")))
        return made[-1]

    yield make
    for client in made:
        client.close()


@pytest.fixture
def person(person_of: Callable[[str], KubeApi], space: str) -> KubeApi:
    """Who may edit in the test's own namespace."""
    return person_of(space)


@pytest.fixture
def keen(the_operator: OperatorProcess) -> Iterator[OperatorProcess]:
    """The operator where nodes are silent after 8 s."""
    the_operator.stop()
    the_operator.settings |= KEEN
    the_operator.start()
    yield the_operator
    the_operator.stop()
    for name in KEEN:
        del the_operator.settings[name]


@pytest.fixture
def fleet(
    admin_store: KubeStore, api: KubeApi, person: KubeApi, space: str, until: Callable[..., None]
) -> Iterator[Fleet]:
    """Objects of one namespace; a rollout left behind would own the nodes of the next test."""
    made = Fleet(admin_store, api, space, until, person)
    until(made.policies_work, within_s=90.0, what="the admission policies judge")
    yield made
    for rollout in admin_store.objects("EngineRollout"):
        if rollout.meta.namespace == space:
            admin_store.delete(ref_of(rollout))


@pytest.fixture
def join(
    plane: ControlPlane, api: KubeApi, tmp_path: Path, space: str, the_operator: OperatorProcess
) -> Iterator[Callable[..., ScriptedNode]]:
    """Makes a Node with the labels of its class and a status writer with the token its agent's pod would hold.

    Before a keen operator it beats more often.
    """
    made: list[ScriptedNode] = []

    def make(suffix: str, device_class: str = "a100", **labels: str) -> ScriptedNode:
        name = f"{space}-{suffix}"
        ensure_node(api, name, {"test": space, **LABELS[device_class], **labels})
        config = plane.write_kubeconfig(tmp_path / f"{name}.kubeconfig", node_token(api, name))
        beat_s = KEEN_BEAT_S if the_operator.settings.keys() >= KEEN.keys() else BEAT_S
        made.append(ScriptedNode(name, device_class, Access(kubeconfig=config), beat_s=beat_s).start())
        return made[-1]

    yield make
    for node in made:
        node.stop()
    for node in made:
        node.close()
        api.delete({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node.name}})


@pytest.fixture
def started(fleet: Fleet, operator: OperatorProcess, join: Callable[..., ScriptedNode]) -> dict[str, ScriptedNode]:
    """Two a100 nodes on which set `good` is promoted."""
    nodes = {n: join(n) for n in ("a", "b")}
    fleet.ground()
    fleet.set("good", "good")
    fleet.rollout("good")
    fleet.wait_promoted("bokeh", "good")
    for name in nodes:
        fleet.wait_serving(name, "good")
    return nodes
