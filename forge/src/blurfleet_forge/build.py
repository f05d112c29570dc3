"""Build every engine set of a recipe into a folder: artifacts by digest, sets and contract as YAML."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from blurfleet.api.contract import ContractStatus
from blurfleet.api.engineset import Blob, EngineSetSpec, EngineSetStatus, Interface, Variant
from blurfleet.api.kinds import Resource
from blurfleet.api.meta import ObjectMeta
from blurfleet.api.record import BuildRecord
from blurfleet.artifacts import Location
from blurfleet.errors import InvalidInput
from blurfleet.identity import digest_bytes
from blurfleet.reasons import Reason
from blurfleet_forge.artifacts import Artifacts, write_atomic
from blurfleet_forge.backends.base import Backend
from blurfleet_forge.backends.registry import backend_for
from blurfleet_forge.golden import pack
from blurfleet_forge.push import Pusher
from blurfleet_forge.recipe import BuildTarget, Recipe, Reduced, SetPlan, Stem, load_recipe
from blurfleet_forge.variants import Form, build_variant, form_key
from blurfleet_forge.workpiece import Workpiece, forge_digest

Progress = Callable[[str, int, int], None]


def _silent(_what: str, _done: int, _total: int) -> None:
    return None


@dataclass(frozen=True, kw_only=True)
class BuildResult:
    """What a build left behind: YAML paths by set name, the contract's YAML, engines made and reused, seconds.

    `pushed` are the addresses of the YAML files where they were pushed, `sent` and `found` count the blobs there.
    """

    sets: dict[str, Path]
    contract: Path
    built: int
    reused: int
    seconds: float
    variants: dict[str, tuple[Variant, ...]] = field(default_factory=dict)
    pushed: tuple[str, ...] = ()
    sent: int = 0
    found: int = 0


def build_all(
    recipe_path: Path,
    out: Path,
    *,
    size: int | None = None,
    only: Collection[str] | None = None,
    push: Location | None = None,
    progress: Progress = _silent,
    now: Callable[[], float] = time.time,
) -> BuildResult:
    """Build the sets of `recipe_path` (all, or those named in `only`) at `size` pixels into `out`.

    `progress(what, done, total)` is called before each engine and once at the end. Work whose inputs are unchanged is
    taken from `out`. With `push` every blob is brought there, the sets name them by their addresses there, and the YAML
    files follow under their own names. Raises StoreError where that place refuses, InvalidInput for a wrong recipe or
    name, EngineError where an engine cannot be built or a committed map does not hold on the held-out frames.
    """
    start = time.monotonic()
    recipe = load_recipe(recipe_path, size=size)
    plans = _selected(recipe, only)
    shop = _Shop(recipe, recipe_path, Artifacts(out), push or Location(), now)
    jobs = [(plan, form) for plan in plans for form in _forms(recipe, plan)]
    variants: dict[str, list[Variant]] = {p.name: [] for p in plans}
    for i, (plan, form) in enumerate(jobs):
        progress(f"{plan.name} {form.name}", i, len(jobs))
        variants[plan.name].append(shop.variant(form))
    paths = {p.name: shop.write_set(p, tuple(variants[p.name])) for p in plans}
    contract = shop.write_contract()
    pushed = shop.push_texts([contract, *paths.values()]) if push else ()
    progress("done", len(jobs), len(jobs))
    return BuildResult(
        sets=paths,
        contract=contract,
        built=shop.built,
        reused=shop.reused,
        seconds=time.monotonic() - start,
        variants={name: tuple(v) for name, v in variants.items()},
        pushed=pushed,
        sent=shop.pusher.sent,
        found=shop.pusher.found,
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

    def __init__(
        self, recipe: Recipe, recipe_path: Path, artifacts: Artifacts, at: Location, now: Callable[[], float]
    ) -> None:
        self.pusher = Pusher(artifacts, at)
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
            return self.pusher.variant(Variant.model_validate(known))
        made = build_variant(self._piece, form, backend, self._artifacts, self._recipe_path, self._now)
        self._artifacts.remember(key, made.wire(), (made.artifact.digest, made.build_record.digest))
        self.built += 1
        return self.pusher.variant(made)

    def write_set(self, plan: SetPlan, variants: tuple[Variant, ...]) -> Path:
        recipe = self._piece.recipe
        spec = EngineSetSpec(
            model=recipe.model,
            contract_ref=recipe.contract_name,
            golden=self.pusher.blob(self._golden(plan.stem)),
            profile=self._piece.profile(),
            interface=self._interface(variants[0]),
            variants=variants,
        )
        made = Resource(kind="EngineSet", meta=_meta(plan.name), spec=spec, status=EngineSetStatus())
        return self._write(self._artifacts.out / "sets" / f"{plan.name}.yaml", made)

    def write_contract(self) -> Path:
        spec = self._piece.contract
        name = self._piece.recipe.contract_name
        made = Resource(kind="PreprocessContract", meta=_meta(name), spec=spec, status=ContractStatus())
        return self._write(self._artifacts.out / "contract.yaml", made)

    def push_texts(self, paths: Iterable[Path]) -> tuple[str, ...]:
        out = self._artifacts.out
        return tuple(self.pusher.document(path, str(path.relative_to(out))) for path in paths)

    def _backend(self, target: BuildTarget) -> Backend:
        return backend_for(target.runtime, self._recipe_path.resolve().parent.parent / "templates")

    def _interface(self, variant: Variant) -> Interface:
        record = BuildRecord.model_validate_json(self._artifacts.path(variant.build_record.digest).read_bytes())
        return Interface(inputs=record.inputs, outputs=record.outputs)

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
