"""A gateway as a process of its own, for the benches."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from blurfleet.deadline import came_true
from blurfleet.errors import EngineError
from blurfleet.reasons import Reason

STARTED_S = 60.0


@contextlib.contextmanager
def running_gateway(folder: Path, triton_grpc: str, *, infer_timeout_s: float = 5.0) -> Iterator[dict[str, Any]]:
    """Run a gateway over the routing file in `folder`; yield what its `gateway.json` says. Raises EngineError."""
    environment = {
        **os.environ,
        "BLURFLEET_NODE_DIR": str(folder),
        "BLURFLEET_TRITON_GRPC": triton_grpc,
        "BLURFLEET_GATEWAY_PORT": "0",
        "BLURFLEET_INFER_TIMEOUT_S": str(infer_timeout_s),
    }
    said = folder / "gateway.json"
    with (folder / "gateway.log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-m", "blurfleet_cli", "gateway"], env=environment, stderr=log)
    try:
        if not came_true(lambda: said.exists() or process.poll() is not None, STARTED_S) or not said.exists():
            raise EngineError(Reason.CHECK_FAILED, "the gateway did not start", where=str(said))
        yield json.loads(said.read_text())
    finally:
        process.terminate()
        process.wait(STARTED_S)
