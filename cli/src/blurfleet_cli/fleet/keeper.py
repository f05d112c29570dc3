"""Keeps supervisord itself alive: starts it, waits, starts it again with a growing pause when it is killed.

It is the root of the fleet's process tree: when it ends, supervisord is told to stop everything and nothing is left.
"""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
import time
from pathlib import Path

PR_SET_PDEATHSIG = 1
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0
_STABLE_S = 30.0


def die_with_parent(sig: int = signal.SIGTERM) -> None:
    """Ask the kernel to send this process `sig` when its parent ends (Linux)."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(sig), 0, 0, 0)


def next_pause(pause_s: float, ran_s: float) -> float:
    """Return the pause before the next start: doubled up to 30 s, back to the first after a run of 30 s."""
    return _FIRST_PAUSE_S if ran_s >= _STABLE_S else min(pause_s * 2, _LONGEST_PAUSE_S)


def main() -> int:
    """Run `argv = [supervisord configuration]` until told to stop by SIGTERM; then stop supervisord and wait."""
    config = Path(sys.argv[1])
    stopping = False
    child: subprocess.Popen[bytes] | None = None

    def stop(*_: object) -> None:
        nonlocal stopping
        stopping = True
        if child is not None:
            child.send_signal(signal.SIGTERM)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    pause_s = _FIRST_PAUSE_S
    while not stopping:
        started = time.monotonic()
        child = subprocess.Popen(
            [sys.executable, "-m", "supervisor.supervisord", "-n", "-c", str(config)],
            stdin=subprocess.DEVNULL,
            preexec_fn=die_with_parent,  # this process has one thread
        )
        child.wait()
        if not stopping:
            signal.sigtimedwait((), pause_s)
            pause_s = next_pause(pause_s, time.monotonic() - started)
    return 0


if __name__ == "__main__":
    sys.exit(main())
