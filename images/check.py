"""Tries what the images would install, without building one: each Dockerfile's own pip lines, as dry runs.

`python images/check.py` asks the package index, for x86-64 and for aarch64; it needs no Docker and installs nothing.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
KNOWN = {"ARG", "FROM", "WORKDIR", "COPY", "RUN", "ENV", "USER", "CMD"}
PYTHON = "3.11"
# What wheels for the arm64 base may be tagged with: Debian 12 has glibc 2.36.
AARCH64 = [f"manylinux_2_{minor}_aarch64" for minor in range(36, 16, -1)] + ["manylinux2014_aarch64"]


class Instruction(NamedTuple):
    """One instruction with its continued lines joined."""

    name: str
    rest: str


def instructions(text: str) -> list[Instruction]:
    """Return a Dockerfile's instructions. Raises ValueError for one that these files do not use, such as ADD."""
    kept = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    found = [line.split(maxsplit=1) for line in kept.replace("\\\n", " ").splitlines() if line.strip()]
    for name, *_ in found:
        if name not in KNOWN:
            raise ValueError(f"instruction {name} is not among {', '.join(sorted(KNOWN))}")
    return [Instruction(name, " ".join(rest).strip()) for name, *rest in found]


def commands(text: str) -> list[list[str]]:
    """Return the words of each command that a Dockerfile runs."""
    runs = [i.rest for i in instructions(text) if i.name == "RUN"]
    return [shlex.split(command) for run in runs for command in run.split("&&")]


def installs(text: str) -> list[list[str]]:
    """Return the arguments of each `pip install` of a lock, paths as they are in this checkout."""
    lines = [words for words in commands(text) if re.search(r"(^|/)pip$", words[0]) and words[1] == "install"]
    return [[word.replace("/locks/", f"{ROOT}/images/locks/") for word in w[1:]] for w in lines if "-r" in w]


def foreign(arguments: list[str]) -> list[str]:
    """Return the same install for aarch64: wheels alone, since there is nothing to compile with."""
    tags = [word for tag in AARCH64 for word in ("--platform", tag)]
    return [*arguments, "--only-binary=:all:", "--no-deps", f"--python-version={PYTHON}", *tags, "--target=/nowhere"]


def main() -> int:
    """Print a line for each dry run and return how many failed."""
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        pip = Path(folder) / "bin/pip"
        for path in sorted((ROOT / "images").glob("*.Dockerfile")):
            for arguments in installs(path.read_text(encoding="utf-8")):
                for machine, words in (("x86-64", arguments), ("aarch64", foreign(arguments))):
                    began = time.monotonic()
                    done = subprocess.run([pip, *words, "--dry-run", "-q"], capture_output=True, text=True, check=False)
                    lock = next(Path(word).name for word in words if word.endswith(".txt"))
                    state = "ok" if done.returncode == 0 else f"FAILED\n{done.stderr.strip()}"
                    sys.stdout.write(f"{path.name}: {lock} on {machine}: {state} ({time.monotonic() - began:.0f} s)\n")
                    failed += done.returncode != 0
    return failed


if __name__ == "__main__":
    sys.exit(main())
