"""Runs one server and guarantees that nothing of it outlives its owner: no process, no shared-memory file.

Started as a file of its own (`python -I -S tritonkeeper.py`), standard library only. It stops the server when the owner
closes the pipe on standard input (if it is one), dies, or sends SIGTERM. It stands between because a death signal set
by a multi-threaded owner fires when the *thread* that forked ends, and because somebody must still be there to sweep
after the owner was killed.

Exit status: the server's own if it ended by itself, 0 after a clean stop, 3 if it had to be killed.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
KILLED = 3
SHARED_MEMORY = Path("/dev/shm")
OWNER_CHECK_MS = 1000


def main() -> int:
    """Run `argv = [prefix, grace_s, server, args...]`; the first line on standard output is the server's pid."""
    prefix, grace_s, command = sys.argv[1], float(sys.argv[2]), sys.argv[3:]
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    told, tell = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.set_wakeup_fd(tell)
    server = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0),  # this process has one thread
    )
    os.write(1, b"%d\n" % server.pid)
    try:
        return _watch(server, told, grace_s)
    finally:
        _kill_group(server.pid)
        sweep(prefix)


def _watch(server: subprocess.Popen[bytes], told: int, grace_s: float) -> int:
    owner = os.getppid()
    ended = os.pidfd_open(server.pid)
    poll = select.poll()
    owned_by_pipe = stat.S_ISFIFO(os.fstat(0).st_mode)  # a supervisor gives /dev/null, which is always readable
    for descriptor in (*((0,) if owned_by_pipe else ()), told, ended):
        poll.register(descriptor, select.POLLIN | select.POLLHUP)
    while True:
        ready = {descriptor for descriptor, _ in poll.poll(OWNER_CHECK_MS)}
        if ended in ready:
            return server.wait()
        if ready or os.getppid() != owner:
            break
    server.terminate()
    try:
        server.wait(timeout=grace_s)
    except subprocess.TimeoutExpired:
        return KILLED
    return 0


def _kill_group(group: int) -> None:
    """Kill what is left of the server's group and reap all of it, the orphans that were handed to this process too."""
    deadline = time.monotonic() + 5.0
    while time.monotonic() < deadline:
        try:
            os.killpg(group, signal.SIGKILL)
        except ProcessLookupError:
            break
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            break


def sweep(prefix: str) -> list[str]:
    """Remove the shared-memory files whose names begin with `prefix`; return their names."""
    gone = []
    for path in SHARED_MEMORY.glob(f"{prefix}*"):
        path.unlink(missing_ok=True)
        gone.append(path.name)
    return gone


if __name__ == "__main__":
    sys.exit(main())
