"""What the node was last told, kept beside the journal: a start without the store serves from it."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from blurfleet.api.base import Model
from blurfleet.api.engineset import Blob
from blurfleet.api.nodeengine import EngineRef, NodeEngineSpec, NodeModel
from blurfleet.store.atomic import write_atomic

KEPT_SETS = 16


class SetNote(Model):
    """What a spec once said about an engine set: its golden bundle, its FP32 engine, and every engine seen of it."""

    golden: Blob | None = None
    oracle: EngineRef | None = None
    engines: tuple[EngineRef, ...] = ()


class Remembered(Model):
    """The last readable spec, notes on the sets it named (newest last), and per model what could last be acted on."""

    schema_version: Literal[1] = 1
    generation: int = 0
    spec: NodeEngineSpec | None = None
    sets: dict[str, SetNote] = Field(default_factory=dict)
    good: dict[str, NodeModel] = Field(default_factory=dict)

    def find(self, digest: str) -> EngineRef | None:
        """Return the engine with `digest`, None where no spec ever named it."""
        return next((e for note in self.sets.values() for e in note.engines if e.digest == digest), None)


def remember(old: Remembered, spec: NodeEngineSpec, generation: int) -> Remembered:
    """Return `old` with `spec` as the last one. Pure."""
    sets = dict(old.sets)
    for model in spec.models:
        for name, note in _notes(model).items():
            sets[name] = _merged(sets.pop(name, SetNote()), note)
    newest = dict(list(sets.items())[-KEPT_SETS:])
    return Remembered(generation=generation, spec=spec, sets=newest, good=old.good)


def _notes(model: NodeModel) -> dict[str, SetNote]:
    owner = model.candidate or model.primary
    refs = [r for r in (model.primary, model.fallback, model.oracle, model.candidate) if r is not None]
    notes = {r.set: SetNote(engines=tuple(x for x in refs if x.set == r.set)) for r in refs}
    for ref in refs:
        if ref.precision == "FP32":
            notes[ref.set] = notes[ref.set].model_copy(update={"oracle": ref})
    if owner is not None and model.golden is not None:
        notes[owner.set] = notes[owner.set].model_copy(update={"golden": model.golden})
    return notes


def _merged(old: SetNote, new: SetNote) -> SetNote:
    known = {e.digest: e for e in (*old.engines, *new.engines)}
    return SetNote(golden=new.golden or old.golden, oracle=new.oracle or old.oracle, engines=tuple(known.values()))


def read_remembered(path: Path) -> Remembered:
    """Return what was kept; an absent or unreadable file is nothing, as the store says it again."""
    try:
        return Remembered.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return Remembered()


def write_remembered(path: Path, value: Remembered) -> None:
    """Keep `value`; a full disk is no reason to stop, the next change tries again."""
    with contextlib.suppress(OSError):
        write_atomic(path, value.model_dump_json(by_alias=True).encode())
