"""One build per session, kept between sessions: what is unchanged is taken from the cache by the forge itself."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from blurfleet.api.engineset import Variant
from blurfleet.api.record import BuildRecord
from blurfleet.cache import cache_dir
from blurfleet_forge.backends.onnxruntime import Session
from blurfleet_forge.build import BuildResult, build_all
from blurfleet_forge.golden import GoldenBundle, unpack
from blurfleet_forge.recipe import Recipe, load_recipe
from blurfleet_forge.workpiece import Workpiece

ROOT = Path(__file__).resolve().parents[2]
RECIPE = ROOT / "model_repo" / "bokeh-u2netp" / "recipe.yaml"
CASES = ROOT / "tests" / "cases" / "onnx"


@dataclass(frozen=True, kw_only=True)
class Built:
    """The result of building the recipe, with the ways tests look at it."""

    result: BuildResult
    out: Path

    def blob(self, digest: str) -> bytes:
        return (self.out / "blobs" / "sha256" / digest.removeprefix("sha256:")).read_bytes()

    def variant(self, set_name: str, variant: str) -> Variant:
        return next(v for v in self.result.variants[set_name] if v.name == variant)

    def record(self, set_name: str, variant: str) -> BuildRecord:
        return BuildRecord.model_validate_json(self.blob(self.variant(set_name, variant).build_record.digest))

    def session(self, set_name: str, variant: str) -> Session:
        return Session(self.blob(self.variant(set_name, variant).artifact.digest))

    def golden(self, set_name: str) -> GoldenBundle:
        import yaml

        body = yaml.safe_load(self.result.sets[set_name].read_text(encoding="utf-8"))
        return unpack(self.blob(body["spec"]["golden"]["digest"]))


@pytest.fixture(scope="session")
def recipe() -> Recipe:
    return load_recipe(RECIPE)


@pytest.fixture(scope="session")
def piece(recipe: Recipe) -> Workpiece:
    return Workpiece(recipe)


@pytest.fixture(scope="session")
def built() -> Built:
    out = cache_dir() / "tests" / "forge"
    return Built(result=build_all(RECIPE, out), out=out.resolve())
