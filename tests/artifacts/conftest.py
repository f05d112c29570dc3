"""A server of objects on loopback, reached directly whatever proxy this machine has."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from object_server import ObjectServer


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectServer]:
    with ObjectServer() as running:
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        for name, value in {
            "AWS_ENDPOINT_URL": running.url,
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "eu-central-1",
        }.items():
            monkeypatch.setenv(name, value)
        yield running
