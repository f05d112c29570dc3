"""A real node on the API server: its own Triton, and the agent as a process with the token its pod would hold."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tests.agent.tiny import Shelf

from blurfleet.serving.framecodec import FrameKind, FrameSample
from blurfleet.serving.frames import FrameSender
from blurfleet.serving.routing import Route, read_routing
from blurfleet.serving.triton import TritonClient
from blurfleet_agent.tritonserver import TritonServer


class RealNode:
    """Triton is given; the agent is started and ended here. Frames are answered as the gateway answers them."""

    def __init__(self, name: str, folder: Path, server: TritonServer, kubeconfig: Path, token_file: Path) -> None:
        self.name, self.folder, self.alias = name, folder, "bokeh"
        (folder / "shelf").mkdir(parents=True)
        self.shelf = Shelf(folder=folder / "shelf")
        self.node_dir = folder / "node"
        self.server, self.client = server, TritonClient(server.grpc_address)
        self._frames = itertools.count(1)
        self._sender: FrameSender | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self.env = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("BLURFLEET_", "KUBECONFIG"))},
            "BLURFLEET_NODE": name,
            "BLURFLEET_DEVICE_CLASS": "jetson-orin",
            "BLURFLEET_PLATFORM": "linux-x86_64-cpu",
            "BLURFLEET_RUNTIME_VERSION": "0",
            "BLURFLEET_NODE_DIR": str(self.node_dir),
            "BLURFLEET_STORE_KIND": "kube",
            "BLURFLEET_KUBECONFIG": str(kubeconfig),
            "BLURFLEET_TOKEN_FILE": str(token_file),
            "BLURFLEET_LEASE_S": "2",
            "BLURFLEET_TRITON_GRPC": server.grpc_address,
            "BLURFLEET_TRITON_KEY": server.settings.key,
            "BLURFLEET_MODEL_REPOSITORY": str(server.settings.model_repository),
            "BLURFLEET_SIMULATED": "true",
            "BLURFLEET_METRICS_PORT": "0",
            "BLURFLEET_SAMPLE_SHARE": "1.0",
            "BLURFLEET_SAMPLE_HZ": "200",
            "BLURFLEET_TICK_S": "0.1",
            "BLURFLEET_MEMORY_RESERVE_BYTES": "0",
            "BLURFLEET_STORAGE_RESERVE_BYTES": "0",
            "BLURFLEET_UNLOAD_AFTER_S": "0.5",
        }

    def start(self) -> None:
        """Start the agent."""
        with (self.folder / "agent.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "blurfleet_cli", "agent"], env=self.env, stdout=log, stderr=log
            )

    def kill(self) -> None:
        """End the agent as a power cut would."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(60)

    def close(self) -> None:
        """End everything of this node but its Triton."""
        self.kill()
        if self._sender is not None:
            self._sender.close()
        self.client.close()

    def route(self) -> Route | None:
        """Return the model's route, as a gateway reads it."""
        return read_routing(self.node_dir / "routing.json").models.get(self.alias)

    def said(self) -> str:
        """Return what the agent says of itself: its ready file."""
        path = self.node_dir / "agent.json"
        return str(json.loads(path.read_text())["pid"]) if path.exists() else ""

    def frame(self, tensor: NDArray[np.float32]) -> NDArray[np.float32]:
        """Answer one frame by the engine that serves, and tell the agent."""
        route = self.route()
        assert route is not None
        if self._sender is None:
            self._sender = FrameSender(self.node_dir / "frames.sock")
        matte = self.client.infer(route.active.engine, tensor, timeout_s=30.0).matte
        bad = not bool(np.isfinite(matte).all())
        self._sender.offer(
            FrameSample(
                model=self.alias,
                stream="cam",
                frame_id=next(self._frames),
                epoch=route.epoch,
                engine=route.active.engine,
                digest=route.active.digest,
                at=time.time(),
                tensor=tensor,
                matte=matte,
                kind=FrameKind.WITHHELD if bad else FrameKind.SAMPLE,
                reason="NonFiniteOutput" if bad else "",
                trace_id="4bf92f3577b34da6a3ce929d0e0e4736",
            )
        )
        return matte
