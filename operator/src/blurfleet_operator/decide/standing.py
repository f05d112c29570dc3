"""Which of several operators acts: the one of highest priority, once no other holds the lease. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from blurfleet.errors import StoreError
from blurfleet.reasons import Reason
from blurfleet_operator.decide.observation import instant

_FOREIGN_LIFETIME_S = 60  # what kopf assumes of an entry that names none


@dataclass(frozen=True, kw_only=True)
class Peer:
    """One operator as its entry in the peering object shows it; `until` is in seconds since the epoch."""

    identity: str
    priority: int
    until: float


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Whether this operator may act, and why."""

    acts: bool
    reason: Reason
    message: str


def peers(status: Mapping[str, Any], now: float) -> tuple[Peer, ...]:
    """Return the operators that a peering object's status names. Raises StoreError where an entry is none.

    An entry that does not say when it was last seen was seen now, as kopf has it. `now`: seconds since the epoch.
    """
    found = []
    for identity, entry in status.items():
        try:
            seen = instant(str(entry.get("lastseen") or ""))
            lifetime = int(entry.get("lifetime", _FOREIGN_LIFETIME_S))
            priority = int(entry.get("priority", 0))
        except (AttributeError, TypeError, ValueError) as error:
            raise StoreError(
                Reason.UNPARSEABLE,
                f"peering entry {identity} cannot be read: {error}",
                where=identity,
                fix="remove the entry from the peering object's status",
            ) from error
        found.append(Peer(identity=identity, priority=priority, until=(now if seen is None else seen) + lifetime))
    return tuple(found)


def stand(me: str, priority: int, others: Iterable[Peer], holder: str, now: float) -> Standing:
    """Decide whether the operator `me` may act beside `others`, which may hold its own entry.

    `holder` is who holds the lease, empty where nobody does or it ran out: a priority says who should act, the lease
    who does, and the lower one keeps it until its pass has ended. `now`: seconds since the epoch.
    """
    for peer in others:
        if peer.identity == me or not (now < peer.until) or peer.priority < priority:
            continue
        if peer.priority == priority:
            words = f"{peer.identity} has priority {priority} too, so neither acts; give them distinct ones"
            return Standing(acts=False, reason=Reason.PRIORITY_SHARED, message=words)
        words = f"{peer.identity} has priority {peer.priority}, this one {priority}"
        return Standing(acts=False, reason=Reason.STANDING_BY, message=words)
    if holder not in ("", me):
        return Standing(acts=False, reason=Reason.HANDING_OVER, message=f"{holder} still holds the lease")
    return Standing(acts=True, reason=Reason.ACTING, message=f"no other operator has priority {priority} or more")
