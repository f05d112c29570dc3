"""One real control plane per session, with the chart's kinds, roles and policies on it."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from blurfleet_cli.cluster.ground import install
from blurfleet_cli.cluster.kubeapi import KubeApi
from blurfleet_cli.cluster.plane import ControlPlane

ROOT = Path(__file__).parents[2]
_EXAMPLES = [
    body
    for path in sorted((ROOT / "examples").glob("**/*.yaml"))
    for body in yaml.safe_load_all(path.read_text(encoding="utf-8"))
]
_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with ControlPlane(tmp_path_factory.mktemp("plane")) as started:
        admin = started.admin()
        install(admin, ROOT)
        admin.close()
        yield started


@pytest.fixture(scope="session")
def api(plane: ControlPlane) -> Iterator[KubeApi]:
    admin = plane.admin()
    yield admin
    admin.close()


@pytest.fixture
def client_of(plane: ControlPlane) -> Iterator[Callable[[str], KubeApi]]:
    """Makes clients for tokens and closes them."""
    made: list[KubeApi] = []

    def make(token: str) -> KubeApi:
        made.append(plane.client(token))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def example() -> Callable[..., Any]:
    """The first example of a kind under a name that nobody else has."""

    def make(kind: str, name: str = "") -> Any:
        body = copy.deepcopy(next(b for b in _EXAMPLES if b["kind"] == kind))
        body["metadata"] = {"name": name or f"{kind.lower()}-{next(_numbers)}", "namespace": "default"}
        return body

    return make
