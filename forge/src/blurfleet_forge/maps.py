"""Precision maps as data: one JSON file per device class and size, committed beside the recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from blurfleet.api.base import Digest, Fraction, Model
from blurfleet.api.kinds import invalid
from blurfleet.api.record import ErrorFigures, PrecisionMap
from blurfleet.check import dumps
from blurfleet.errors import EngineError, InvalidInput
from blurfleet.identity import digest_file
from blurfleet.reasons import Reason
from blurfleet_forge.artifacts import write_atomic


class MapFile(Model):
    """What a search found: the nodes that compute in FP16 and the errors they cost.

    `budget` is the share of `limit` the search could use on calibration frames; held-out frames were never
    seen by it. `casts` counts the tensors that cross precision in the typed graph.
    """

    schema_version: Literal[1] = 1
    recipe: str
    device_class: str
    size: int
    source_digest: Digest
    limit: Fraction
    budget: Fraction
    fp16_mac_share: float
    fp16_node_share: float
    casts: int
    calibration: ErrorFigures
    held_out: ErrorFigures
    fp16_nodes: tuple[str, ...]


def map_path(recipe: Path, device_class: str, size: int) -> Path:
    """Return where the map of one class and size lies: `maps/<class>-<size>.json` beside the recipe."""
    return recipe.parent / "maps" / f"{device_class}-{size}.json"


def save_map(path: Path, found: MapFile) -> None:
    """Write a map file atomically."""
    write_atomic(path, (dumps(found.wire()) + "\n").encode())


def load_map(path: Path, *, source_digest: str) -> MapFile:
    """Return the map, refused when it is absent, damaged, or was found for other weights.

    Raises EngineError (MapMissing, MapStale) or InvalidInput.
    """
    fix = "blurfleet forge search RECIPE --class CLASS --size SIZE"
    try:
        found = MapFile.model_validate_json(path.read_bytes())
    except FileNotFoundError as error:
        message = "no precision map for this class and size; maps do not move between sizes"
        raise EngineError(Reason.MAP_MISSING, message, where=str(path), fix=fix) from error
    except OSError as error:
        raise InvalidInput(Reason.UNREADABLE_FILE, str(error.strerror), where=str(path)) from error
    except ValidationError as error:
        raise invalid(error, str(path)) from error
    if found.source_digest != source_digest:
        message = f"the map was found for {found.source_digest}, the recipe pins {source_digest}"
        raise EngineError(Reason.MAP_STALE, message, where=str(path), fix=fix)
    return found


def recorded(found: MapFile, path: Path) -> PrecisionMap:
    """Return the map as a build record holds it."""
    return PrecisionMap(
        size=found.size,
        fp16_nodes=found.fp16_nodes,
        fp16_mac_share=found.fp16_mac_share,
        fp16_node_share=found.fp16_node_share,
        map_digest=digest_file(path),
    )
