"""rembg's own HTTP server, with the weights that are handed to it."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx

from blurfleet.deadline import came_true
from blurfleet.errors import EngineError
from blurfleet.reasons import Reason
from blurfleet_agent.tritonserver import pick_ports
from blurfleet_cli.rivals.environment import numba_cache

MODEL = "u2netp"
STARTED_S = 120.0  # 2 s of processor time, with what was compiled before


@contextlib.contextmanager
def running_rembg(python: Path, weights: bytes, folder: Path, *, threads: int) -> Iterator[tuple[str, int]]:
    """Run it with `threads` onnxruntime threads; yield its address and pid. Raises EngineError."""
    (folder / "u2net").mkdir()
    (folder / "u2net" / f"{MODEL}.onnx").write_bytes(weights)
    port = pick_ports().http
    environment = {
        **os.environ,
        "HOME": str(folder),
        "U2NET_HOME": str(folder / "u2net"),
        **numba_cache(python),
        "OMP_NUM_THREADS": str(threads),  # rembg sets onnxruntime's threads by it
        "BROWSER": "true",
    }
    command = [str(python), "-c", "from rembg.cli import main; main()", "s", "--host", "127.0.0.1", "--no-ui"]
    with (folder / "rembg.log").open("wb") as log:
        process = subprocess.Popen([*command, "--port", str(port)], env=environment, stdout=log, stderr=log)
    address = f"127.0.0.1:{port}"
    try:
        if not came_true(lambda: process.poll() is not None or _answers(address), STARTED_S):
            raise EngineError(Reason.CHECK_FAILED, "rembg did not start", where=str(folder / "rembg.log"))
        if process.poll() is not None:
            words = (folder / "rembg.log").read_text(errors="replace").strip().splitlines()
            raise EngineError(Reason.CHECK_FAILED, f"rembg ended: {words[-1] if words else 'no output'}")
        yield address, process.pid
    finally:
        process.terminate()
        process.wait(30.0)


def _answers(address: str) -> bool:
    try:
        return httpx.get(f"http://{address}/openapi.json", timeout=5.0, trust_env=False).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False
