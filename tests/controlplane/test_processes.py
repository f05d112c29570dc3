"""Processes known by a pid file: ended means ended with every thread, as each holds what all of them hold."""

from __future__ import annotations

import json
import platform
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from blurfleet_cli.cluster import processes

# Of Linux: it ends the thread that calls it and no other.
EXIT = {"x86_64": 60, "aarch64": 93}[platform.machine()]
FIRST_THREAD_ENDS = f"""
import ctypes, socket, threading
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
threading.Thread(target=server.accept).start()
ctypes.CDLL(None).syscall({EXIT}, 0)
"""


def test_a_process_whose_first_thread_ended_lives_and_is_stopped_with_what_it_holds(
    tmp_path: Path, until: Callable[..., None]
) -> None:
    pid_file, log = tmp_path / "pid", tmp_path / "log"
    processes.start([sys.executable, "-c", FIRST_THREAD_ENDS], pid_file=pid_file, log=log)
    pid = json.loads(pid_file.read_text())["pid"]
    until(lambda: psutil.Process(pid).status() == psutil.STATUS_ZOMBIE, what="the first thread's end")
    assert processes.alive(pid_file)
    address = ("127.0.0.1", int(log.read_text()))
    with pytest.raises(OSError, match="in use"):
        socket.create_server(address)
    assert processes.stop(pid_file, grace_s=0)
    socket.create_server(address).close()
    assert not psutil.pid_exists(pid)
