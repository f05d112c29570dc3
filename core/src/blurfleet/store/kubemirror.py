"""A copy of one collection of the API server in memory, and the thread that keeps it: list, watch, list again."""

from __future__ import annotations

import contextlib
import random
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import structlog

from blurfleet.deadline import came_true
from blurfleet.errors import BlurfleetError, InvalidSpec, StoreError
from blurfleet.reasons import Reason
from blurfleet.store.kubeclient import KubeClient
from blurfleet.store.kuberequests import Collection, Request

Key = tuple[str, str]
Parse = Callable[[Mapping[str, Any]], Any]

_GONE_KEPT = 4096
_FIRST_WAIT_S = 0.2
_LONGEST_WAIT_S = 5.0
_PAGE_AGAIN_S = 0.1
_log = structlog.get_logger("blurfleet.store")


class _Item:
    """One object as served; parsed when first looked at, since most changes are overtaken before anyone looks."""

    __slots__ = ("body", "parsed", "uid", "version")

    def __init__(self, body: Mapping[str, Any]) -> None:
        meta = body["metadata"]
        self.body = body
        self.version = int(meta.get("resourceVersion") or 0)
        self.uid = str(meta.get("uid", ""))
        self.parsed: Any = None


class Mirror:
    """Objects of one collection by (namespace, name). Versions only grow: what arrives late is not believed.

    `changed` is called after every change, `saw` before it with each single object that a change brought.
    """

    def __init__(self, parse: Parse, changed: Callable[[], None], saw: Callable[[Any], None] | None = None) -> None:
        self._parse = parse
        self._changed = changed
        self._saw = saw
        self._lock = threading.Lock()
        self._items: dict[Key, _Item] = {}
        self._gone: deque[str] = deque(maxlen=_GONE_KEPT)
        self.synced = threading.Event()
        self.trouble: StoreError | None = None

    def take(self, kind: str, body: Mapping[str, Any]) -> None:
        """Believe one change: ADDED, MODIFIED or DELETED (or an answer to an own write, which is a MODIFIED)."""
        item = _Item(body)
        key = _key(body)
        with self._lock:
            old = self._items.get(key)
            if kind == "DELETED":
                self._gone.append(item.uid)
                if old is None or old.uid != item.uid:
                    return
                del self._items[key]
            else:
                late = old is not None and old.version >= item.version
                if late or item.uid in self._gone:
                    return
                self._items[key] = item
        if self._saw is not None and kind != "DELETED":
            self._saw(body)
        self._changed()

    def forget(self, key: Key) -> None:
        """Remove an object that was deleted by an own request."""
        with self._lock:
            old = self._items.pop(key, None)
            if old is not None:
                self._gone.append(old.uid)
        if old is not None:
            self._changed()

    def replace(self, bodies: list[Mapping[str, Any]], version: int) -> dict[Key, int]:
        """Believe a whole listing made at `version`; only what is known to be newer than it survives.

        Returns the versions of what is newer in the listing than it was known.
        """
        listed = {_key(b): _Item(b) for b in bodies}
        with self._lock:
            newer = {k: i for k, i in self._items.items() if i.version > version}
            kept = {
                k: self._items[k] if k in self._items and self._items[k].version == i.version else i
                for k, i in listed.items()
                if i.uid not in self._gone
            }
            before, self._items = self._items, kept | newer
            news = {k: i.version for k, i in self._items.items() if k not in before or before[k].version < i.version}
            moved = before != self._items
            first = not self.synced.is_set()
        self.synced.set()
        if moved or first:
            self._changed()
        return news

    def version(self, key: Key) -> int | None:
        """Return the version of an object, None where there is none."""
        with self._lock:
            item = self._items.get(key)
        return None if item is None else item.version

    def get(self, key: Key) -> Any:
        """Return the parsed object, None where there is none. Raises InvalidSpec where it cannot be parsed."""
        with self._lock:
            item = self._items.get(key)
        return None if item is None else self._parsed(item)

    def served(self, key: Key) -> Mapping[str, Any] | None:
        """Return the object as the server sent it, None where there is none."""
        with self._lock:
            item = self._items.get(key)
        return None if item is None else item.body

    def all(self) -> tuple[list[Any], list[tuple[Key, BlurfleetError]]]:
        """Return what can be parsed, ordered by namespace and name, and what cannot with the reason."""
        with self._lock:
            items = sorted(self._items.items())
        good: list[Any] = []
        bad: list[tuple[Key, BlurfleetError]] = []
        for key, item in items:
            try:
                good.append(self._parsed(item))
            except InvalidSpec as error:
                bad.append((key, error))
        return good, bad

    def _parsed(self, item: _Item) -> Any:
        if item.parsed is None:
            try:
                item.parsed = self._parse(item.body)
            except InvalidSpec as error:
                item.parsed = error
        if isinstance(item.parsed, InvalidSpec):
            raise item.parsed
        return item.parsed


def _key(body: Mapping[str, Any]) -> Key:
    return str(body["metadata"].get("namespace", "")), str(body["metadata"]["name"])


def listed(client: KubeClient, what: Collection, *, patience_s: float = 0.0) -> tuple[list[Mapping[str, Any]], int]:
    """Return all objects, page by page, and the version they were listed at. Raises StoreError.

    A page that the server cannot answer is asked for again, for at most `patience_s` seconds.
    """
    found: list[Mapping[str, Any]] = []
    more = ""
    while True:
        page = _page(client, what.listing(more), patience_s)
        found += page.get("items") or []
        more = page["metadata"].get("continue", "")
        if not more:
            return found, int(page["metadata"].get("resourceVersion") or 0)


def _page(client: KubeClient, request: Request, patience_s: float) -> Any:
    pages: list[Any] = []
    refused: list[StoreError] = []

    def answered() -> bool:
        try:
            pages.append(client.send(request))
        except StoreError as error:
            if error.reason is not Reason.STORE_UNREADABLE:
                raise
            refused.append(error)
        return pages != []

    if not came_true(answered, patience_s, poll_s=_PAGE_AGAIN_S):
        raise refused[-1]
    return pages[0]


class Reflector:
    """Keeps a mirror on a thread of its own: lists, watches, and after trouble waits and begins again."""

    def __init__(self, client: KubeClient, what: Collection, mirror: Mirror) -> None:
        self._client = client
        self._what = what
        self._mirror = mirror
        self._stop = threading.Event()
        self._end: Callable[[], None] = lambda: None
        self._version = ""
        self._streaming = False
        self.recoveries = 0
        self._thread = threading.Thread(target=self._run, name=f"mirror-{what.kind}", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """End the watch and the thread."""
        self._stop.set()
        with contextlib.suppress(OSError, ValueError, RuntimeError, AttributeError):
            self._end()  # unless it ended by itself in this moment
        self._thread.join(timeout=5.0)

    def _run(self) -> None:
        failures = 0
        while not self._stop.is_set():
            try:
                self._round()
                failures = 0
            except StoreError as error:
                failures = self._failed(error, failures)
            except Exception as error:
                # The mirror must never go blind in silence, whatever a server sends.
                _log.exception("watch failed", kind=self._what.kind)
                wrapped = StoreError(Reason.STORE_UNREADABLE, f"{type(error).__name__}: {error}")
                failures = self._failed(wrapped, failures)

    def _failed(self, error: StoreError, failures: int) -> int:
        gone, broke = error.reason is Reason.CONFLICT, self._streaming
        self._streaming = False
        if gone:
            self._version = ""  # 410 Gone: the history up to here was compacted; list again
        if gone or broke:
            # A stream that breaks says nothing of the server: go on from the last version. If that fails, it is away.
            self._stop.wait(random.uniform(0.02, 0.2))
            return failures
        if self._mirror.trouble is None and not self._stop.is_set():
            _log.warning("API server is away", kind=self._what.kind, reason=error.reason, message=error.message)
        self._version = ""
        self._mirror.trouble = error
        self._stop.wait(random.uniform(0.5, 1.0) * min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2.0 ** min(failures, 8)))
        return failures + 1

    def _round(self) -> None:
        if not self._version:
            bodies, version = listed(self._client, self._what)
            self._mirror.replace(bodies, version)
            self._version = str(version)
            self._well()
        for event in self._client.stream(self._what.watching(self._version), self._opened):
            if self._stop.is_set():
                return
            self._take(event)
        self._streaming = False

    def _well(self) -> None:
        if self._mirror.trouble is not None:
            _log.info("API server is back", kind=self._what.kind)
            self.recoveries += 1
        self._mirror.trouble = None

    def _opened(self, end: Callable[[], None]) -> None:
        self._end, self._streaming = end, True
        if self._stop.is_set():
            end()

    def _take(self, event: Mapping[str, Any]) -> None:
        kind, body = event["type"], event["object"]
        if kind == "ERROR":
            self._version = ""
            raise StoreError(
                Reason.CONFLICT if body.get("code") == 410 else Reason.STORE_UNREADABLE, str(body.get("message", ""))
            )
        self._version = str(body["metadata"]["resourceVersion"])
        if kind != "BOOKMARK":
            self._mirror.take(kind, body)
