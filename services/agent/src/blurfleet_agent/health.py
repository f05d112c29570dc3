"""Whether the agent works: asked by probes as /healthz (restart it if not) and /readyz (an update may go on)."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

# Longer than any turn that waits for a Triton that is silent; a node whose loop hangs must not look alive.
STUCK_S = 60.0
# Recovery reads the journal and asks Triton for what is loaded; one that never ends is no start.
STARTING_S = 300.0

App = Callable[..., Iterable[bytes]]


@dataclass(frozen=True, kw_only=True)
class Pulse:
    """What is known at one moment: seconds since the start, since the loop and the guard last came round, and deafness.

    `loop_s` is None before the loop's first turn, `guard_s` before the guard's. `deaf` says why no frame is judged.
    """

    started_s: float
    loop_s: float | None = None
    guard_s: float | None = None
    deaf: str = ""


def troubles(pulse: Pulse) -> tuple[str, ...]:
    """Return why only a restart helps, nothing where it is alive. Triton and the store being away are no reason."""
    if pulse.loop_s is None:
        late = not (pulse.started_s <= STARTING_S)
        return (f"the loop has not turned since the start {pulse.started_s:.0f} s ago",) if late else ()
    found = []
    if not (pulse.loop_s <= STUCK_S):
        found.append(f"the loop has not turned for {pulse.loop_s:.0f} s")
    if pulse.deaf:
        found.append(pulse.deaf)
    elif pulse.guard_s is not None and not (pulse.guard_s <= STUCK_S):
        found.append(f"the guard has not come round for {pulse.guard_s:.0f} s: no frame is judged")
    return tuple(found)


def not_ready(pulse: Pulse) -> tuple[str, ...]:
    """Return why the agent does not do its work yet or any more, nothing where it does."""
    if pulse.loop_s is None or pulse.guard_s is None:
        return troubles(pulse) or ("starting",)
    return troubles(pulse)


class Health:
    """Answers probes. `feel` is set once the parts stand; until then the agent counts as starting."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self.feel: Callable[[float], Pulse] = lambda started_s: Pulse(started_s=started_s)

    def pulse(self) -> Pulse:
        """Return what is known now."""
        return self.feel(self._clock() - self._began)


def with_health(metrics: App, health: Health) -> App:
    """Return a WSGI application that serves probes, and `metrics` at /metrics; anything else is 404."""

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path == "/metrics":
            return metrics(environ, start_response)
        judge = {"/healthz": troubles, "/readyz": not_ready}.get(path)
        found = judge(health.pulse()) if judge is not None else ("no such page",)
        status = "404 Not Found" if judge is None else "503 Service Unavailable" if found else "200 OK"
        start_response(status, [("Content-Type", "application/json")])
        return [json.dumps({"ok": not found, "problems": found}).encode() + b"\n"]

    return answer
