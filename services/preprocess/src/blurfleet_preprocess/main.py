"""The gateway's process: builds the parts, serves until SIGTERM, says where it is once it is ready."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import socket
from collections.abc import AsyncIterator, Callable

import structlog
from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from blurfleet.check import dumps
from blurfleet.errors import NodeError
from blurfleet.logs import log_json, log_libraries
from blurfleet.reasons import Reason
from blurfleet.serving.frames import FrameSender
from blurfleet.serving.routing import RoutingReader
from blurfleet.serving.triton import TritonClient
from blurfleet.store.atomic import write_atomic
from blurfleet_preprocess.bodies import Bodies, BodyLimits
from blurfleet_preprocess.dataplane import Gateway
from blurfleet_preprocess.entrance import Entrance, entrance
from blurfleet_preprocess.exchange import Exchange
from blurfleet_preprocess.grpc_door import GrpcDoor
from blurfleet_preprocess.memory import keep_freed_blocks
from blurfleet_preprocess.metrics import GatewayMetrics
from blurfleet_preprocess.readiness import Readiness
from blurfleet_preprocess.rest import build_app
from blurfleet_preprocess.room import Room, large_at_once
from blurfleet_preprocess.server import Server, Stop, config_of
from blurfleet_preprocess.settings import GatewaySettings
from blurfleet_preprocess.stream_session import StreamLimits
from blurfleet_preprocess.streams import Streams
from blurfleet_preprocess.tracing import tracing_to
from blurfleet_preprocess.wire import WireLimits
from blurfleet_preprocess.work import Workers

_UNREAD_MS = 60_000
_GRACE_S = 10  # longer than two inferences in a row: requests under way at a stop are answered


def serve(settings: GatewaySettings) -> None:
    """Serve until SIGTERM or SIGINT. Once requests are taken, says where in `gateway.json`.

    It holds {schemaVersion, address, grpc_address, pid}. Raises NodeError (PortInUse, UnreadableFile, DoorUnguarded).
    """
    keep_freed_blocks()
    way_in, stop = entrance(settings), Stop()
    routing = RoutingReader(settings.routing_file)
    log_json(service="gateway", node=settings.node, also=lambda: served_model(routing, settings.alias))
    log_libraries(quiet=("opentelemetry",))  # the exporter's complaints are counted and said once
    host = settings.gateway_host
    listener = _listen(host, settings.gateway_port)
    port = listener.getsockname()[1]
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    with listener, TritonClient(settings.triton_grpc, shared=settings.shared_memory()) as triton:
        frames = FrameSender(settings.frames_socket, settings.frame_queue)
        try:
            app = application(
                settings,
                triton,
                frames,
                on_ready=lambda grpc: _announce(settings, address, grpc),
                way_in=way_in,
                stopping=stop.begun,
            )
            _run(app, listener, way_in, settings, stop)
        finally:
            frames.close()
            settings.address_file.unlink(missing_ok=True)


def served_model(routing: RoutingReader, alias: str) -> dict[str, str]:
    """Return what every log line says of the model: its alias and the network's id, empty while it is not known."""
    try:
        route = routing.snapshot().models.get(alias)
    except (NodeError, OSError):
        route = None  # whoever needs the file says what is wrong with it
    return {"model": alias, "model_id": route.model_id if route is not None else ""}


def application(
    settings: GatewaySettings,
    triton: TritonClient,
    frames: FrameSender,
    *,
    on_ready: Callable[[str], None] = lambda _: None,
    way_in: Entrance | None = None,
    stopping: Callable[[], bool] = lambda: False,
) -> FastAPI:
    """Return the application over a real Triton and a real frame socket; its lifespan owns the worker threads."""
    metrics = GatewayMetrics(CollectorRegistry())
    metrics.watch_samples(lambda: frames.counts.dropped, lambda: float(frames.counts.connected))
    gateway = Gateway(
        routing=RoutingReader(settings.routing_file).snapshot,
        engines=triton,
        frames=frames,
        metrics=metrics,
        alias=settings.alias,
        infer_timeout_s=settings.infer_timeout_s,
    )
    workers = Workers(settings.workers, settings.waiting)
    way_in = way_in or Entrance()
    exchange = Exchange(
        gateway=gateway,
        streams=Streams(f"{settings.node}.{secrets.token_hex(3)}"),
        metrics=metrics,
        workers=workers,
        max_body_bytes=settings.max_body_bytes,
        access=way_in.access,
        names=way_in.names,
        limits=way_in.limits,
        tracing=tracing_to(settings, metrics),
        bodies=Bodies(BodyLimits(held_bytes=settings.held_body_bytes, grace_s=settings.body_grace_s)),
        room=Room(settings.picture_bytes, large=large_at_once(settings.workers)),
        longest_s=settings.request_timeout_s,
        evidence=settings.evidence,
    )
    ready = Readiness(gateway, cache_s=settings.ready_cache_s, stopping=stopping)
    streams = StreamLimits(
        at_once=settings.streams,
        max_frame_bytes=settings.stream_frame_bytes,
        idle_s=settings.stream_idle_s,
        send_s=settings.stream_send_s,
    )
    app = build_app(exchange, ready, streams)
    grpc_door = GrpcDoor(exchange, ready, workers=settings.workers, waiting=settings.waiting)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        host = settings.gateway_host
        port = grpc_door.listen(host, settings.gateway_grpc_port, way_in.grpc_credentials())
        on_ready(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        try:
            yield
        finally:
            await asyncio.to_thread(grpc_door.stop, _GRACE_S)
            workers.close()
            await asyncio.to_thread(exchange.tracing.close)
            exchange.probes.close()
            exchange.regions.close()

    app.router.lifespan_context = lifespan
    return app


def _announce(settings: GatewaySettings, address: str, grpc: str) -> None:
    body = dumps({"schemaVersion": 1, "address": address, "grpc_address": grpc, "pid": os.getpid()})
    try:
        write_atomic(settings.address_file, body.encode(), sync=False)
    except OSError as error:
        raise NodeError(Reason.UNREADABLE_FILE, str(error), where=str(settings.address_file)) from error
    structlog.get_logger("blurfleet.gateway").info(
        "gateway.ready", address=address, grpc=grpc, triton=settings.triton_grpc
    )


def _listen(host: str, port: int) -> socket.socket:
    # The protocol is named because asyncio turns Nagle's delay off (40 ms an answer) only where it reads TCP here.
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Inherited by what is accepted: who leaves an answer unread this long is cut off, whatever waits to be flushed.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNREAD_MS)
    try:
        listener.bind((host, port))
        listener.listen(256)
    except OSError as error:
        listener.close()
        raise NodeError(
            Reason.PORT_IN_USE,
            str(error.strerror or error),
            where=f"{host}:{port}",
            fix="set BLURFLEET_GATEWAY_PORT and BLURFLEET_GATEWAY_HOST to a free port of this machine",
        ) from error
    return listener


def _run(app: FastAPI, listener: socket.socket, way_in: Entrance, settings: GatewaySettings, stop: Stop) -> None:
    config = config_of(
        app,
        WireLimits(
            connections=settings.max_connections, sockets=4 * settings.streams, header_s=settings.header_timeout_s
        ),
        way_in.http_context(),
        timeout_graceful_shutdown=_GRACE_S,
        ws_max_size=settings.stream_frame_bytes,
        ws_per_message_deflate=False,  # pictures are packed already, and a small message could unpack into a large one
    )
    # uvicorn raises the signal again once it has stopped cleanly; an orderly stop is not a death by signal.
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        Server(config, stop, settings.drain_s).run(sockets=[listener])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
