"""What the loop of one node is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from blurfleet.api.nodeengine import NodeFacts
from blurfleet_agent.desired import Desired
from blurfleet_agent.engines import Engines
from blurfleet_agent.exporter import Metrics
from blurfleet_agent.journal import Journal
from blurfleet_agent.outbox import Outbox
from blurfleet_agent.runtime import Runtime
from blurfleet_agent.settings import AgentSettings
from blurfleet_agent.swap import Swapper
from blurfleet_agent.work import Work


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What the loop is made of."""

    settings: AgentSettings
    desired: Desired
    engines: Engines
    swapper: Swapper
    journal: Journal
    work: Work
    metrics: Metrics
    collect: Callable[[set[str], frozenset[str]], None]
    facts: Callable[[], NodeFacts]
    runtime: Callable[[], Runtime | None] = lambda: None
    outbox: Outbox | None = None
