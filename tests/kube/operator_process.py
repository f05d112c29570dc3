"""The operator as its own process: started as the chart starts it, ended by its pid."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import yaml
from helm_python import Chart
from tests.whole_lines import whole_lines

from blurfleet.deadline import came_true
from blurfleet.reasons import Reason
from blurfleet_cli.ports import free_ports

CHART = Path(__file__).parents[2] / "charts/blurfleet"
TRIES, ALIVE_WITHIN_S = 5, 60.0


@functools.cache
def shipped() -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the chart's command for the operator and the variables that it sets to fixed values."""
    rendered = Chart.load(CHART).render({}, name="blurfleet", namespace="blurfleet-system")
    [text] = [t for name, t in rendered.items() if name.endswith("/operator.yaml")]
    [body] = [b for b in yaml.safe_load_all(text) if b and b["kind"] == "Deployment"]
    [container] = body["spec"]["template"]["spec"]["containers"]
    given = {e["name"]: e["value"] for e in container["env"] if "value" in e}
    return tuple(container["command"]), given


class OperatorProcess:
    """The chart's operator with one kubeconfig; its log lies in `folder`/operator.log."""

    def __init__(self, kubeconfig: Path, folder: Path, **settings: str) -> None:
        self.kubeconfig, self.log = kubeconfig, folder / "operator.log"
        self.settings = settings
        self.health = self.metrics = ""
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it is alive; where a port was taken meanwhile, on others.

        One that ends is left so: its log says why, and a test that needs it waits in vain.
        """
        for _ in range(TRIES):
            began = self.log.stat().st_size if self.log.exists() else 0
            self._start()
            assert came_true(lambda: self.alive() or not self.running(), ALIVE_WITHIN_S), "it is not alive"
            if self.running() or Reason.PORT_IN_USE.encode() not in self.log.read_bytes()[began:]:
                return

    def _start(self) -> None:
        self.health, self.metrics = (f"127.0.0.1:{port}" for port in free_ports(2))
        (name, *words), given = shipped()
        env = {
            **given,
            **{k: v for k, v in os.environ.items() if not k.startswith(("BLURFLEET_", "KUBECONFIG"))},
            "BLURFLEET_KUBECONFIG": str(self.kubeconfig),
            "BLURFLEET_HEALTH_ADDRESS": self.health,
            "BLURFLEET_METRICS_HOST": "127.0.0.1",
            "BLURFLEET_METRICS_PORT": self.metrics.rpartition(":")[2],
            **self.settings,
        }
        with self.log.open("ab") as stream:
            self.process = subprocess.Popen(
                [str(Path(sys.executable).with_name(name)), *words], env=env, stdout=stream, stderr=stream
            )

    def logged(self) -> list[dict[str, Any]]:
        """Return every whole line of its log. Raises ValueError for one that is no JSON."""
        return [json.loads(line) for line in whole_lines(self.log)]

    def running(self) -> bool:
        """Tell whether the process runs."""
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        """End it as a lost machine would."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(60)

    def stop(self) -> int:
        """End it in order and return its exit code; 0 where none was started."""
        if self.process is None:
            return 0
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.process.wait(60)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait(60)

    def alive(self) -> bool:
        """Tell whether the liveness endpoint answers that it is."""
        try:
            return httpx.get(f"http://{self.health}/healthz", timeout=30.0, trust_env=False).status_code == 200
        except httpx.HTTPError:
            return False
