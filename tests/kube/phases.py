"""How a rollout gets into each of its phases and is held there: by what nodes report and by what the spec says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fleet_objects import Fleet
from scripted_nodes import ScriptedNode

Nodes = Mapping[str, ScriptedNode]


def nothing(fleet: Fleet, nodes: Nodes) -> None:
    """Let it be."""


@dataclass(frozen=True, kw_only=True)
class Held:
    """A rollout from set `good` to `next`, held in `phase` for `reason`, and what lets it go on to the phase `ends`.

    All rollouts take the step `first` before `hold` waits for what comes of it: they wait at the same time.
    After an abort it is in phase `abort_ends`, and `said` events name the token. With `again` a new attempt begins.
    """

    phase: str
    reason: str
    hold: Callable[[Fleet, Nodes], None]
    first: Callable[[Fleet, Nodes], None] = nothing
    release: Callable[[Fleet, Nodes], None] = nothing
    ends: str = "Promoted"
    abort_ends: str = "Aborted"
    said: int = 1
    again: bool = False


def new(fleet: Fleet) -> str:
    """Return the digest of the engine under test."""
    return fleet.digest("next-a100")


def selects_nobody(fleet: Fleet, nodes: Nodes) -> None:
    fleet.change(engineSet="next", selector={"matchLabels": {"test": "nobody"}})


def selects_all(fleet: Fleet, nodes: Nodes) -> None:
    fleet.change(selector={"matchLabels": {"test": fleet.space}})


def stages(fleet: Fleet, nodes: Nodes) -> None:
    for node in nodes.values():
        node.script.staging.add(new(fleet))
    fleet.change(engineSet="next")


def staging(fleet: Fleet, nodes: Nodes) -> None:
    fleet.until(lambda: all(candidate(fleet, n) == "Staging" for n in nodes), what="both nodes stage")


def staged(fleet: Fleet, nodes: Nodes) -> None:
    for node in nodes.values():
        node.script.staging.clear()


def candidate(fleet: Fleet, node: str) -> str:
    found = next((m.candidate for m in fleet.node(node).status.models), None)
    return str(found.phase) if found is not None else ""


def undecided(fleet: Fleet, nodes: Nodes, **spec: object) -> None:
    for node in nodes.values():
        node.script.undecided.add(new(fleet))
    fleet.change(engineSet="next", **spec)


def decided(fleet: Fleet, nodes: Nodes) -> None:
    for node in nodes.values():
        node.script.undecided.clear()


def late(fleet: Fleet, nodes: Nodes) -> None:
    undecided(fleet, nodes, progressDeadline="1s")


def gated(fleet: Fleet, nodes: Nodes) -> None:
    fleet.change(engineSet="next", waves=[{"name": "all", "percent": 100, "gate": "Manual"}])


def soaking(fleet: Fleet, nodes: Nodes) -> None:
    fleet.change(engineSet="next", waves=[{"name": "all", "percent": 100, "soak": "1h"}])


def opened(fleet: Fleet, nodes: Nodes) -> None:
    fleet.change(ops={"promote": "go"})


def paused(fleet: Fleet, nodes: Nodes) -> None:
    fleet.change(engineSet="next", paused=True)


def resumed(fleet: Fleet, nodes: Nodes) -> None:
    fleet.change(paused=False)


def tripped(fleet: Fleet, nodes: Nodes) -> None:
    fleet.wait_phase("Holding", "WaitingForGate")
    nodes["a"].script.trips.add(new(fleet))


def mended(fleet: Fleet, nodes: Nodes) -> None:
    nodes["a"].script.trips.clear()
    fleet.change(ops={"retry": "again"})
    fleet.wait_phase("Holding", "WaitingForGate")
    opened(fleet, nodes)


def promoted(fleet: Fleet, nodes: Nodes) -> None:
    fleet.change(engineSet="next")


def both_trip(fleet: Fleet, nodes: Nodes) -> None:
    fleet.wait_phase("Holding", "WaitingForGate")
    for node in nodes.values():
        node.script.trips.add(new(fleet))


def rolling_back(fleet: Fleet, nodes: Nodes) -> None:
    fleet.wait_phase("Holding", "WaitingForGate")
    for node in nodes.values():
        node.script.stays = True
        node.script.trips.add(new(fleet))


def aborting(fleet: Fleet, nodes: Nodes) -> None:
    fleet.wait_phase("Holding", "WaitingForGate")
    for node in nodes.values():
        node.script.stays = True
    fleet.change(ops={"abort": "first"})


def nodes_follow(fleet: Fleet, nodes: Nodes) -> None:
    for node in nodes.values():
        node.script.stays = False


def aborted(fleet: Fleet, nodes: Nodes) -> None:
    staging(fleet, nodes)
    fleet.change(ops={"abort": "first"})


def misnamed(fleet: Fleet, nodes: Nodes) -> None:
    fleet.change(engineSet="typo")


def corrected(fleet: Fleet, nodes: Nodes) -> None:
    fleet.change(engineSet="next")


PHASES: dict[str, Held] = {
    "no node selected": Held(phase="Pending", reason="NoNodesSelected", hold=selects_nobody, release=selects_all),
    "staging": Held(phase="Progressing", reason="WaveInProgress", first=stages, hold=staging, release=staged),
    "soaking": Held(phase="Progressing", reason="WaitingForSoak", hold=soaking, release=opened),
    "no live frames": Held(phase="Holding", reason="HoldNoData", hold=undecided, release=decided),
    "at a gate": Held(phase="Holding", reason="WaitingForGate", hold=gated, release=opened),
    "paused": Held(phase="Holding", reason="Paused", hold=paused, release=resumed),
    "one node tripped": Held(
        phase="Holding", reason="HoldTripped", first=gated, hold=tripped, release=mended, again=True
    ),
    "promoted": Held(phase="Promoted", reason="Promoted", hold=promoted),
    "rolling back": Held(
        phase="RollingBack",
        reason="Quarantined",
        first=gated,
        hold=rolling_back,
        release=nodes_follow,
        ends="RolledBack",
        abort_ends="RolledBack",
        said=0,
    ),
    "aborting": Held(
        phase="RollingBack", reason="Aborted", first=gated, hold=aborting, release=nodes_follow, ends="Aborted", said=0
    ),
    "rolled back": Held(
        phase="RolledBack",
        reason="Quarantined",
        first=gated,
        hold=both_trip,
        ends="RolledBack",
        abort_ends="RolledBack",
        said=0,
    ),
    "aborted": Held(phase="Aborted", reason="Aborted", first=stages, hold=aborted, ends="Aborted", said=0),
    "too late": Held(phase="Stalled", reason="ProgressDeadlineExceeded", hold=late, release=decided),
    "set unknown": Held(
        phase="Stalled", reason="UnknownEngineSet", hold=misnamed, release=corrected, abort_ends="Stalled", again=True
    ),
}
