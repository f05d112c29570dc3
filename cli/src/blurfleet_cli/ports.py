"""Ports on the loopback interface."""

from __future__ import annotations

import contextlib
import random
import socket

from blurfleet.errors import NodeError
from blurfleet.reasons import Reason

# Below the range that Linux takes the ports of outgoing connections from (32768 on): a server that is started again on
# its port must not find a client there, and a client that tries a server which is away must not reach itself.
_RANGE = range(15000, 32768)
_TRIES = 200


def free_ports(count: int) -> list[int]:
    """Return `count` different ports of 127.0.0.1 that are free now. Raises OSError where none is found."""
    with contextlib.ExitStack() as stack:
        return [_bound(stack) for _ in range(count)]


def require_free(host: str, port: int, setting: str) -> None:
    """Raise NodeError PortInUse where nothing can listen on `host`:`port`, naming the `setting` that moves it."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind(address)
    except OSError as error:
        fix = f"set {setting} to what is free on this machine"
        said = error.strerror or str(error)
        raise NodeError(Reason.PORT_IN_USE, said, where=f"{host}:{port}", fix=fix) from error


def _bound(stack: contextlib.ExitStack) -> int:
    for port in random.sample(_RANGE, _TRIES):
        one = stack.enter_context(socket.socket())
        with contextlib.suppress(OSError):
            one.bind(("127.0.0.1", port))
            return port
    raise OSError(f"no free port among {_TRIES} of {_RANGE.start} to {_RANGE.stop - 1}")
