"""Runs the agent as a process, settings from the environment; BLURFLEET_TEST_CRASH names where it kills itself."""

from __future__ import annotations

import os
import signal

from blurfleet_agent.main import run_agent
from blurfleet_agent.settings import AgentSettings


def crash(point: str) -> None:
    wanted, _, count = os.environ.get("BLURFLEET_TEST_CRASH", "").partition(":")
    if point == wanted:
        crash.seen += 1  # type: ignore[attr-defined]
        if crash.seen >= int(count or 1):  # type: ignore[attr-defined]
            os.kill(os.getpid(), signal.SIGKILL)


crash.seen = 0  # type: ignore[attr-defined]

if __name__ == "__main__":
    run_agent(AgentSettings(), crash=crash)
