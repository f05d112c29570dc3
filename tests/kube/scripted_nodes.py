"""Status writers in place of agents: what a node would report, scripted, written over the real API as its own account.

They stage, load and judge nothing: scenarios about the operator need many nodes and no engines. Tests that need a real
swap use the real agent.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from blurfleet.api.nodeengine import NodeEngineStatus
from blurfleet.errors import BlurfleetError
from blurfleet.store.kube import KubeStore
from blurfleet.store.kubeclient import Access, KubeClient
from blurfleet.store.kuberequests import replacing_status
from blurfleet.store.port import Ref
from blurfleet_cli.simulated_nodes import Script, report

SYSTEM = "blurfleet-system"
_LOOK_S = 0.5  # what a test changes in a script is done within that


class ScriptedNode:
    """Follows one NodeEngine and writes its status and Lease, as the node's agent would.

    It beats once `beat_s` seconds have passed, when it looks next: at a change, or half a second after it looked last.
    """

    def __init__(self, name: str, device_class: str, access: Access, *, beat_s: float = 10.0) -> None:
        self.name, self.device_class, self.script = name, device_class, Script()
        self.beat_s = beat_s
        self.client = KubeClient(access, connections=4)
        self.store = KubeStore(self.client, manager="blurfleet-agent", node=name)
        self.clock_off = 0.0  # seconds that the node's clock is ahead
        self.newer: dict[str, Any] = {}
        self.errors: list[str] = []
        self.served: list[str] = []
        self._stop, self._wake = threading.Event(), threading.Event()
        self._beat_at = -1e9
        self._thread = threading.Thread(target=self._run, name=f"scripted-{name}", daemon=True)

    def start(self) -> ScriptedNode:
        self._thread.start()
        return self

    def stop(self) -> None:
        """Say that it ends; `close` waits for it."""
        self._stop.set()
        self._wake.set()

    def close(self) -> None:
        self.stop()
        self._thread.join(10)
        self.store.close()

    def _write(self, ref: Ref, status: NodeEngineStatus) -> None:
        """Write the status; an agent of a newer version says `newer` in it as well."""
        if not self.newer:
            self.store.write_status(ref, status)
            return
        request = replacing_status(ref, status, "blurfleet-agent")
        request.body[0]["value"].update(self.newer)
        self.client.send(request)

    def _run(self) -> None:
        self.store.follow("NodeEngine", told=self._wake.set)
        while not self._stop.is_set():
            try:
                self._turn()
            except BlurfleetError as error:
                self.errors.append(str(error))
            self._wake.wait(_LOOK_S)
            self._wake.clear()

    def _turn(self) -> None:
        now = time.time() + self.clock_off
        if self.script.silent:
            return
        if time.monotonic() - self._beat_at > self.beat_s:
            self.store.beat(self.name, SYSTEM, now, every_s=30.0)
            self._beat_at = time.monotonic()
        ref = Ref(kind="NodeEngine", name=self.name)
        found = self.store.get(ref)
        if found is None:
            return
        status = report(found, self.device_class, self.script, now)
        if status != found.status:
            self._write(ref, status)
            for model in status.models:
                if model.serving is not None and (not self.served or self.served[-1] != model.serving.digest):
                    self.served.append(model.serving.digest)
