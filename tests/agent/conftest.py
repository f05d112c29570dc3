"""A node on the real Triton: one server per module, a fresh node folder, store and alias per test."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import yaml
from numpy.typing import NDArray
from tests.agent.tiny import CONTRACT, SIZE, Shelf

from blurfleet.api.kinds import Resource
from blurfleet.api.meta import Condition, ObjectMeta, condition
from blurfleet.api.nodeengine import ModelStatus, NodeEngineSpec, NodeEngineStatus, NodeModel
from blurfleet.cache import cache_dir
from blurfleet.contract import contract_hash
from blurfleet.errors import BlurfleetError
from blurfleet.quality.rules import default_policy
from blurfleet.serving.framecodec import FrameKind, FrameSample
from blurfleet.serving.frames import FrameSender
from blurfleet.serving.routing import Route, read_routing
from blurfleet.serving.triton import InferResult, TritonClient
from blurfleet.store.folder import FolderStore
from blurfleet.store.layout import files_of
from blurfleet.store.port import Ref
from blurfleet_agent.main import RunningNode, agent
from blurfleet_agent.settings import AgentSettings
from blurfleet_agent.tritonenv import TritonEnvironment, ensure_environment
from blurfleet_agent.tritonserver import TritonServer, TritonSettings, new_key, new_shm_prefix, pick_ports

NODE = "orin-0"
REF = Ref(kind="NodeEngine", name=NODE)
_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def triton_environment() -> TritonEnvironment:
    """The built environment; the first run on a machine builds it."""
    return ensure_environment(cache_dir())


@pytest.fixture(scope="module")
def server(triton_environment: TritonEnvironment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    """A running Triton with an empty repository."""
    folder = tmp_path_factory.mktemp("triton")
    (folder / "models").mkdir()
    settings = TritonSettings(
        model_repository=folder / "models", key=new_key(), ports=pick_ports(), shm_prefix=new_shm_prefix()
    )
    with TritonServer(triton_environment, settings, log=folder / "triton.log") as running:
        running.wait_ready(60.0)
        yield running
        running.kill()  # a stop in order takes 1 to 3 s, and has tests of its own


class Site:
    """One test's node: store, folders, and the questions a test asks."""

    def __init__(self, folder: Path, server: TritonServer) -> None:
        self.folder = folder
        self.server = server
        self.alias = f"bokeh{next(_numbers)}"
        self.store = FolderStore(folder / "store")
        (folder / "shelf").mkdir()
        self.shelf = Shelf(folder=folder / "shelf")
        self.settings = AgentSettings(
            node=NODE,
            device_class="jetson-orin",
            node_dir=folder / "node",
            store=folder / "store",
            triton_grpc=server.grpc_address,
            triton_key=server.settings.key,
            model_repository=server.settings.model_repository,
            simulated=True,
            metrics_port=0,
            sample_share=1.0,
            sample_hz=200.0,
            tick_s=0.1,
            load_timeout_s=20.0,
            load_attempts=2,
            retry_back_off_s=0.2,
            memory_reserve_bytes=0,
            storage_reserve_bytes=0,
            unload_after_s=0.5,
        )
        self.client = TritonClient(server.grpc_address)
        self._frame = itertools.count(1)

    def want(self, model: NodeModel, *, device_class: str = "jetson-orin", quarantined: tuple[str, ...] = ()) -> None:
        """Write the NodeEngine as the operator would."""
        spec = NodeEngineSpec(device_class=device_class, models=(model,), quarantined=quarantined)
        status = NodeEngineStatus()
        self.store.apply(Resource(kind="NodeEngine", meta=ObjectMeta(name=NODE), spec=spec, status=status))

    def write_past_admission(self, model: NodeModel, *, device_class: str = "jetson-orin") -> None:
        """Write a spec that admission would refuse: one from before the rule, or written by hand."""
        spec = NodeEngineSpec(device_class=device_class, models=(model,))
        meta = ObjectMeta(name=NODE)
        body = Resource(kind="NodeEngine", meta=meta, spec=spec, status=NodeEngineStatus()).wire()
        self.spec_file.write_text(yaml.safe_dump(body))

    @property
    def spec_file(self) -> Path:
        """Where a person would edit the NodeEngine."""
        return files_of(self.folder / "store", REF).spec

    @property
    def status_file(self) -> Path:
        """Where the agent's status lies."""
        return files_of(self.folder / "store", REF).status

    def model(self, **fields: object) -> NodeModel:
        """Return this test's model with the contract filled in."""
        values = {
            "name": self.alias,
            "attempt": "a1",
            "contract": CONTRACT,
            "contract_hash": contract_hash(CONTRACT),
            "policy": default_policy().model_copy(update={"shadow_samples": 5}),
            "policy_name": "default",
        }
        return NodeModel.model_validate({**values, **fields})

    @contextmanager
    def running(self) -> Iterator[RunningNode]:
        """Run the agent on a thread of this process."""
        stop = threading.Event()
        with agent(self.settings, store=self.store) as node:
            thread = threading.Thread(target=node.run, args=(stop.is_set,), daemon=True)
            thread.start()
            try:
                yield node
            finally:
                stop.set()
                node.wake()
                thread.join(30.0)
                assert not thread.is_alive()

    def status(self) -> NodeEngineStatus:
        """Return the node's status as written."""
        found = self.store.get(REF)
        assert found is not None
        assert isinstance(found.status, NodeEngineStatus)
        return found.status

    def model_status(self) -> ModelStatus | None:
        """Return this model's status, None before the first one."""
        return next((m for m in self.status().models if m.name == self.alias), None)

    def condition(self, kind: str) -> Condition | None:
        """Return a condition of the model, else of the node."""
        found = self.model_status()
        mine = condition(found.conditions, kind) if found is not None else None
        return mine or condition(self.status().conditions, kind)

    def serves(self, digest: str, role: str = "Primary") -> bool:
        """Tell whether status and routing file agree that `digest` serves in `role`."""
        found, route = self.model_status(), self.route()
        if found is None or found.serving is None or route is None:
            return False
        told = (found.serving.digest, found.serving.role, found.serving.epoch)
        return told == (digest, role, route.epoch) == (route.active.digest, route.serving, route.epoch)

    def route(self) -> Route | None:
        """Return this model's route."""
        return read_routing(self.settings.routing_file).models.get(self.alias)

    def ask(self, tensor: NDArray[np.float32]) -> InferResult:
        """Ask the alias as a client would."""
        return self.client.infer(self.alias, tensor, timeout_s=30.0)

    def answers(self) -> int:
        """Return the epoch that the alias answers at, 0 where it does not."""
        try:
            return self.ask(np.zeros((1, 3, SIZE, SIZE), np.float32)).model_version
        except BlurfleetError:
            return 0

    def second_triton(self) -> TritonSettings:
        """Return settings for a Triton of this test's own, and let agent and client talk to that one."""
        models = self.folder / "models"
        models.mkdir()
        ports = pick_ports()
        settings = TritonSettings(
            model_repository=models, key=self.server.settings.key, ports=ports, shm_prefix=new_shm_prefix()
        )
        address = f"127.0.0.1:{ports.grpc}"
        self.settings = self.settings.model_copy(update={"triton_grpc": address, "model_repository": models})
        self.client.close()
        self.client = TritonClient(address)
        return settings

    def phase(self) -> str:
        """Return the candidate's phase."""
        found = self.model_status()
        return found.candidate.phase if found is not None and found.candidate is not None else ""

    def frame(self, tensor: NDArray[np.float32], sender: FrameSender, stream: str = "cam") -> NDArray[np.float32]:
        """Answer one frame as the gateway does and tell the agent; returns the matte."""
        route = self.route()
        assert route is not None
        matte = self.client.infer(route.active.engine, tensor, timeout_s=30.0).matte
        bad = not bool(np.isfinite(matte).all())
        flat = float(np.ptp(matte)) <= 0.02 if not bad else False
        kind = FrameKind.WITHHELD if bad else FrameKind.SUSPECT if flat else FrameKind.SAMPLE
        sender.offer(
            FrameSample(
                model=self.alias,
                stream=stream,
                frame_id=next(self._frame),
                epoch=route.epoch,
                engine=route.active.engine,
                digest=route.active.digest,
                at=time.time(),
                tensor=tensor,
                matte=matte,
                kind=kind,
                reason="NonFiniteOutput" if bad else "CollapsedOutput" if flat else "",
                trace_id="4bf92f3577b34da6a3ce929d0e0e4736",
            )
        )
        return matte


@pytest.fixture
def site(tmp_path: Path, server: TritonServer) -> Iterator[Site]:
    """A fresh node beside the module's Triton."""
    made = Site(tmp_path, server)
    yield made
    made.client.close()
