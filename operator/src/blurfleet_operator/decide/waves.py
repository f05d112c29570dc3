"""Which nodes a wave holds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from blurfleet.api.rollout import Wave
from blurfleet_operator.decide.observation import NodeView


def reached(waves: Sequence[Wave], index: int, selected: Iterable[NodeView]) -> tuple[str, ...]:
    """Return the names of the nodes in waves 0..`index`, sorted.

    `percent` is of the selected nodes of each class, rounded up, and counts the nodes that earlier waves named.
    """
    nodes = sorted(selected, key=lambda n: n.name)
    inside: set[str] = set()
    for wave in waves[: index + 1]:
        if wave.percent is None:
            inside |= {n.name for n in nodes if n.name in wave.nodes}
            continue
        for device_class in sorted({n.device_class for n in nodes}):
            members = [n.name for n in nodes if n.device_class == device_class]
            # The ones already in come first: a wave never takes a node back.
            members.sort(key=lambda name: (name not in inside, name))
            inside |= set(members[: math.ceil(wave.percent * len(members) / 100)])
    return tuple(sorted(inside))


def strangers(waves: Sequence[Wave], index: int, selected: Iterable[NodeView]) -> tuple[str, ...]:
    """Return the names in `nodes` of waves 0..`index` that are not among the selected nodes, sorted."""
    known = {n.name for n in selected}
    return tuple(sorted({name for wave in waves[: index + 1] for name in wave.nodes} - known))


def covered(waves: Sequence[Wave], selected: Iterable[NodeView]) -> tuple[str, ...]:
    """Return the names of the nodes in all waves."""
    return reached(waves, len(waves) - 1, selected)
