"""Changes of one kind as an API server tells them, one by one: for fleets too large to look through at every change."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from blurfleet.errors import StoreError
from blurfleet.store import kuberequests as ask
from blurfleet.store.kubeclient import KubeClient
from blurfleet.store.kubemirror import listed

_AGAIN_S = 0.2


class Changes:
    """Calls `take(change, body)` from a thread of its own for what there is and for every change, until closed."""

    def __init__(self, client: KubeClient, kind: str, take: Callable[[str, Mapping[str, Any]], None]) -> None:
        self._client = client
        self._what = ask.collection(kind)
        self._take = take
        self._stop = threading.Event()
        self._end: Callable[[], None] = lambda: None
        self.listed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"changes-{kind}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End; the client stays open."""
        self._stop.set()
        self._end()
        self._thread.join(5.0)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._round()
            except StoreError:
                self._stop.wait(_AGAIN_S)

    def _round(self) -> None:
        bodies, version = listed(self._client, self._what)
        for body in bodies:
            self._take("ADDED", body)
        self.listed.set()
        for event in self._client.stream(self._what.watching(str(version)), self._opened):
            if self._stop.is_set() or event["type"] == "ERROR":
                return
            if event["type"] != "BOOKMARK":
                self._take(event["type"], event["object"])

    def _opened(self, end: Callable[[], None]) -> None:
        self._end = end
        if self._stop.is_set():
            end()
