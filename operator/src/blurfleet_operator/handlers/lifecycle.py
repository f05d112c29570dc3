"""Start, end, identity and liveness of the operator."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Iterator
from typing import Any

import kopf
from prometheus_client import CollectorRegistry

from blurfleet.api.base import GROUP
from blurfleet.store.kube import KubeStore
from blurfleet.store.kubeclient import Access, KubeClient
from blurfleet_operator.fleet_metrics import FleetCollector
from blurfleet_operator.loop import Loop
from blurfleet_operator.metrics import LoopMetrics, serve
from blurfleet_operator.observe import read_world
from blurfleet_operator.session import session
from blurfleet_operator.settings import OperatorSettings
from blurfleet_operator.standby import Alone, FencedClient, HeldLease

MANAGER = "blurfleet-operator"
_PREFIX = f"operator.{GROUP}"


class EndlessBackOffs:
    """Waits between tries: short, jittered, without end. An operator that gave up would be blind until restarted."""

    def __iter__(self) -> Iterator[float]:
        while True:
            yield random.uniform(0.5, 2.0)


@kopf.on.startup(id="start")
async def start(settings: kopf.OperatorSettings, memo: Any, **_: Any) -> None:
    """Set kopf up and start the loop."""
    chosen = getattr(memo, "settings", None) or OperatorSettings()
    configure(settings, chosen)
    access = Access(kubeconfig=chosen.kubeconfig)
    memo.peer_client = KubeClient(access, connections=2)
    gate = Alone() if chosen.priority is None else HeldLease(memo.peer_client, chosen)
    memo.client = FencedClient(access, gate, connections=2 * chosen.writers)
    registry = CollectorRegistry()
    memo.metrics_port, memo.metrics_server = serve(registry, chosen.metrics_host, chosen.metrics_port)
    memo.store = KubeStore(memo.client, manager=MANAGER, once=("QualityRun", "EngineQuarantine"))
    metrics = LoopMetrics(registry)
    registry.register(FleetCollector(lambda: read_world(memo.store, time.time(), memo.loop.hearing), metrics.is_acting))
    memo.loop = Loop(memo.store, chosen, metrics, gate)
    memo.loop.start()


def configure(settings: kopf.OperatorSettings, chosen: OperatorSettings) -> None:
    """Set what kopf does by itself: it posts no chatter, persists under our prefix, and never gives up a watch."""
    settings.peering.standalone = chosen.priority is None
    if chosen.priority is not None:
        settings.peering.mandatory = True
        settings.peering.name = chosen.peering
        settings.peering.priority = chosen.priority
        settings.peering.lifetime = chosen.peering_lifetime_s
    settings.posting.level = logging.WARNING
    settings.networking.error_backoffs = EndlessBackOffs()
    settings.networking.connect_timeout = 10
    settings.networking.request_timeout = 30
    settings.watching.chunk_size = 500
    settings.execution.max_workers = 4
    settings.execution.default_backoff = 15
    settings.persistence.finalizer = f"{_PREFIX}/finalizer"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=_PREFIX)
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=_PREFIX, key="last-handled")


@kopf.on.login(id="identity")
async def identity(memo: Any, **_: Any) -> kopf.AiohttpSession:
    """Return who the operator is: the same account for kopf's watches and for the loop's writes."""
    return session(memo.client.identity())


@kopf.on.probe(id="fresh")
async def fresh(memo: Any, **_: Any) -> bool:
    """Say that the loop turns and watches bring changes. Only PermanentError is answered as HTTP 500 at once."""
    if memo.loop.stale:
        raise kopf.PermanentError("reconciliation is stale")
    if blind := memo.loop.blind:
        raise kopf.PermanentError(f"watches bring nothing: {blind}")
    return True


@kopf.on.cleanup(id="end")
async def end(memo: Any, **_: Any) -> None:
    """End the loop after its pass, then the connections."""
    await asyncio.to_thread(memo.loop.close)
    await asyncio.to_thread(memo.store.close)
    await asyncio.to_thread(memo.peer_client.close)
    await asyncio.to_thread(memo.metrics_server.shutdown)
    memo.metrics_server.server_close()
