"""Reading a status that a newer version wrote: a word it has and this version lacks must not hide the whole object.

What such a word says is unknown, so it reads as what allows nothing: a candidate is still on its way, a figure is
inconclusive, and what cannot be said without the word is not said.
"""

from __future__ import annotations

import copy
from typing import Any, TypeVar

from pydantic import ValidationError

from blurfleet.api.base import Model

M = TypeVar("M", bound=Model)

_ALLOWS_NOTHING = {"phase": "Staging", "verdict": "Inconclusive", "status": "Unknown"}
_MOST = 256
_Path = tuple[Any, ...]


def parse_status(model: type[M], raw: dict[str, Any]) -> M:
    """Return `raw` parsed, with unknown words read as said above. Raises ValidationError on any other fault."""
    try:
        return model.model_validate(raw, extra="ignore")
    except ValidationError as error:
        first = error
    mended, removed = copy.deepcopy(raw), set[_Path]()
    for _ in range(_MOST):
        try:
            return model.model_validate(mended, extra="ignore")
        except ValidationError as error:
            fault = error.errors(include_url=False)[0]
        path = tuple(fault["loc"])
        if fault["type"] == "literal_error":
            _pass_over(mended, path, removed)
        elif fault["type"] == "missing" and path in removed:
            _remove(mended, path[:-1], removed)
        else:
            raise first
    raise first


def _pass_over(raw: Any, path: _Path, removed: set[_Path]) -> None:
    holder = _at(raw, path[:-1])
    word = _ALLOWS_NOTHING.get(str(path[-1])) if isinstance(holder, dict) else None
    if word is None or holder[path[-1]] == word:
        _remove(raw, path, removed)
        return
    unknown = holder[path[-1]]
    holder[path[-1]] = word
    if "message" in holder or path[-1] == "phase":
        holder["message"] = f"{path[-1]} {unknown}: {holder.get('message', '')}"[:2048]


def _remove(raw: Any, path: _Path, removed: set[_Path]) -> None:
    del _at(raw, path[:-1])[path[-1]]
    # In a list what follows moves up: nothing is known of its paths any more.
    stale = {p for p in removed if p[: len(path) - 1] == path[:-1]} if isinstance(path[-1], int) else set()
    removed -= stale
    removed.add(path)


def _at(raw: Any, path: _Path) -> Any:
    for step in path:
        raw = raw[step]
    return raw
