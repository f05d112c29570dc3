"""Cuts one lock per image out of `constraints.txt`: the same versions and hashes, only what the image installs.

`python images/lock.py` in an environment made by `make setup` writes `images/locks/<image>.txt`.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
LOCKS = ROOT / "images/locks"
# Image -> extras of the project, and what its command line needs beside them.
IMAGES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "operator": (("operator",), ("click",)),
    "agent": (("agent",), ("click",)),
    "gateway": (("preprocess",), ("click", "psutil")),
    "forge": (("forge",), ("click", "psutil", "rich")),
}
BUILD = ("hatchling", "editables")


def locks() -> dict[str, str]:
    """Return file name -> lock of every image and of the build. Raises KeyError for a package without constraint."""
    pinned = _pinned((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = {"build.txt": _cut(BUILD, pinned)}
    for image, (extras, more) in IMAGES.items():
        wanted = [*project["dependencies"], *more]
        wanted += [text for extra in extras for text in project["optional-dependencies"][extra]]
        found[f"{image}.txt"] = _cut(wanted, pinned)
    return found


def _pinned(text: str) -> dict[str, str]:
    """Return name -> its lines, all markers' variants together."""
    entries: dict[str, str] = {}
    for part in re.split(r"^(?=[A-Za-z0-9])", text, flags=re.MULTILINE):
        name = re.match(r"[A-Za-z0-9._-]+", part)
        if name:
            lines = [line for line in part.splitlines() if not line.lstrip().startswith("#")]
            key = canonicalize_name(name.group())
            entries[key] = entries.get(key, "") + "\n".join(lines).rstrip() + "\n"
    return entries


def _cut(wanted: Iterable[str], pinned: dict[str, str]) -> str:
    todo = [Requirement(text) for text in wanted]
    seen: set[tuple[str, frozenset[str]]] = set()
    while todo:
        one = todo.pop()
        key = (canonicalize_name(one.name), frozenset(one.extras))
        if key in seen:
            continue
        seen.add(key)
        for text in requires(one.name) or ():
            inner = Requirement(text)
            extras = one.extras or {""}
            if inner.marker is None or any(inner.marker.evaluate({"extra": extra}) for extra in extras):
                todo.append(inner)
    return "".join(pinned[name] for name in sorted({name for name, _ in seen}))


def main() -> int:
    """Write the locks."""
    LOCKS.mkdir(exist_ok=True)
    for name, text in locks().items():
        (LOCKS / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
