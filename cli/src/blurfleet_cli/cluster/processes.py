"""Processes that outlive the command that started them: known by a pid file, ended by that pid alone."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import psutil

from blurfleet.deadline import came_true
from blurfleet.store.atomic import write_atomic

_NOTHING: Mapping[str, str] = MappingProxyType({})


def start(command: Sequence[str], *, pid_file: Path, log: Path, env: Mapping[str, str] = _NOTHING) -> None:
    """Start `command` in a session of its own, its output appended to `log`. Raises OSError.

    `env` is added to this process's environment.
    """
    # Not subprocess: it warns about every process that its starter does not wait for.
    pid = os.posix_spawnp(
        command[0],
        list(command),
        {**os.environ, **env},
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
    )
    started = psutil.Process(pid).create_time()
    write_atomic(pid_file, json.dumps({"schemaVersion": 1, "pid": pid, "started": started}).encode())


def alive(pid_file: Path) -> bool:
    """Tell whether the process of `pid_file` runs: the same process, not another that got its pid."""
    return _process(pid_file) is not None


def stop(pid_file: Path, *, grace_s: float) -> bool:
    """End the process: SIGTERM, after `grace_s` seconds SIGKILL; returns once it is gone. False where none ran."""
    process = _process(pid_file)
    if process is not None:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGTERM if grace_s > 0 else signal.SIGKILL)
            if not _gone(pid_file, grace_s or 10.0):
                process.send_signal(signal.SIGKILL)
                _gone(pid_file, 10.0)
    pid_file.unlink(missing_ok=True)
    return process is not None


def _gone(pid_file: Path, within_s: float) -> bool:
    return came_true(lambda: not alive(pid_file), within_s)


def _process(pid_file: Path) -> psutil.Process | None:
    try:
        record = json.loads(pid_file.read_bytes())
        process = psutil.Process(int(record["pid"]))
        if abs(process.create_time() - float(record["started"])) > 1.0:
            return None
        if process.status() == psutil.STATUS_ZOMBIE and process.num_threads() <= 1:
            # Ended with all its threads: while one is left, a killed server's port is still taken.
            # Ours if this process started it: collect it, so that its pid is free again.
            with contextlib.suppress(ChildProcessError):
                os.waitpid(process.pid, os.WNOHANG)
            return None
    except (OSError, ValueError, KeyError, psutil.Error):
        return None
    return process
