"""One operator, or two of distinct priorities with what they need to meet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from helm_python import Chart

from blurfleet_operator.settings import OperatorSettings

CHART = Path(__file__).parents[2] / "charts/blurfleet"
FILES = ("operator", "rbac-operator")


def render(**standby: Any) -> list[dict[str, Any]]:
    values = {"operator": {"standby": standby}}
    parts = Chart.load(CHART).render(values, name="blurfleet", namespace="blurfleet-system")
    found = [b for f in FILES for b in yaml.safe_load_all(parts[f"blurfleet/templates/{f}.yaml"]) if b]
    for body in found:
        kubernetes_validate.validate(body, "1.37", strict=True)
    return found


def priorities(bodies: list[dict[str, Any]]) -> dict[str, str | None]:
    """Return the rank that each Deployment's operator is started with."""
    found = {}
    for body in bodies:
        if body["kind"] == "Deployment":
            assert body["spec"]["replicas"] == 1
            assert body["spec"]["strategy"] == {"type": "Recreate"}
            env = {e["name"]: e.get("value") for e in body["spec"]["template"]["spec"]["containers"][0]["env"]}
            found[body["metadata"]["name"]] = env.get("BLURFLEET_PRIORITY")
    return found


def test_as_shipped_one_operator_has_no_peers_and_no_right_to_meet_any() -> None:
    bodies = render()
    assert priorities(bodies) == {"blurfleet-operator": None}
    assert "kopf.dev" not in yaml.safe_dump_all(bodies)


def test_with_a_standby_two_are_ranked_and_each_pod_goes_to_one_deployment() -> None:
    bodies = render(enabled=True)
    assert priorities(bodies) == {"blurfleet-operator": "100", "blurfleet-operator-standby": "50"}
    made = [b for b in bodies if b["kind"] == "Deployment"]
    chosen = [b["spec"]["selector"]["matchLabels"] for b in made]
    labels = [b["spec"]["template"]["metadata"]["labels"] for b in made]
    assert [[c.items() <= have.items() for c in chosen] for have in labels] == [[True, False], [False, True]]
    assert [b["metadata"]["name"] for b in bodies if b["kind"] == "CustomResourceDefinition"] == [
        "clusterkopfpeerings.kopf.dev"
    ]


def test_a_definition_that_another_chart_brought_is_left_to_it() -> None:
    assert not [b for b in render(enabled=True, installDefinition=False) if b["kind"] == "CustomResourceDefinition"]


def test_equal_ranks_are_refused() -> None:
    with pytest.raises(Exception, match="of two equal ones neither acts"):
        render(enabled=True, priorities={"operator": 7, "standby": 7})


def test_how_many_verdicts_are_kept_is_a_value_that_the_operator_s_settings_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parts = Chart.load(CHART).render({"operator": {"historyLimit": 7}}, name="blurfleet", namespace="blurfleet-system")
    (made,) = yaml.safe_load_all(parts["blurfleet/templates/operator.yaml"])
    env = {e["name"]: e.get("value") for e in made["spec"]["template"]["spec"]["containers"][0]["env"]}
    assert env["BLURFLEET_HISTORY_LIMIT"] == "7"
    assert OperatorSettings().history_limit == 100
    monkeypatch.setenv("BLURFLEET_HISTORY_LIMIT", env["BLURFLEET_HISTORY_LIMIT"])
    assert OperatorSettings().history_limit == 7
