"""Derive a precision map by search, and verify a map on frames: the two things a person does with maps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from blurfleet.api.record import ErrorFigures
from blurfleet_forge.backends.onnxruntime import Session
from blurfleet_forge.figures import FrameError, measure, summarize
from blurfleet_forge.fold import to_bytes
from blurfleet_forge.macs import mac_share
from blurfleet_forge.maps import MapFile, load_map, map_path
from blurfleet_forge.precision import count_casts, emulated_graph, typed_graph
from blurfleet_forge.recipe import load_recipe
from blurfleet_forge.search import candidates, search
from blurfleet_forge.workpiece import Workpiece

Progress = Callable[[str, int, int], None]


def derive_map(
    recipe_path: Path, device_class: str, *, size: int | None, progress: Progress, thorough: bool = False
) -> MapFile:
    """Search on calibration frames and return the map with its figures on calibration and on held-out frames.

    Convolutions below 2 % of the work are tried only if `thorough` (many times slower).
    Nothing is written. Whether the map holds is `held_out.over_limit == 0`. Raises InvalidInput, EngineError.
    """
    recipe = load_recipe(recipe_path, size=size)
    target = recipe.target(device_class)
    piece = Workpiece(recipe)
    model = piece.network()
    limit = float(target.limit)
    tried = frozenset(n for u in candidates(model, thorough=thorough) for n in u.nodes)
    halves = piece.fitted(tried)
    budget = limit * float(target.budget)
    nodes = search(model, piece.calibration, halves, budget, progress, thorough=thorough)
    session = Session(to_bytes(emulated_graph(model, nodes, halves)))
    references = [piece.oracle().run(t) for t in piece.calibration]
    names = [str(i) for i in range(len(references))]
    return MapFile(
        recipe=recipe.name,
        device_class=device_class,
        size=recipe.size,
        source_digest=recipe.source.digest,
        limit=target.limit,
        budget=target.budget,
        fp16_mac_share=round(mac_share(piece.macs, nodes), 4),
        fp16_node_share=round(len(nodes) / len(model.graph.node), 4),
        casts=count_casts(typed_graph(model, nodes)),
        calibration=summarize(measure(session, names, piece.calibration, references), limit),
        held_out=summarize(measure(session, *piece.held_out), limit),
        fp16_nodes=tuple(n.name for n in model.graph.node if n.name in nodes),
    )


def verify_map(
    recipe_path: Path, device_class: str, *, size: int | None
) -> tuple[MapFile, ErrorFigures, tuple[FrameError, ...]]:
    """Run the committed map on the held-out frames; return it, the figures measured now, and each frame's error.

    Raises InvalidInput, EngineError (MapMissing, MapStale).
    """
    recipe = load_recipe(recipe_path, size=size)
    target = recipe.target(device_class)
    found = load_map(map_path(recipe_path, device_class, recipe.size), source_digest=recipe.source.digest)
    piece = Workpiece(recipe)
    nodes = frozenset(found.fp16_nodes)
    session = Session(to_bytes(emulated_graph(piece.network(), nodes, piece.fitted(nodes))))
    errors = measure(session, *piece.held_out)
    return found, summarize(errors, float(target.limit)), errors
