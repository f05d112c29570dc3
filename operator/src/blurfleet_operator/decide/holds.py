"""Why an attempt does not advance. A chain of named checks over the nodes reached; first one wins.

Nothing here reverts: doubt holds, and only `failures` takes an engine away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

from blurfleet.api.capabilities import Capability, lacking
from blurfleet.api.nodeengine import CandidateStatus
from blurfleet.reasons import Reason
from blurfleet_operator.decide.failures import Scene, failed_in_shadow
from blurfleet_operator.decide.observation import Finding, NodeView


@dataclass(frozen=True, kw_only=True)
class Standing:
    """The nodes reached so far, the engine each is to serve, and what is known against going on.

    `known_good` holds the classes on which the set was promoted already, within the rollback window. `needed` is what
    an agent must be able to do, `strangers` are names in the waves reached that are no selected nodes,
    `unreadable` those of nodes that this version cannot read.
    """

    scene: Scene
    reached: tuple[NodeView, ...]
    wanted: dict[str, str]
    tripped: tuple[str, ...]
    paused: bool
    drained: tuple[NodeView, ...] = ()
    known_good: frozenset[str] = frozenset()
    needed: frozenset[Capability] = frozenset()
    strangers: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()

    def serves(self, node: NodeView) -> bool:
        """Tell whether clients of `node` are answered by the engine it is to serve, as far as is known now."""
        return node.name in self._serving

    @cached_property
    def _serving(self) -> frozenset[str]:
        def serves(node: NodeView) -> bool:
            digest = self.wanted.get(node.name, "")
            return bool(digest) and node.reachable(self.scene.now) and node.serving_digest(self.scene.model) == digest

        return frozenset(n.name for n in self.reached if serves(n))

    @cached_property
    def waiting(self) -> list[NodeView]:
        """Return the reached nodes that do not serve it yet."""
        return [n for n in self.reached if not self.serves(n)]


Check = Callable[[Standing], Finding | None]


def tripped(standing: Standing) -> Finding | None:
    """No node is off its engine because of a trip."""
    if not standing.tripped:
        return None
    names = ", ".join(standing.tripped)
    return Finding(
        reason=Reason.HOLD_TRIPPED, message=f"tripped on {names}; no further node until retry or another set"
    )


def suspects(standing: Standing) -> Finding | None:
    """Beside drained nodes a healthy one of the class is reached: where all are suspect it may be the set after all."""
    for device_class in sorted({n.device_class for n in standing.drained}):
        if any(n.device_class == device_class for n in standing.reached):
            continue
        names = ", ".join(n.name for n in standing.drained if n.device_class == device_class)
        message = (
            f"engine and oracle both fail golden frames on {names} and no other {device_class} node is in the wave; "
            f"look at the nodes, and at {standing.scene.set_name}"
        )
        return Finding(reason=Reason.HOLD_NODE_SUSPECT, message=message)
    return None


def named(standing: Standing) -> Finding | None:
    """Every node that a reached wave names is selected: a wrong name must not make the canary smaller unseen."""
    if not standing.strangers:
        return None
    message = (
        f"the wave names {', '.join(standing.strangers)}, which the selector does not match or which is no node; "
        "correct spec.waves"
    )
    return Finding(reason=Reason.UNKNOWN_NODE, message=message)


def preprocessing(standing: Standing) -> Finding | None:
    """No node reads golden pictures differently from golden tensors: an engine swap would mend nothing."""
    return _first(
        standing,
        lambda c: c.reason == Reason.CONTRACT_CHANGED,
        Reason.CONTRACT_CHANGED,
        "golden pictures fail while golden tensors pass; look at the preprocessing",
    )


def failed_loads(standing: Standing) -> Finding | None:
    """No candidate failed to stage, load or fit."""
    return _first(
        standing,
        lambda c: c.phase in ("Failed", "Refused") and not failed_in_shadow(c),
        Reason.BLOCKED_BY_FAILED_LOAD,
        "the candidate could not be loaded",
    )


def readable(standing: Standing) -> Finding | None:
    """No node is there that this version cannot read: it must not drop out of the waves unseen."""
    if not standing.unreadable:
        return None
    names = ", ".join(standing.unreadable)
    message = f"{names}: written by a newer version, cannot be read by this one and keeps what it has"
    return Finding(reason=Reason.PARTIAL_FLEET, message=message)


def unreachable(standing: Standing) -> Finding | None:
    """Every reached node was heard from."""
    names = [n.name for n in standing.reached if not n.reachable(standing.scene.now)]
    if not names:
        return None
    return Finding(reason=Reason.PARTIAL_FLEET, message=f"not heard from {', '.join(names)} within 90 s")


def capable(standing: Standing) -> Finding | None:
    """Every reached node that was heard from can do all that the attempt asks of it."""
    for node in standing.reached:
        facts = node.status.facts
        missing = lacking(standing.needed, facts.capabilities) if node.reachable(standing.scene.now) else ()
        if missing:
            cannot = " nor ".join(c.words for c in missing)
            agent = f"agent {facts.agent_version or 'of unknown version'}"
            since = max(c.since for c in missing)
            message = f"{node.name} keeps what it has: its {agent} cannot {cannot}; that needs {since} or newer"
            return Finding(reason=Reason.AGENT_TOO_OLD, message=message)
    return None


def swap_proven(standing: Standing) -> Finding | None:
    """No reached node says that it cannot swap."""
    return _said_false(standing, "SwapProven", Reason.SWAP_NOT_PROVEN, "cannot prove a swap")


def fallback_ready(standing: Standing) -> Finding | None:
    """No reached node says that its fallback fails."""
    return _said_false(standing, "FallbackReady", Reason.FALLBACK_NOT_PROVEN, "has no proven fallback")


def is_paused(standing: Standing) -> Finding | None:
    """The rollout is not paused."""
    return Finding(reason=Reason.PAUSED, message="spec.paused is true") if standing.paused else None


def oracle_missing(standing: Standing) -> Finding | None:
    """A golden failure can be told apart: the oracle ran."""
    return _first(
        standing,
        lambda c: c.phase == "GoldenFailed" and c.oracle_passed is None,
        Reason.ORACLE_UNAVAILABLE,
        "golden frames failed, but the oracle did not run: engine and node cannot be told apart",
    )


def enough_samples(standing: Standing) -> Finding | None:
    """No candidate waits for live samples, and none claims proof without them."""
    return _first(
        standing,
        lambda c: c.phase in ("Shadowing", "Proven") and c.samples_valid < c.samples_required and c.samples_valid > 0,
        Reason.HOLD_INSUFFICIENT_SAMPLES,
        "too few valid live samples",
    )


def any_data(standing: Standing) -> Finding | None:
    """No candidate waits for its first live sample."""
    return _first(
        standing,
        lambda c: c.phase in ("Shadowing", "Proven") and c.samples_required > 0 and c.samples_valid == 0,
        Reason.HOLD_NO_DATA,
        "no valid live sample yet",
    )


def conclusive(standing: Standing) -> Finding | None:
    """Every node that serves it calls its analysis conclusive, unless the set was known good on the node's class.

    A known good set stays Ready when cameras are off, and an undo does not wait for frames.
    """
    return _doubt([n for n in standing.reached if n.device_class not in standing.known_good], standing)


def live_doubt(standing: Standing) -> Finding | None:
    """Return what is in doubt on any node that serves it, known good or not: to be shown, not to hold."""
    return _doubt(standing.reached, standing)


def _doubt(nodes: Iterable[NodeView], standing: Standing) -> Finding | None:
    """An agent of before this was said is not waited for; the candidates of other nodes are judged by themselves."""
    for node in nodes:
        if not standing.serves(node):
            continue
        said = node.said(standing.scene.model, "AnalysisConclusive")
        if said is None and Capability.ANALYSIS_CONCLUSIVE in node.status.facts.capabilities:
            return Finding(reason=Reason.NO_DATA, message=f"{node.name}: says nothing of its live frames")
        if said is not None and said.status != "True":
            return Finding(reason=said.reason, message=f"{node.name}: {said.message or 'analysis is inconclusive'}")
    return None


# What stops new candidates and promotions on every node, and what only stops the wave from being called done.
STOPS: tuple[Check, ...] = (tripped, is_paused)
CHAIN: tuple[Check, ...] = (
    tripped,
    suspects,
    named,
    preprocessing,
    capable,
    swap_proven,
    failed_loads,
    oracle_missing,
    readable,
    unreachable,
    fallback_ready,
    is_paused,
    any_data,
    enough_samples,
    conclusive,
)


def first_hold(standing: Standing, chain: tuple[Check, ...] = CHAIN) -> Finding | None:
    """Return the first reason of `chain` to hold, None where there is none."""
    for check in chain:
        found = check(standing)
        if found is not None:
            return found
    return None


def _first(standing: Standing, holds: Callable[[CandidateStatus], bool], reason: Reason, words: str) -> Finding | None:
    for node in standing.waiting:
        candidate = standing.scene.judged(node)
        if candidate is not None and holds(candidate):
            detail = candidate.message or candidate.reason
            samples = (
                f" ({candidate.samples_valid}/{candidate.samples_required} valid)" if candidate.samples_required else ""
            )
            return Finding(reason=reason, message=f"{node.name}: {words}{samples}: {detail}")
    return None


def _said_false(standing: Standing, kind: str, reason: Reason, words: str) -> Finding | None:
    for node in standing.reached:
        said = node.said(standing.scene.model, kind)
        if said is not None and said.status == "False":
            return Finding(reason=reason, message=f"{node.name} {words}: {said.message or said.reason}")
    return None
