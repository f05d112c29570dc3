"""One agent process: settings in, parts wired, until SIGTERM."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import structlog
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry

from blurfleet import __version__
from blurfleet.api.capabilities import Capability
from blurfleet.api.nodeengine import NodeFacts
from blurfleet.artifacts import Location, fetchers
from blurfleet.errors import NodeError
from blurfleet.logs import log_libraries
from blurfleet.reasons import Reason
from blurfleet.serving.frames import FrameReceiver
from blurfleet.serving.routing import read_routing
from blurfleet.serving.triton import TritonClient
from blurfleet.store.atomic import write_atomic
from blurfleet.store.kube import KubeStore
from blurfleet.store.port import Store
from blurfleet_agent.aliases import AliasMechanics
from blurfleet_agent.ballast import Ballast
from blurfleet_agent.control import RepositoryControl
from blurfleet_agent.crash import CrashPoint, no_crash
from blurfleet_agent.desired import Desired
from blurfleet_agent.device_memory import DeviceMemory, device_memory
from blurfleet_agent.engines import Engines
from blurfleet_agent.evidence_files import EvidenceFiles
from blurfleet_agent.exporter import Metrics, MetricsServer
from blurfleet_agent.guard_spans import guard_spans_to
from blurfleet_agent.guard_thread import GuardThread
from blurfleet_agent.guarding import Guarding
from blurfleet_agent.health import STUCK_S, Health
from blurfleet_agent.journal import Journal
from blurfleet_agent.lease import LeaseKeeper
from blurfleet_agent.node import Node
from blurfleet_agent.outbox import Outbox
from blurfleet_agent.parts import Parts
from blurfleet_agent.recovery import recover_all
from blurfleet_agent.repository import ModelRepository
from blurfleet_agent.runtime import ONNXRUNTIME, TENSORRT, Versions
from blurfleet_agent.sampling import Budget
from blurfleet_agent.settings import AgentSettings
from blurfleet_agent.staging import Staging
from blurfleet_agent.steady import steady_clock
from blurfleet_agent.storing import open_store
from blurfleet_agent.swap import Swapper
from blurfleet_agent.trips import TripDesk
from blurfleet_agent.watch import Watch
from blurfleet_agent.work import Work

AGENT_SCHEMA = 1


def run_agent(settings: AgentSettings, *, store: Store | None = None, crash: CrashPoint = no_crash) -> None:
    """Run the node's agent until SIGTERM or SIGINT.

    `<node folder>/agent.json` holds `{schemaVersion, pid, metrics}` once it works. Raises NodeError where the node
    folder or the metrics port cannot be used.
    """
    log_as_json()
    log_libraries(quiet=("opentelemetry",))  # the exporter's complaints are counted and said once
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    opened = store or open_store(settings)
    with closing_store(opened), agent(settings, store=opened, crash=crash) as node:
        watcher = threading.Thread(target=_watch, args=(node, stop), name="store-watch", daemon=True)
        watcher.start()
        node.run(stop.is_set)


@contextlib.contextmanager
def agent(settings: AgentSettings, *, store: Store, crash: CrashPoint = no_crash) -> Iterator[RunningNode]:
    """Wire the parts, start guard and metrics, and yield the node; everything is closed afterwards."""
    with _usable(settings.node_dir, "BLURFLEET_NODE_DIR"):
        settings.node_dir.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        registry = CollectorRegistry()
        metrics = Metrics(registry, node=settings.node, device_class=settings.device_class)
        health = Health()
        server = _serve_metrics(registry, settings.metrics_host, settings.metrics_port, health)
        stack.callback(server.close)
        journal = Journal(settings.journal_file)
        if journal.cut:
            structlog.get_logger("blurfleet.journal").warning("journal cut", message=journal.cut)
        stack.callback(journal.close)
        control = stack.enter_context(RepositoryControl(settings.triton_grpc, settings.key()))
        client = stack.enter_context(TritonClient(settings.triton_grpc))
        with _usable(settings.model_repository, "BLURFLEET_MODEL_REPOSITORY"):
            repository = ModelRepository(settings.model_repository, settings.node_dir / "staging")
            repository.clear_staging()
        mechanics = AliasMechanics(repository, control, client)
        ballast = Ballast(settings.node_dir / "ballast.bin")
        ballast.hold()
        swapper = Swapper(
            journal=journal,
            routing_file=settings.routing_file,
            flips=mechanics,
            ballast=ballast,
            simulated=settings.simulated,
            crash=crash,
            ready_s=settings.alias_ready_s,
        )
        home = Location(uri=settings.artifacts, token=settings.artifacts_token.get_secret_value())
        with _usable(settings.artifacts_dir, "BLURFLEET_NODE_DIR"):
            staging = Staging(
                settings.artifacts_dir, reserve_bytes=settings.storage_reserve_bytes, fetch=fetchers(home)
            )
        memory = device_memory(sm=settings.sm, platform=settings.platform, gpu_index=settings.gpu_index)
        engines = Engines(
            staging=staging,
            repository=repository,
            control=control,
            memory_reserve=settings.memory_reserve_bytes,
            timeout_s=settings.load_timeout_s,
            memory=memory.available,
        )
        desired = Desired(store, settings.node, settings.node_dir / "desired.json")
        outbox = Outbox(store, desired.ref, settings.node_dir / "events.json")
        stack.callback(outbox.close)
        outbox.start()
        _adopt(swapper, journal, settings, repository, desired)

        def infer(engine: str, tensor: NDArray[np.float32]) -> NDArray[np.float32]:
            return client.infer(engine, tensor, timeout_s=settings.infer_timeout_s).matte

        evidence = EvidenceFiles(settings, metrics)
        steady = steady_clock()
        versions = Versions(
            ask=control.server_version,
            clock=steady,
            configured=settings.runtime_version,
            kind=TENSORRT if settings.sm else ONNXRUNTIME,
            probe=settings.runtime_names,
        )
        node = RunningNode(
            Parts(
                settings=settings,
                desired=desired,
                engines=engines,
                swapper=swapper,
                journal=journal,
                work=Work(
                    engines=engines,
                    staging=staging,
                    mechanics=mechanics,
                    infer=infer,
                    device_class=settings.device_class,
                    keep_golden=evidence.golden,
                    clock=steady,
                ),
                metrics=metrics,
                collect=lambda digests, names: collect(
                    staging, repository, ballast, digests, names, settings.artifact_budget_bytes
                ),
                facts=lambda: facts(settings, server.address, versions, memory),
                runtime=versions.runtime,
                outbox=outbox,
            ),
            clock=steady,
        )
        node.metrics_address = server.address
        node.store = store
        evidence.on_lost = node.lose_evidence
        spans = guard_spans_to(settings, metrics)
        stack.callback(spans.close)
        desk = TripDesk(swapper=swapper, journal=journal, metrics=metrics, keeper=evidence, spans=spans)

        def guarding(watch: Watch, now: float) -> Guarding:
            return Guarding(
                watch,
                swapper=swapper,
                infer=infer,
                desk=desk,
                metrics=metrics,
                tell=node.tell,
                kept_frames=settings.evidence_frames,
                now=now,
                spans=spans,
            )

        guard = GuardThread(
            FrameReceiver(settings.frames_socket), guarding, Budget(share=settings.sample_share, hz=settings.sample_hz)
        )
        stack.callback(guard.close)
        guard.start()
        node.attach(guard)
        health.feel = node.pulse
        if settings.store_kind == "kube":
            keeper = _lease(store, settings, node)
            stack.callback(keeper.close)
            keeper.start()
        ready = {"schemaVersion": AGENT_SCHEMA, "pid": os.getpid(), "metrics": server.address}
        with _usable(settings.node_dir, "BLURFLEET_NODE_DIR"):
            write_atomic(settings.node_dir / "agent.json", json.dumps(ready).encode())
        yield node


@contextlib.contextmanager
def _usable(folder: Path, variable: str) -> Iterator[None]:
    """Say which setting names a folder that the agent cannot use."""
    try:
        yield
    except OSError as error:
        raise NodeError(
            Reason.STORE_UNWRITABLE,
            f"folder cannot be used: {error.strerror or error}",
            where=error.filename or str(folder),
            fix=f"set {variable} to a folder that this user may write",
        ) from error


@contextlib.contextmanager
def closing_store(store: Store) -> Iterator[None]:
    """Close `store` afterwards where it holds connections."""
    try:
        yield
    finally:
        close = getattr(store, "close", None)
        if close is not None:
            close()


class RunningNode(Node):
    """A node with what its surroundings need to know."""

    metrics_address: str
    store: Store

    def lose_evidence(self, message: str) -> None:
        """Note that a verdict's evidence could not be kept; empty text says that it works again."""
        self.evidence_lost = message


def facts(settings: AgentSettings, metrics_address: str, versions: Versions, memory: DeviceMemory) -> NodeFacts:
    """Return what this node is, measured now."""
    now = memory.read()
    return NodeFacts(
        sm=settings.sm,
        platform=settings.platform,
        runtime_version=versions.runtime().version,
        triton_version=versions.triton(),
        memory_total_bytes=now.total,
        memory_available_bytes=now.available,
        memory_source=memory.source,
        driver_version=memory.driver,
        agent_version=__version__,
        capabilities=tuple(c.value for c in Capability),
        metrics_address=metrics_address,
    )


def log_as_json() -> None:
    """Write one JSON object a line to standard error."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
    )


def _adopt(
    swapper: Swapper, journal: Journal, settings: AgentSettings, repository: ModelRepository, desired: Desired
) -> None:
    try:
        routes = read_routing(settings.routing_file).models
    except NodeError:
        routes = {}  # the journal is written before it and says the same
    epochs = {m.name: m.serving.epoch for m in desired.status().models if m.serving is not None}
    swapper.adopt(recover_all(journal.state.aliases, routes, repository.aliases(), epochs))


def _serve_metrics(registry: CollectorRegistry, host: str, port: int, health: Health | None = None) -> MetricsServer:
    try:
        return MetricsServer(registry, port, host, health)
    except OSError as error:
        raise NodeError(
            Reason.PORT_IN_USE,
            f"metrics cannot be served: {error}",
            where=f"{host}:{port}",
            fix="set BLURFLEET_METRICS_PORT to another port (0: a free one), BLURFLEET_METRICS_HOST to an own address",
        ) from error


def collect(
    staging: Staging,
    repository: ModelRepository,
    ballast: Ballast,
    digests: set[str],
    names: frozenset[str],
    budget: int,
) -> None:
    """Drop artifacts beyond the budget, and folders of engines that are neither loaded nor wanted."""
    with contextlib.suppress(OSError):
        staging.collect(digests, budget)
        for name in repository.engines():
            if name not in names:
                repository.remove_engine(name)
    ballast.hold()


def _lease(store: Store, settings: AgentSettings, node: Node) -> LeaseKeeper:
    assert isinstance(store, KubeStore)  # only the store on the Kubernetes API has Leases
    return LeaseKeeper(
        lambda: store.beat(settings.node, settings.namespace, time.time(), every_s=settings.lease_s),
        lambda: time.monotonic() - node.turned < STUCK_S,
        every_s=settings.lease_s,
    )


def _watch(node: RunningNode, stop: threading.Event) -> None:
    while not stop.is_set():
        try:
            for _ in node.store.watch(("NodeEngine",), stop.is_set):
                node.wake()
        except Exception:
            # A store that cannot be watched is asked at every tick instead.
            structlog.get_logger("blurfleet.node").exception("store watch ended")
            stop.wait(1.0)


def agent_file(node_dir: Path) -> Path:
    """Return where a running agent says its pid and metrics address."""
    return node_dir / "agent.json"
