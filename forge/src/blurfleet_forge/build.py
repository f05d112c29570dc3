"""Build every engine set of a recipe into a folder: artifacts by digest, sets and contract as YAML."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from blurfleet.api.contract import ContractStatus
from blurfleet.api.engineset import Blob, EngineSetSpec, EngineSetStatus, Variant
from blurfleet.api.kinds import Resource
from blurfleet.api.meta import ObjectMeta
from blurfleet.errors import InvalidInput
from blurfleet.identity import digest_bytes
from blurfleet.reasons import Reason
from blurfleet_forge.artifacts import Artifacts, write_atomic
from blurfleet_forge.backends.base import Backend
from blurfleet_forge.backends.registry import backend_for
from blurfleet_forge.golden import pack
from blurfleet_forge.recipe import BuildTarget, Recipe, Reduced, SetPlan, Stem, load_recipe
from blurfleet_forge.variants import Form, build_variant, form_key
from blurfleet_forge.workpiece import Workpiece, forge_digest

Progress = Callable[[str, int, int], None]


def _silent(_what: str, _done: int, _total: int) -> None:
    return None


@dataclass(frozen=True, kw_only=True)
class BuildResult:
    """What a build left behind: YAML paths by set name, the contract's YAML, engines made and reused, seconds."""

    sets: dict[str, Path]
    contract: Path
    built: int
    reused: int
    seconds: float
    variants: dict[str, tuple[Variant, ...]] = field(default_factory=dict)


def build_all(
    recipe_path: Path,
    out: Path,
    *,
    size: int | None = None,
    only: Collection[str] | None = None,
    progress: Progress = _silent,
    now: Callable[[], float] = time.time,
) -> BuildResult:
    """Build the sets of `recipe_path` (all, or those named in `only`) at `size` pixels into `out`.

    `progress(what, done, total)` is called before each engine and once at the end. Work whose inputs are unchanged is
    taken from `out`. Raises InvalidInput for a wrong recipe or name, EngineError where an engine cannot be built or a
    committed map does not hold on the held-out frames.
    """
    start = time.monotonic()
    recipe = load_recipe(recipe_path, size=size)
    plans = _selected(recipe, only)
    shop = _Shop(recipe, recipe_path, Artifacts(out), now)
    jobs = [(plan, form) for plan in plans for form in _forms(recipe, plan)]
    variants: dict[str, list[Variant]] = {p.name: [] for p in plans}
    for i, (plan, form) in enumerate(jobs):
        progress(f"{plan.name} {form.name}", i, len(jobs))
        variants[plan.name].append(shop.variant(form))
    paths = {p.name: shop.write_set(p, tuple(variants[p.name])) for p in plans}
    contract = shop.write_contract()
    progress("done", len(jobs), len(jobs))
    return BuildResult(
        sets=paths,
        contract=contract,
        built=shop.built,
        reused=shop.reused,
        seconds=time.monotonic() - start,
        variants={name: tuple(v) for name, v in variants.items()},
    )


def _selected(recipe: Recipe, only: Collection[str] | None) -> list[SetPlan]:
    known = [p.name for p in recipe.sets]
    strangers = sorted(set(only or ()) - set(known))
    if strangers:
        fix = f"one of {', '.join(known)}"
        raise InvalidInput(Reason.NOT_FOUND, f"the recipe has no set {', '.join(strangers)}", fix=fix)
    return [p for p in recipe.sets if not only or p.name in only]


def _forms(recipe: Recipe, plan: SetPlan) -> list[Form]:
    wanted: tuple[Reduced, ...] = ("none",) if plan.reduced == "none" else ("none", plan.reduced)
    return [Form(reduced=r, stem=plan.stem, target=t) for t in recipe.targets_of(plan) for r in wanted]


class _Shop:
    """One build run: the workpiece, the artifacts, and counts of what was made or found."""

    def __init__(self, recipe: Recipe, recipe_path: Path, artifacts: Artifacts, now: Callable[[], float]) -> None:
        self._piece = Workpiece(recipe)
        self._recipe_path = recipe_path
        self._artifacts = artifacts
        self._now = now
        self.built = 0
        self.reused = 0

    def variant(self, form: Form) -> Variant:
        backend = self._backend(form.target)
        key = form_key(self._piece, form, forge_digest(), self._recipe_path, backend.serving())
        known = self._artifacts.recall(key)
        if known is not None:
            self.reused += 1
            return Variant.model_validate(known)
        made = build_variant(self._piece, form, backend, self._artifacts, self._recipe_path, self._now)
        self._artifacts.remember(key, made.wire(), (made.artifact.digest, made.build_record.digest))
        self.built += 1
        return made

    def write_set(self, plan: SetPlan, variants: tuple[Variant, ...]) -> Path:
        recipe = self._piece.recipe
        spec = EngineSetSpec(
            model=recipe.model,
            contract_ref=recipe.contract_name,
            golden=self._golden(plan.stem),
            profile=self._piece.profile(),
            variants=variants,
        )
        made = Resource(kind="EngineSet", meta=_meta(plan.name), spec=spec, status=EngineSetStatus())
        return self._write(self._artifacts.out / "sets" / f"{plan.name}.yaml", made)

    def write_contract(self) -> Path:
        spec = self._piece.contract
        name = self._piece.recipe.contract_name
        made = Resource(kind="PreprocessContract", meta=_meta(name), spec=spec, status=ContractStatus())
        return self._write(self._artifacts.out / "contract.yaml", made)

    def _backend(self, target: BuildTarget) -> Backend:
        return backend_for(target.runtime, self._recipe_path.resolve().parent.parent / "templates")

    def _golden(self, stem: Stem | None) -> Blob:
        recipe = self._piece.recipe
        parts = (forge_digest(), recipe.source.digest, str(recipe.size), repr(stem), *recipe.frames.golden)
        key = digest_bytes("\n".join(("golden", *parts)).encode())
        known = self._artifacts.recall(key)
        if known is not None:
            return Blob.model_validate(known)
        blob = self._artifacts.put(pack(self._piece.golden(stem)))
        self._artifacts.remember(key, blob.wire(), (blob.digest,))
        return blob

    def _write(self, path: Path, made: Resource) -> Path:
        text = yaml.safe_dump(made.wire(), sort_keys=False, allow_unicode=True, width=120)
        write_atomic(path, text.encode())
        return path


def _meta(name: str) -> ObjectMeta:
    return ObjectMeta(name=name, namespace="default")
