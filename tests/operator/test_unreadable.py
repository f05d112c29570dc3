"""A node that a newer version wrote keeps what it has, and no rollout goes on as if it were not there."""

from __future__ import annotations

import pytest
from simulated_fleet import Fleet

from blurfleet.api.kinds import Resource
from blurfleet.errors import InvalidSpec
from blurfleet.reasons import Reason
from blurfleet.store.memory import MemoryStore
from blurfleet.store.port import Broken, Ref


class PartlyUnreadable(MemoryStore):
    """A store with NodeEngines that cannot be read."""

    unreadable: frozenset[str] = frozenset()

    def objects(self, kind: str) -> list[Resource]:
        return [r for r in super().objects(kind) if kind != "NodeEngine" or r.meta.name not in self.unreadable]

    def broken(self, kind: str) -> list[Broken]:
        error = InvalidSpec(Reason.INVALID_SPEC, "models.0.primary.precision: Input should be 'FP32'")
        names = sorted(self.unreadable) if kind == "NodeEngine" else []
        return [Broken(ref=Ref(kind=kind, name=name), error=error) for name in names]


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> type[PartlyUnreadable]:
    monkeypatch.setattr("simulated_fleet.MemoryStore", PartlyUnreadable)
    return PartlyUnreadable


def test_a_rollout_holds_for_a_node_that_cannot_be_read_and_tells_it_nothing(
    store: type[PartlyUnreadable], monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = Fleet()
    fleet.set("fp32")
    fleet.promote("fp32")
    before = fleet.spec("orin-1")
    monkeypatch.setattr(store, "unreadable", frozenset({"orin-1"}))
    fleet.tick(2)
    assert fleet.said("Ready") == ("Unknown", "PartialFleet")
    fleet.set("mixed", precision="Mixed", net="net2")
    fleet.change(engine_set="mixed")
    fleet.tick(15)
    assert (fleet.status().phase, fleet.status().outcome) == ("Holding", "")
    assert fleet.said("Progressing")[1] == "PartialFleet"
    assert fleet.spec("orin-1") == before
    fleet.change(selector={"nodes": ("orin-0", "a100-0")})
    fleet.until(lambda: fleet.status().outcome == "Promoted")
    monkeypatch.setattr(store, "unreadable", frozenset())
    fleet.change(selector={"nodes": ()})
    fleet.until(lambda: fleet.serves("orin-1") == "mixed/Primary")
