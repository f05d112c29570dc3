"""The chart as Helm renders it, offline, and how to look things up in that."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from helm_python import Chart

Body = dict[str, Any]
ROOT = Path(__file__).parents[2]
# The loader in C: 17 ms for all manifests instead of 156, at every rendering.
_LOADED = partial(yaml.load_all, Loader=yaml.CSafeLoader)
CHART = ROOT / "charts/blurfleet"


def render(values: Body | None = None) -> list[Body]:
    """Return every manifest, those of the upgrade hook among them."""
    parts = Chart.load(CHART).render(values or {}, name="blurfleet", namespace="blurfleet-system")
    return [b for name, text in parts.items() if name.endswith(".yaml") for b in _LOADED(text) if b]


def of(kind: str, bodies: list[Body]) -> list[Body]:
    return [b for b in bodies if b["kind"] == kind]


def named(bodies: list[Body], kind: str, name: str) -> Body:
    [found] = [b for b in of(kind, bodies) if b["metadata"]["name"] == name]
    return found


def installed(bodies: list[Body]) -> list[Body]:
    """Return what an installation leaves in the cluster: all but hooks."""
    return [b for b in bodies if "helm.sh/hook" not in b["metadata"].get("annotations", {})]


def templates(bodies: list[Body]) -> Iterator[tuple[str, Body]]:
    """Yield kind/name and pod template of whatever makes pods, a CronJob's too."""
    for body in bodies:
        spec = body.get("spec", {})
        template = spec.get("jobTemplate", {}).get("spec", spec).get("template")
        if template is not None:
            yield f"{body['kind']}/{body['metadata']['name']}", template


def pods(bodies: list[Body]) -> list[tuple[str, Body]]:
    return [(where.split("/")[1], template["spec"]) for where, template in templates(bodies)]


def containers(pod: Body) -> list[Body]:
    return [*pod.get("initContainers", ()), *pod["containers"]]
