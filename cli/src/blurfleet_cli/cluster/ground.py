"""What an API server must hold before blurfleet can stand on it: kinds, accounts, roles, admission policies.

The kinds come from the chart's `crds/`, the rest from `deploy/ground.yaml`, which `make gen` renders from the chart
(`python -m blurfleet_cli.cluster.ground`), so that neither a cluster on loopback nor a user without Helm needs Helm.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from blurfleet.deadline import came_true
from blurfleet.errors import NodeError, StoreError, UnknownName
from blurfleet.reasons import Reason
from blurfleet_cli.cluster.identities import NAMESPACE
from blurfleet_cli.cluster.in_force import questions, refuses
from blurfleet_cli.cluster.kubeapi import KubeApi

CHART = Path("charts/blurfleet")
GROUND = Path("deploy/ground.yaml")
_TEMPLATES = (
    "rbac-operator",
    "rbac-agent",
    "rbac-people",
    "policy-quarantine",
    "policy-agents",
    "policy-operator",
    "policy-rollouts",
    "flow-agents",
)
_HEAD = "# Rendered from charts/blurfleet by `make gen`: namespace, accounts, roles, policies and flow, for no Helm.\n"
_READY_S = 60.0
_POLL_S = 0.1


def render_ground(chart: Path) -> str:
    """Return the namespace and the chart's roles and policies as YAML. Raises what the Helm SDK raises."""
    from helm_python import Chart

    rendered = Chart.load(chart).render({}, name="blurfleet", namespace=NAMESPACE)
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    parts = [yaml.safe_dump(space, sort_keys=False)]
    parts += [rendered[f"blurfleet/templates/{name}.yaml"].strip("\n") + "\n" for name in _TEMPLATES]
    return _HEAD + "---\n".join(parts)


def install(api: KubeApi, root: Path = Path(), tell: Callable[[str], None] = lambda _: None) -> None:
    """Apply the ground of the checkout `root` and return once kinds are served and policies refuse.

    May be repeated. Raises UnknownName where `root` is no checkout, StoreError, and NodeError after a minute.
    """
    require_checkout(root)
    tell("installing kinds")
    definitions = [body for path in _definitions(root) for body in _documents(path)]
    for body in definitions:
        api.apply(body)
    _until(lambda: all(established(api.get(body)) for body in definitions), "a kind is not served")
    tell("installing roles and policies")
    for body in _documents(root / GROUND):
        api.apply(body)
    tell("waiting for the policies to be in force")
    _wait_in_force(api)


def require_checkout(root: Path = Path()) -> None:
    """Raise UnknownName where `root` is no checkout: ask before anything is started for it."""
    if not _definitions(root) or not (root / GROUND).is_file():
        raise UnknownName(
            Reason.NOT_FOUND, "no chart here", where=str(root.resolve()), fix="run this in blurfleet's checkout"
        )


def _definitions(root: Path) -> list[Path]:
    return sorted((root / CHART / "crds").glob("*.yaml"))


def _documents(path: Path) -> Iterator[Any]:
    return (body for body in yaml.safe_load_all(path.read_text(encoding="utf-8")) if body)


def established(definition: Any) -> bool:
    """Tell whether the server says of a kind's definition, as it serves it, that it serves the kind."""
    found = (definition.get("status") or {}).get("conditions") or ()  # null in the first moment
    return any(c["type"] == "Established" and c["status"] == "True" for c in found)


def _wait_in_force(api: KubeApi) -> None:
    """Wait until each policy refuses what it must refuse: created is not yet in force."""
    with questions(api) as asked:
        for policy, question in asked.items():
            _until(partial(refuses, policy, question), f"{policy} does not refuse what it must")


def _until(holds: Callable[[], bool], otherwise: str) -> None:
    last = ""

    def held() -> bool:
        nonlocal last
        try:
            return holds()
        except StoreError as error:
            last = f": {error.message[:300]}"
            return False

    if not came_true(held, _READY_S, poll_s=_POLL_S):
        raise NodeError(Reason.SERVER_NOT_READY, f"{otherwise} after {_READY_S:.0f} s{last}")


def main() -> int:
    """Write `deploy/ground.yaml` of the checkout in the working directory. Raises OSError."""
    GROUND.parent.mkdir(exist_ok=True)
    GROUND.write_text(render_ground(CHART), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
