"""NVIDIA's compiler builds our graphs for SM 80 without a GPU, and what must stay FP32 stays FP32."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from blurfleet.errors import EngineError
from blurfleet.reasons import Reason
from blurfleet_forge.backends.base import EngineBytes, EngineJob
from blurfleet_forge.backends.tensorrt_rtx import TensorRtRtxBackend
from blurfleet_forge.maps import load_map, map_path
from blurfleet_forge.workpiece import Workpiece

RECIPE = Path(__file__).resolve().parents[2] / "model_repo" / "bokeh-u2netp" / "recipe.yaml"


def layers(engine: EngineBytes) -> list[tuple[set[str], set[str]]]:
    """Return per engine layer the ONNX nodes in it and the data types of everything it reads and writes."""
    listing = engine.log[engine.log.rindex("Layers:\n") :]
    lines = [line for line in listing.splitlines() if line.startswith("Name:")]
    return [
        (set(re.findall(r"\[ONNX Layer: ([^\]]+)\]", line)), set(re.findall(r"Datatype: (\w+)", line)))
        for line in lines
    ]


@pytest.fixture(scope="module")
def mixed(piece: Workpiece) -> tuple[EngineBytes, frozenset[str]]:
    found = load_map(map_path(RECIPE, "a100", 160), source_digest=piece.recipe.source.digest)
    nodes = frozenset(found.fp16_nodes)
    job = EngineJob(graph=piece.network(), fp16_nodes=nodes, halves=piece.fitted(nodes), sm=80)
    return TensorRtRtxBackend().compile(job), nodes


def test_the_fp32_graph_builds_and_every_layer_is_float(piece: Workpiece) -> None:
    engine = TensorRtRtxBackend().compile(EngineJob(graph=piece.network(), sm=80))
    assert engine.data[:4] == b"vtrt"
    assert engine.flags == {"stronglyTyped": "true", "tf32": "false"}
    assert set().union(*(kinds for _, kinds in layers(engine))) == {"Float"}


def test_the_mixed_graph_builds_and_its_fp16_convolutions_are_half(mixed: tuple[EngineBytes, frozenset[str]]) -> None:
    engine, nodes = mixed
    convolutions = {n for n in nodes if n.startswith("Conv_")}
    half = [found & convolutions for found, kinds in layers(engine) if "Half" in kinds]
    assert set().union(*half) == convolutions


def test_the_fp32_islands_of_the_mixed_graph_stay_float(
    piece: Workpiece, mixed: tuple[EngineBytes, frozenset[str]]
) -> None:
    engine, nodes = mixed
    every = {n.name for n in piece.network().graph.node if n.op_type == "Conv"}
    islands = every - nodes
    seen: set[str] = set()
    for found, kinds in layers(engine):
        inside = found & islands
        seen |= inside
        assert not inside or "Float" in kinds, (inside, kinds)
    assert "Conv_787" in seen  # the convolution that naive FP16 destroys
    assert len(seen) >= 0.9 * len(islands)


def test_a_compute_capability_the_compiler_lacks_is_refused(piece: Workpiece) -> None:
    with pytest.raises(EngineError, match="SM 87") as refused:
        TensorRtRtxBackend().compile(EngineJob(graph=piece.network(), sm=87))
    assert refused.value.reason is Reason.BUILD_FAILED
