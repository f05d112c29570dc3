"""The operator as its own process: started with settings by environment, ended by its pid."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx

from blurfleet_cli.ports import free_ports


class OperatorProcess:
    """`blurfleet operator` with one kubeconfig; its log lies in `folder`/operator.log."""

    def __init__(self, kubeconfig: Path, folder: Path, **settings: str) -> None:
        self.kubeconfig, self.log = kubeconfig, folder / "operator.log"
        self.settings = settings
        self.health = f"127.0.0.1:{free_ports(1)[0]}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; nothing waits for it to be ready."""
        env = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("BLURFLEET_", "KUBECONFIG"))},
            "BLURFLEET_KUBECONFIG": str(self.kubeconfig),
            "BLURFLEET_HEALTH_ADDRESS": self.health,
            "BLURFLEET_METRICS_PORT": "0",
            **self.settings,
        }
        with self.log.open("ab") as stream:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "blurfleet_cli", "operator"], env=env, stdout=stream, stderr=stream
            )

    def running(self) -> bool:
        """Tell whether the process runs."""
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        """End it as a lost machine would."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)

    def stop(self) -> int:
        """End it in order and return its exit code; 0 where none was started."""
        if self.process is None:
            return 0
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.process.wait(30)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait(10)

    def alive(self) -> bool:
        """Tell whether the liveness endpoint answers that it is."""
        try:
            return httpx.get(f"http://{self.health}/healthz", timeout=5.0, trust_env=False).status_code == 200
        except httpx.HTTPError:
            return False
