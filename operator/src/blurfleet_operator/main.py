"""The operator as a process: `blurfleet operator` calls `run`."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import kopf

from blurfleet_operator.handlers import changes, lifecycle
from blurfleet_operator.settings import OperatorSettings

HANDLERS = (changes, lifecycle)  # importing them registers them


def run(settings: OperatorSettings, *, stop: threading.Event, ready: threading.Event | None = None) -> None:
    """Run until `stop` is set, on an event loop of its own: kopf cancels every younger task of the loop it is given.

    Call it on a thread of its own. Raises what ends kopf, such as a watch that is refused for good.
    """
    memo: Any = kopf.Memo(settings=settings)
    identity: Any = settings.identity  # a NewType that kopf keeps to itself
    asyncio.run(
        kopf.operator(
            clusterwide=True,
            identity=identity,
            liveness_endpoint=f"http://{settings.health_address}/healthz" if settings.health_address else None,
            memo=memo,
            stop_flag=stop,
            ready_flag=ready,
        )
    )
