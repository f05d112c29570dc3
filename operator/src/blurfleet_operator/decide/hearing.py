"""When each node was last heard from, by the listener's clock alone. Pure.

A heartbeat carries the time of the node that wrote it. Two machines' clocks differ, so its age is no difference of
them: a node is heard when its heartbeat *changes* while somebody listens, as Kubernetes watches its own Leases.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from blurfleet_operator.decide.observation import HEARTBEAT_LIMIT_S, instant

# Beyond this a node's clock is called wrong: changes reach a listener within seconds.
CLOCK_TOLERANCE_S = 10.0


@dataclass(frozen=True, kw_only=True)
class Heard:
    """One node: its heartbeat as written, and when that was heard (listener's seconds).

    `sure` is False where the heartbeat may be older than the listener: it was there at the start, or after an outage,
    and does not look recent. `behind` is by how many seconds the node's clock is behind, as far as that was seen.
    """

    text: str
    at: float
    sure: bool
    behind: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Hearing:
    """What was heard up to `listened`, by node. `limit` is how long a silence may last, in seconds."""

    nodes: Mapping[str, Heard] = field(default_factory=dict)
    listened: float | None = None
    limit: float = HEARTBEAT_LIMIT_S

    @property
    def silent(self) -> frozenset[str]:
        """Return the nodes that said nothing for too long. One that never spoke is none of them."""
        return frozenset(n for n, h in self.nodes.items() if h.text and self._age(h) > self.limit)

    def hears(self, name: str) -> bool:
        """Tell whether the node is known to speak; in doubt it is neither heard nor silent."""
        heard = self.nodes.get(name)
        return heard is not None and bool(heard.text) and heard.sure and self._age(heard) <= self.limit

    def behind(self, name: str) -> float:
        """Return by how many seconds the node's clock is behind, 0 where it is right or was never compared."""
        return self.nodes[name].behind if name in self.nodes else 0.0

    def since(self, name: str) -> float:
        """Return for how many seconds the node has said nothing, 0 where nobody knows it."""
        return self._age(self.nodes[name]) if name in self.nodes else 0.0

    def _age(self, heard: Heard) -> float:
        return (self.listened or 0.0) - heard.at


def hear(previous: Hearing, heartbeats: Mapping[str, str], now: float, *, wall: float, away: float) -> Hearing:
    """Return what is heard at `now` (listener's monotonic seconds) of `heartbeats`, by node.

    A heartbeat is an RFC 3339 time, or several with spaces between; it is compared with itself, and with `wall`
    (seconds since the epoch) only to tell whether one that was there before anybody listened looks recent, and whether
    the node's clock is wrong. Who did not listen for longer than `away` seconds begins anew: only nodes that were
    silent before stay so.
    """
    gap = None if previous.listened is None else now - previous.listened
    listening = gap is not None and gap <= away
    silent = previous.silent
    found = {}
    for name, text in heartbeats.items():
        old = previous.nodes.get(name)
        if old is not None and text == old.text and (listening or name in silent):
            found[name] = old
        elif old is not None and gap is not None and listening:
            found[name] = _changed(text, now, gap, wall)
        else:
            found[name] = _found(text, now, wall, previous.limit, old)
    return Hearing(nodes=found, listened=now, limit=previous.limit)


def _changed(text: str, now: float, gap: float, wall: float) -> Heard:
    """Return what was said since the last look, `gap` seconds ago: when it was said, if the node's clock can tell."""
    age = _age(text, wall)
    if age is None:
        return Heard(text=text, at=now, sure=True)
    right = -CLOCK_TOLERANCE_S <= age <= gap + CLOCK_TOLERANCE_S
    said = min(max(age, 0.0), gap) if right else 0.0
    return Heard(text=text, at=now - said, sure=True, behind=0.0 if right else age)


def _found(text: str, now: float, wall: float, limit: float, old: Heard | None) -> Heard:
    """Return what was there before anybody listened: sure only where it looks recent."""
    age = _age(text, wall)
    behind = old.behind if old is not None else 0.0
    if age is None or not -CLOCK_TOLERANCE_S <= age <= limit:
        return Heard(text=text, at=now, sure=False, behind=behind)
    return Heard(text=text, at=now - max(age, 0.0), sure=True, behind=behind)


def _age(text: str, wall: float) -> float | None:
    """Return how old the newest time in `text` is by another clock, None where there is none."""
    times = [t for t in map(instant, text.split()) if t is not None]
    return wall - max(times) if times else None
