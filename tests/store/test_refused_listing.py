"""A server that refuses some of what it is asked: a listing of many pages goes on where it was refused."""

from __future__ import annotations

from typing import Any, cast

import pytest

from blurfleet.errors import StoreError
from blurfleet.reasons import Reason
from blurfleet.store.kube import KubeStore
from blurfleet.store.kubeclient import KubeClient
from blurfleet.store.kuberequests import Request

PAGES = 8


class RefusingClient:
    """Stands in for the client of a server: two of three times it refuses a page for `reason`."""

    def __init__(self, reason: Reason) -> None:
        self.reason = reason
        self.asked: list[int] = []

    def send(self, request: Request) -> Any:
        page = int(dict(request.query).get("continue", 0))
        self.asked.append(page)
        if self.asked.count(page) < 3:
            raise StoreError(self.reason, "500: injected", where=request.path)
        more = str(page + 1) if page + 1 < PAGES else ""
        body = {"metadata": {"name": f"node-{page}", "uid": f"u{page}", "resourceVersion": "3"}}
        return {"metadata": {"resourceVersion": "5", "continue": more}, "items": [body]}


def test_each_page_is_asked_for_again_and_none_twice_that_came() -> None:
    client = RefusingClient(Reason.STORE_UNREADABLE)
    store = KubeStore(cast(KubeClient, client), manager="tests")
    store.feed("NodeEngine")
    found = store.relist("NodeEngine")
    assert found == {("", f"node-{page}"): 3 for page in range(PAGES)}
    assert client.asked == [page for page in range(PAGES) for _ in range(3)]


def test_what_is_forbidden_is_not_asked_for_again() -> None:
    client = RefusingClient(Reason.FORBIDDEN)
    store = KubeStore(cast(KubeClient, client), manager="tests")
    store.feed("NodeEngine")
    with pytest.raises(StoreError):
        store.relist("NodeEngine")
    assert client.asked == [0]
