"""The versions of Triton and of the engine runtime as they are on this node, not as somebody wrote them down.

Triton says its own version. The runtime's is read from names: of the libraries in Triton's image, or of the packages in
its environment. A container of Triton's own image lists them for the agent, whose image has neither.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from blurfleet.errors import BlurfleetError

ASK_EVERY_S = 30.0
TENSORRT, ONNXRUNTIME = "TensorRT", "ONNX Runtime"
# `libnvinfer.so.10.13.3` names three parts, Debian's package `libnvinfer10 10.13.3.9-1+cuda13.0` all four.
_NAMES = {
    TENSORRT: re.compile(r"(?:libnvinfer\.so\.|libnvinfer\d+(?::\w+)?[ _\t])(\d+(?:\.\d+){2,3})"),
    ONNXRUNTIME: re.compile(r"(?:onnxruntime(?:_gpu)?-|libonnxruntime\.so\.)(\d+\.\d+\.\d+)"),
}
_MOST_BYTES = 1 << 20


def runtime_in(names: str, kind: str) -> str:
    """Return the version of runtime `kind` in lines of file and package names: the most exact one, empty for none."""
    found: list[str] = _NAMES[kind].findall(names)
    return max(found, key=lambda version: version.count("."), default="")


def names_at(path: Path) -> str:
    """Return what `path` names: the entries of a folder, or the lines of a list. Empty where it cannot be read."""
    try:
        if path.is_dir():
            return "\n".join(sorted(entry.name for entry in path.iterdir()))
        with path.open("rb") as listed:
            return listed.read(_MOST_BYTES).decode(errors="replace")
    except OSError:
        return ""


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """The runtime's version that engines are matched by, and whether the configured one differs: None for unknown."""

    version: str
    differs: bool | None
    message: str


def judge_runtime(configured: str, probed: str, kind: str) -> Runtime:
    """Return what holds: the probed version wins; a configured one that says it more exactly is kept.

    `configured` may carry the runtime's name in front, as ONNX Runtime's versions do in variants.
    """
    prefix, _, bare = configured.rpartition("-")
    if not probed:
        return Runtime(version=configured, differs=None, message=f"no {kind} was found to compare {configured!r} with")
    if bare == probed or bare.startswith(f"{probed}."):
        return Runtime(version=configured, differs=False, message=f"{kind} {probed} is there, as configured")
    named = f"{prefix}-{probed}" if prefix else probed
    if not configured:
        return Runtime(version=named, differs=False, message=f"{kind} {probed} is there; none was configured")
    message = f"configured for {kind} {bare}, but {probed} is there: engines are matched by what is there"
    return Runtime(version=named, differs=True, message=message)


class Versions:
    """Triton's version, asked for now and then, and the runtime's, read again when its list changes.

    `ask` returns Triton's version and raises BlurfleetError, `clock` counts seconds. Used by one thread.
    """

    def __init__(
        self, *, ask: Callable[[], str], clock: Callable[[], float], configured: str, kind: str, probe: Path
    ) -> None:
        self._ask, self._clock = ask, clock
        self._configured, self._kind, self._probe = configured, kind, probe
        self._triton = ""
        self._next = 0.0
        self._seen: tuple[int, int] | None = None
        self._probed = ""

    def triton(self) -> str:
        """Return Triton's version, the last known one while it does not answer; empty before it ever did."""
        now = self._clock()
        if now >= self._next:
            self._next = now + ASK_EVERY_S
            try:
                self._triton = self._ask()
            except BlurfleetError:
                self._next = now + 1.0 if not self._triton else self._next
        return self._triton

    def runtime(self) -> Runtime:
        """Return the runtime as it is on the node now."""
        self._look()
        return judge_runtime(self._configured, self._probed, self._kind)

    def _look(self) -> None:
        try:
            found = self._probe.stat()
        except OSError:
            self._seen, self._probed = None, ""
            return
        seen = (found.st_mtime_ns, found.st_size)
        if seen != self._seen:
            self._seen, self._probed = seen, runtime_in(names_at(self._probe), self._kind)
