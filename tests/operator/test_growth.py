"""A decision's work grows with the nodes, not with their square: names are compared, so comparisons are counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from simulated_fleet import Fleet, Script, digest

from blurfleet_operator.decide.rollout import decide
from blurfleet_operator.observe import observation, read_world


class Counted(str):
    """A name that counts how often it is compared with another."""

    compared = 0
    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def promoted(nodes: int) -> Fleet:
    fleet = Fleet({f"n{i:04d}": "a100" for i in range(nodes)})
    fleet.set("good")
    fleet.promote("good")
    return fleet


def suspect(nodes: int) -> Fleet:
    """Return a fleet on which all but one node fail golden frames with every engine, the oracle too."""
    fleet = promoted(nodes)
    fleet.set("next", precision="Mixed")
    bad = {(f"n{i:04d}", digest("next-a100")): "oracle fails" for i in range(nodes - 1)}
    fleet.script = Script(golden=bad, rotten=frozenset(name for name, _ in bad))
    fleet.change(engine_set="next")
    fleet.until(lambda: len(fleet.status().drained) == nodes - 1)
    return fleet


def compared(fleet: Fleet) -> int:
    world = read_world(fleet.store, fleet.now)
    nodes = tuple(replace(n, name=Counted(n.name)) for n in world.nodes)
    Counted.compared = 0
    decide(observation(world, world.rollouts[0], nodes, world.quarantines), fleet.now)
    return Counted.compared


@pytest.mark.parametrize("state", [promoted, suspect], ids=["all serve", "all but one are suspect"])
def test_four_times_the_nodes_are_no_more_than_five_times_the_comparisons(state: Callable[[int], Fleet]) -> None:
    few, many = compared(state(50)), compared(state(200))
    assert few > 0
    assert many <= 5 * few
