"""A recipe says what is wrong with it; a map that does not belong is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from blurfleet.errors import EngineError, InvalidInput
from blurfleet.reasons import Reason
from blurfleet_forge.maps import load_map, map_path
from blurfleet_forge.recipe import load_recipe

RECIPE = Path(__file__).resolve().parents[2] / "model_repo" / "bokeh-u2netp" / "recipe.yaml"
DIGEST = "sha256:309c8469258dda742793dce0ebea8e6dd393174f89934733ecc8b14c76f4ddd8"


def altered(tmp_path: Path, **changes: object) -> Path:
    body = yaml.safe_load(RECIPE.read_text(encoding="utf-8")) | changes
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(body), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        pytest.param({"size": 150}, "size: .*multiple of 32", id="a size the network cannot halve five times"),
        pytest.param({"colour": "blue"}, "colour: ", id="a field nobody knows"),
        pytest.param({"sets": []}, "sets: ", id="nothing to build"),
        pytest.param(
            {"frames": {"golden": ["a.png"], "heldOut": ["a.png"]}}, "more than one role", id="a frame seen twice"
        ),
        pytest.param({"sets": [{"name": "s", "classes": ["tpu"]}]}, "tpu", id="a class without a target"),
        pytest.param({"sets": [{"name": "s"}, {"name": "s"}]}, "distinct names", id="two sets of one name"),
    ],
)
def test_a_wrong_recipe_is_refused_by_field(tmp_path: Path, changes: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidInput, match=words) as refused:
        load_recipe(altered(tmp_path, **changes))
    assert refused.value.reason is Reason.INVALID_SPEC
    assert refused.value.where == str(tmp_path / "recipe.yaml")


def test_a_size_on_the_command_line_replaces_the_recipes() -> None:
    assert load_recipe(RECIPE, size=320).size == 320
    assert load_recipe(RECIPE).size == 160


def test_a_file_that_is_not_yaml_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("a: [", encoding="utf-8")
    with pytest.raises(InvalidInput) as refused:
        load_recipe(path)
    assert refused.value.reason is Reason.UNPARSEABLE


def test_a_size_without_a_map_is_refused_with_the_command_that_makes_one() -> None:
    with pytest.raises(EngineError) as refused:
        load_map(map_path(RECIPE, "jetson-orin", 320), source_digest=DIGEST)
    assert refused.value.reason is Reason.MAP_MISSING
    assert "forge search" in refused.value.fix


def test_a_map_found_for_other_weights_is_refused() -> None:
    with pytest.raises(EngineError) as refused:
        load_map(map_path(RECIPE, "jetson-orin", 160), source_digest="sha256:" + "0" * 64)
    assert refused.value.reason is Reason.MAP_STALE
