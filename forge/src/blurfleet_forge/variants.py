"""One variant: from a form of the network to an engine, its measured errors, its record, its entry in a set."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import prod
from pathlib import Path

import onnx

from blurfleet.api.base import Precision
from blurfleet.api.engineset import Blob, Variant
from blurfleet.api.meta import timestamp
from blurfleet.api.record import BuildRecord, ErrorFigures, PrecisionMap, Serving, Source, SupportFile, Target, Tensor
from blurfleet.check import dumps
from blurfleet.errors import EngineError
from blurfleet.identity import digest_bytes, model_id
from blurfleet.reasons import Reason
from blurfleet_forge.artifacts import Artifacts
from blurfleet_forge.backends.base import Backend, EngineJob, ServingPlan
from blurfleet_forge.backends.onnxruntime import Session
from blurfleet_forge.figures import measure, summarize
from blurfleet_forge.fold import to_bytes
from blurfleet_forge.macs import shapes_of
from blurfleet_forge.maps import load_map, map_path, recorded
from blurfleet_forge.precision import Halves, emulated_graph, spread_exact
from blurfleet_forge.recipe import BuildTarget, Reduced, Stem
from blurfleet_forge.stem import REDUCTIONS
from blurfleet_forge.workpiece import Workpiece

PRECISIONS: dict[Reduced, Precision] = {"none": "FP32", "naive-fp16": "FP16", "mixed": "Mixed", "int8": "INT8"}


@dataclass(frozen=True, kw_only=True)
class Form:
    """What a variant computes: its reduced precision, its stem, and the target whose limit it answers to."""

    reduced: Reduced
    stem: Stem | None
    target: BuildTarget

    @property
    def name(self) -> str:
        """The variant's name inside its set, for example `jetson-orin-mixed`."""
        return f"{self.target.device_class}-{'fp32' if self.reduced == 'none' else self.reduced}"


@dataclass(frozen=True, kw_only=True)
class Cut:
    """The graph a form starts from, the nodes it computes in FP16, and that map as the record holds it."""

    graph: onnx.ModelProto
    fp16_nodes: frozenset[str]
    halves: Halves
    recorded_map: PrecisionMap | None


def cut(piece: Workpiece, form: Form, recipe_path: Path) -> Cut:
    """Return graph and map of `form`. Raises EngineError (MapMissing, MapStale) for a mixed form without its map."""
    graph = piece.int8(form.stem) if form.reduced == "int8" else piece.network(form.stem)
    if form.reduced == "naive-fp16":
        nodes = frozenset(n.name for n in graph.graph.node)
        whole = PrecisionMap(size=piece.recipe.size, fp16_mac_share=1.0, fp16_node_share=1.0)
        return Cut(graph=graph, fp16_nodes=nodes, halves={}, recorded_map=whole)
    if form.reduced != "mixed":
        return Cut(graph=graph, fp16_nodes=frozenset(), halves={}, recorded_map=None)
    path = map_path(recipe_path, form.target.device_class, piece.recipe.size)
    found = load_map(path, source_digest=piece.recipe.source.digest)
    nodes = frozenset(found.fp16_nodes) | (frozenset(REDUCTIONS) if form.stem else frozenset())
    return Cut(
        graph=graph,
        fp16_nodes=spread_exact(graph, nodes),
        halves=piece.fitted(nodes, form.stem),
        recorded_map=recorded(found, path),
    )


def errors_of(piece: Workpiece, form: Form, taken: Cut) -> dict[str, ErrorFigures]:
    """Return the emulated errors on golden frames (against OpenCV) and, for a mixed form without stem, held-out ones.

    Raises EngineError (CheckFailed) when a committed map puts a held-out frame over its class's limit.
    """
    limit = float(form.target.limit)
    graph = emulated_graph(taken.graph, taken.fp16_nodes, taken.halves) if taken.fp16_nodes else taken.graph
    session = Session(to_bytes(graph))
    bundle = piece.golden(form.stem)
    figures = {"golden": summarize(measure(session, bundle.names, bundle.tensors, bundle.references), limit)}
    if form.reduced == "mixed" and form.stem is None:
        held = summarize(measure(session, *piece.held_out), limit)
        if held.over_limit:
            message = (
                f"{held.over_limit} of {held.frames} held-out frames exceed {limit:g} (largest {held.max_abs:.5f})"
            )
            fix = "blurfleet forge search RECIPE --class CLASS"
            raise EngineError(Reason.CHECK_FAILED, message, where=form.name, fix=fix)
        figures["heldOut"] = held
    return figures


def build_variant(
    piece: Workpiece, form: Form, backend: Backend, artifacts: Artifacts, recipe_path: Path, now: Callable[[], float]
) -> Variant:
    """Build one engine, store it with its record, and return the set's entry. Raises EngineError."""
    start = time.monotonic()
    taken = cut(piece, form, recipe_path)
    built = backend.compile(
        EngineJob(graph=taken.graph, fp16_nodes=taken.fp16_nodes, halves=taken.halves, sm=form.target.sm)
    )
    artifact = artifacts.put(built.data)
    target = Target.model_validate(
        {
            "class": form.target.device_class,
            "sm": form.target.sm,
            "platform": form.target.platform,
            "runtimeVersion": built.runtime_version,
        }
    )
    source = piece.recipe.source
    record = BuildRecord(
        model=piece.recipe.model,
        model_id=model_id(source.digest),
        variant=form.name,
        source=Source(
            package=f"{source.package}=={source.version}",
            file=source.file,
            digest=source.digest,
            licence=source.licence,
        ),
        artifact_digest=artifact.digest,
        artifact_bytes=len(built.data),
        precision=PRECISIONS[form.reduced],
        precision_map=taken.recorded_map,
        runtime=backend.name,
        runtime_version=built.runtime_version,
        target=target,
        inputs=_tensors(taken.graph, taken.graph.graph.input),
        outputs=_tensors(taken.graph, taken.graph.graph.output),
        flags={**built.flags, "stem": form.stem or "none", "weights": "second-order" if taken.halves else "nearest"},
        errors=errors_of(piece, form, taken),
        serving=_serving(backend.serving(), artifacts),
        simulated=backend.simulated,
        built_at=timestamp(now()),
        build_seconds=round(time.monotonic() - start, 3),
    )
    birth = artifacts.put(dumps(record.wire()).encode())
    return Variant(
        name=form.name,
        target=target,
        runtime=backend.name,
        precision=record.precision,
        artifact=artifact,
        build_record=birth,
        memory_bytes=memory_bound(taken.graph, len(built.data)),
    )


def memory_bound(graph: onnx.ModelProto, artifact_bytes: int) -> int:
    """Return an upper bound of an engine's bytes: the file twice (read, packed) and every tensor at once in FP32."""
    weights = {t.name for t in graph.graph.initializer}
    return 2 * artifact_bytes + sum(4 * prod(s) for name, s in shapes_of(graph).items() if name not in weights)


def _tensors(graph: onnx.ModelProto, values: Iterable[onnx.ValueInfoProto]) -> tuple[Tensor, ...]:
    shapes = shapes_of(graph)
    return tuple(Tensor(name=v.name, shape=shapes[v.name]) for v in values)


def _serving(plan: ServingPlan, artifacts: Artifacts) -> Serving:
    files = []
    for path in plan.support_files:
        blob: Blob = artifacts.put(path.read_bytes())
        files.append(SupportFile(name=path.name, uri=blob.uri, digest=blob.digest, bytes=blob.bytes or 0))
    return Serving(
        backend=plan.backend,
        platform=plan.platform,
        artifact_name=plan.artifact_name,
        instance_kind=plan.instance_kind,
        support_files=tuple(files),
        parameters=plan.parameters,
    )


def form_key(piece: Workpiece, form: Form, forge: str, recipe_path: Path, serving: ServingPlan) -> str:
    """Return the digest of all that decides an engine's bytes and record: what is unchanged is not built again."""
    path = map_path(recipe_path, form.target.device_class, piece.recipe.size)
    parts = {
        "forge": forge,
        "source": piece.recipe.source.wire(),
        "network": piece.recipe.network.wire(),
        "frames": piece.recipe.frames.wire(),
        "model": piece.recipe.model,
        "size": piece.recipe.size,
        "contract": piece.contract.wire(),
        "form": [form.reduced, form.stem, form.target.wire()],
        "map": digest_bytes(path.read_bytes()) if form.reduced == "mixed" and path.exists() else None,
        "support": [digest_bytes(p.read_bytes()) for p in serving.support_files],
    }
    return digest_bytes(dumps(parts).encode())
