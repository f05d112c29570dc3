"""What to serve after a start, from what survived: journal, routing file, version folders, own status. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from blurfleet.serving.routing import Route, RoutedEngine
from blurfleet_agent.journal_records import AliasState


@dataclass(frozen=True, kw_only=True)
class Served:
    """What an alias points at, or must point at again: `settled` is false while the swap's last steps are owed."""

    engine: RoutedEngine
    role: Literal["Primary", "Fallback"]
    primary: RoutedEngine
    fallback: RoutedEngine | None
    epoch: int
    settled: bool


@dataclass(frozen=True, kw_only=True)
class RecoveryPlan:
    """`served` is to be served again, at its own epoch; the next swap takes `next_epoch`."""

    served: Served | None
    next_epoch: int


def recover(
    journal: AliasState, route: Route | None, folders: Iterable[int] = (), status_epoch: int = 0
) -> RecoveryPlan:
    """Return what the node served, or had journaled to serve, when it stopped.

    The higher epoch of journal and routing file wins: the journal is written first, and the routing file is ahead of it
    only when the disk was full. At the same epoch the journal wins. Version folders and status only raise the epoch.
    """
    routed_epoch = route.epoch if route is not None else 0
    next_epoch = max([journal.epoch, routed_epoch, status_epoch, *folders]) + 1
    intent = journal.intent
    if intent is not None and intent.epoch >= routed_epoch:
        served = Served(
            engine=intent.to,
            role=intent.role,
            primary=intent.primary,
            fallback=intent.fallback,
            epoch=intent.epoch,
            settled=journal.done and route is not None and route.epoch == intent.epoch,
        )
    elif route is not None:
        served = Served(
            engine=route.active,
            role=route.serving,
            primary=route.primary,
            fallback=route.fallback,
            epoch=route.epoch,
            settled=False,
        )
    else:
        return RecoveryPlan(served=None, next_epoch=next_epoch)
    return RecoveryPlan(served=served, next_epoch=next_epoch)


def recover_all(
    journal: Mapping[str, AliasState],
    routes: Mapping[str, Route],
    folders: Mapping[str, Iterable[int]],
    status_epochs: Mapping[str, int],
) -> dict[str, RecoveryPlan]:
    """Return the plan of every alias that any source names."""
    names = sorted({*journal, *routes, *status_epochs})
    return {
        name: recover(
            journal.get(name, AliasState()), routes.get(name), folders.get(name, ()), status_epochs.get(name, 0)
        )
        for name in names
    }
