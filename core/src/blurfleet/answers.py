"""When a node answers an order: at once where few are ordered, spread where a large class is, bad news always at once.

A class that goes back is one order a node, and one answer. On the API server both cost the same, so a thousand answers
in the same moment would stand before the last orders.
"""

from __future__ import annotations

import math

from blurfleet.api.nodeengine import ModelStatus, NodeEngineStatus

ORDER_S = 1 / 160
"""What an order costs the API server and the operator together, in seconds (docs/figures.md: 2 cores)."""
_LEAST_S = 1.0
BAD_NEWS = frozenset({"GoldenFailed", "Refused", "Failed"})
"""Phases of a candidate that will not be proven."""


def spread_s(nodes: int, held_s: float) -> float:
    """Return how many seconds after an order `nodes` nodes of a class answer: the time that all the orders take.

    A power of two, at least one second, 0 where orders take less. What is held (`held_s`) stays while it is neither too
    short nor four times too long, so that a fleet at a threshold is not written again with every node that comes.
    """
    needed = nodes * ORDER_S
    if held_s / 4 < needed <= held_s:
        return held_s
    return 0.0 if needed < _LEAST_S else float(2 ** math.ceil(math.log2(needed)))


def urgent(old: NodeEngineStatus | None, new: NodeEngineStatus) -> bool:
    """Tell whether `new` says something that waits for nobody: a trip, a candidate that failed, what turned False."""
    if old is None:
        return True
    before = {m.name: m for m in old.models}
    return bool(_untrue(new) - _untrue(old)) or any(_bad(before.get(m.name), m) for m in new.models)


def _bad(old: ModelStatus | None, new: ModelStatus) -> bool:
    if old is None:
        return new.last_trip is not None
    failed = new.candidate is not None and new.candidate.phase in BAD_NEWS and new.candidate != old.candidate
    return failed or new.last_trip != old.last_trip


def _untrue(status: NodeEngineStatus) -> frozenset[tuple[str, str]]:
    of_models = {(m.name, c.type) for m in status.models for c in m.conditions if c.status == "False"}
    return frozenset(of_models | {("", c.type) for c in status.conditions if c.status == "False"})
