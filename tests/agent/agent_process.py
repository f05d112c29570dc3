"""Runs the agent as a process, settings from the environment; BLURFLEET_TEST_CRASH names where it kills itself."""

from __future__ import annotations

import itertools
import os
import signal

from blurfleet_agent.main import run_agent
from blurfleet_agent.settings import AgentSettings

_seen = itertools.count(1)


def crash(point: str) -> None:
    wanted, _, count = os.environ.get("BLURFLEET_TEST_CRASH", "").partition(":")
    if point == wanted and next(_seen) >= int(count or 1):
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    run_agent(AgentSettings(), crash=crash)
