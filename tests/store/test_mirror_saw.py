"""Who looks at a mirror's single changes sees what is new, before anybody is told, and nothing that came late."""

from __future__ import annotations

from typing import Any

from blurfleet.store.kubemirror import Mirror


def body(name: str, version: int) -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": f"u-{name}", "resourceVersion": str(version)}}


def test_each_new_version_is_seen_once_and_before_the_change_is_told() -> None:
    order: list[object] = []
    mirror = Mirror(dict, lambda: order.append("told"), lambda b: order.append(b["metadata"]["resourceVersion"]))
    mirror.replace([body("a", 5)], 5)
    for kind, what in (
        ("MODIFIED", body("a", 7)),
        ("MODIFIED", body("a", 6)),
        ("ADDED", body("b", 8)),
        ("DELETED", body("a", 9)),
        ("MODIFIED", body("a", 10)),
    ):
        mirror.take(kind, what)
    assert order == ["told", "7", "told", "8", "told", "told"]
