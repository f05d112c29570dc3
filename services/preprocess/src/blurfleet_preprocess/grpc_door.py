"""KServe v2 over gRPC, served by threads: for whole frames they answer sooner than an event loop (docs/figures.md).

Requests are bounded as they are over HTTP, by slots of this door's own. A stream holds a thread while it is open.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import grpc
import structlog
from google.protobuf import json_format
from tritonclient.grpc import service_pb2 as pb

from blurfleet.errors import BlurfleetError, EngineError, InvalidInput, NodeError
from blurfleet.reasons import Reason
from blurfleet.serving.life import RequestLife
from blurfleet_preprocess import v2_grpc
from blurfleet_preprocess.access import ANYONE
from blurfleet_preprocess.counting import let_in
from blurfleet_preprocess.exchange import Exchange, answer_headers, parameters_among
from blurfleet_preprocess.grpc_places import MAX_STREAMS, OpenStreams, Slots
from blurfleet_preprocess.neighbours import neighbour
from blurfleet_preprocess.problems import status_of
from blurfleet_preprocess.readiness import Readiness
from blurfleet_preprocess.regions import Neighbour
from blurfleet_preprocess.said_headers import joined
from blurfleet_preprocess.stages import Stages
from blurfleet_preprocess.streams import OpenStream
from blurfleet_preprocess.v2 import Door, model_config, model_metadata

SERVICE = "inference.GRPCInferenceService"
_OPEN = ("ServerLive", "ServerReady")
_HIDDEN = (
    "RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload", "TraceSetting", "LogSettings",
    "CudaSharedMemoryStatus", "CudaSharedMemoryRegister", "CudaSharedMemoryUnregister",
)  # fmt: skip
Work = Callable[[Any, Any, str], Any]


@dataclass(kw_only=True)
class _Stream:
    """One open ModelStreamInfer: its frames' numbers, and the life of the frame under way."""

    numbers: OpenStream
    life: RequestLife | None = None
    gone: bool = False

    def hang_up(self) -> None:
        self.gone = True
        if self.life is not None:
            self.life.hang_up()

    def begin(self, life: RequestLife) -> None:
        """Note the life of the next frame; it is over where the client has gone since the frame came."""
        self.life = life
        if self.gone:
            life.hang_up()


class GrpcDoor:
    """The gRPC server of one gateway."""

    def __init__(self, exchange: Exchange, ready: Readiness, *, workers: int, waiting: int) -> None:
        self._exchange = exchange
        self._ready = ready
        self._door = Door(gateway=exchange.gateway, regions=exchange.regions)
        self._slots = Slots(workers, waiting)
        self._port = 0
        self._streams = OpenStreams()
        self._log = structlog.get_logger("blurfleet.gateway")
        threads = workers + waiting + MAX_STREAMS
        size = exchange.max_body_bytes
        self._server = grpc.server(
            ThreadPoolExecutor(threads, thread_name_prefix="grpc"),
            handlers=(grpc.method_handlers_generic_handler(SERVICE, self._handlers()),),
            options=(
                ("grpc.max_receive_message_length", size),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_metadata_size", 16 << 10),
                ("grpc.so_reuseport", 0),
                ("grpc.keepalive_time_ms", 30_000),  # a client whose machine is gone does not hold its stream
                ("grpc.keepalive_timeout_ms", 10_000),
            ),
            maximum_concurrent_rpcs=threads,
        )

    def listen(self, host: str, port: int, credentials: Any = None) -> int:
        """Begin to answer on `host`; return the port, chosen where `port` is 0. Raises NodeError PortInUse."""
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            if credentials is None:
                bound = int(self._server.add_insecure_port(address))
            else:
                bound = int(self._server.add_secure_port(address, credentials))
        except RuntimeError as error:
            fix = "set BLURFLEET_GATEWAY_GRPC_PORT to a free port"
            raise NodeError(Reason.PORT_IN_USE, "the address cannot be taken", where=address, fix=fix) from error
        self._port = bound
        self._server.start()
        return bound

    def stop(self, grace_s: float) -> None:
        """Take no more requests, and wait for those under way for at most `grace_s` seconds."""
        self._server.stop(grace_s).wait()

    def _handlers(self) -> dict[str, Any]:
        unary: dict[str, tuple[Any, Work]] = {
            "ServerLive": (pb.ServerLiveRequest, lambda *_: pb.ServerLiveResponse(live=True)),
            "ServerReady": (pb.ServerReadyRequest, lambda *_: pb.ServerReadyResponse(ready=self._is_ready())),
            "ServerMetadata": (pb.ServerMetadataRequest, lambda *_: pb.ServerMetadataResponse(**self._door.server())),
            "ModelReady": (pb.ModelReadyRequest, self._model_ready),
            "ModelMetadata": (pb.ModelMetadataRequest, self._model_metadata),
            "ModelConfig": (pb.ModelConfigRequest, self._model_config),
            "ModelInfer": (pb.ModelInferRequest, self._infer),
            "SystemSharedMemoryStatus": (pb.SystemSharedMemoryStatusRequest, self._regions),
            "SystemSharedMemoryRegister": (pb.SystemSharedMemoryRegisterRequest, self._register),
            "SystemSharedMemoryUnregister": (pb.SystemSharedMemoryUnregisterRequest, self._unregister),
        }
        unary |= {name: (None, _hidden(name)) for name in _HIDDEN}
        handlers = {name: self._unary(name, kind, work) for name, (kind, work) in unary.items()}
        return handlers | {"ModelStreamInfer": grpc.stream_stream_rpc_method_handler(self._stream)}

    def _unary(self, name: str, kind: Any, work: Work) -> Any:
        """Return the handler of one message, which is read last: who has no token or no hash costs no memory.

        So the library is told of a stream of messages; to clients there is no difference.
        """

        def handle(requests: Iterator[bytes], context: Any) -> bytes:
            try:
                with self._let_in(name, context) as client:
                    if kind is pb.ModelInferRequest:
                        self._door.gateway.check_declared(_declared(_metadata(context)))
                    message = v2_grpc.parsed(kind, v2_grpc.only(requests)) if kind is not None else None
                    return bytes(work(message, context, client).SerializeToString())
            except Exception as error:  # the last place before the library, which would show the client a traceback
                failed = self._said(error, name)
            self._abort(context, failed)
            raise AssertionError("abort raises")

        return grpc.stream_unary_rpc_method_handler(handle)

    def _stream(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        """Answer a stream's frames in their order, each with its own error: one bad frame does not end the call."""
        try:
            counted = self._streams.open(self._who(context)[1])
        except BlurfleetError as error:
            self._abort(context, self._said(error, "ModelStreamInfer"))
        try:
            stream = _Stream(numbers=self._exchange.streams.open())
            _at_its_end(context, stream.hang_up)
            for data in requests:
                yield self._frame(data, context, stream).SerializeToString()
        finally:
            self._streams.close(counted)

    def _frame(self, data: bytes, context: Any, stream: _Stream) -> Any:
        answer, message = pb.ModelStreamInferResponse(), None
        try:
            with self._let_in("ModelStreamInfer", context) as client:
                message = v2_grpc.parsed(pb.ModelInferRequest, data)
                answer.infer_response.CopyFrom(self._infer(message, context, client, stream=stream))
        except Exception as error:  # as above
            answer.error_message = str(self._said(error, "ModelStreamInfer"))
            if message is not None:
                answer.infer_response.id = message.id
        return answer

    @contextlib.contextmanager
    def _let_in(self, name: str, context: Any) -> Iterator[str]:
        """Yield the client's name. Raises Unauthenticated, TooManyRequests."""
        if name in _OPEN:
            yield ANYONE
            return
        client, counted = self._who(context)
        self._exchange.limits.take(counted)
        with self._exchange.limits.held(counted):
            yield client

    def _who(self, context: Any) -> tuple[str, str]:
        """Return the client's name, and the name it is counted under. Raises what `let_in` raises."""
        token = _metadata(context).get("authorization", "")
        return let_in(self._exchange.access, self._exchange.limits, token, v2_grpc.host_of(context.peer()))

    def _infer(self, message: Any, context: Any, client: str, *, stream: _Stream | None = None) -> Any:
        headers = _metadata(context)
        with self._exchange.tracing.request(headers, {"rpc.system": "grpc", "rpc.method": "ModelInfer"}) as stages:
            return self._answered(message, context, client, headers, stages, stream)

    def _answered(
        self, message: Any, context: Any, client: str, headers: dict[str, str], stages: Stages, stream: _Stream | None
    ) -> Any:
        started = time.perf_counter()
        with stages.timed("decode"):
            request = v2_grpc.read_request(message)
        who = self._local(context, client) if request.shares else Neighbour(client=client, user=None)
        numbers = stream.numbers if stream is not None else None
        caller = self._exchange.caller(
            headers,
            stages,
            transport_s=context.time_remaining(),
            client=client,
            stream=numbers,
            connection=context.peer(),
        )
        if stream is not None:
            stream.begin(caller.life)
        else:
            _at_its_end(context, caller.life.hang_up)
        declared = _declared(headers)
        queued = time.perf_counter()
        with self._slots.one(caller.life):
            stages.waited("queue", time.perf_counter() - queued)
            answer = self._door.infer(caller, declared, message.model_name, message.model_version, request, who)
        with stages.timed("encode"):
            said = answer_headers(answer)
            encoded = v2_grpc.response_of(answer, request, self._door.gateway.alias, parameters_among(said))
        stages.seconds["total"] = time.perf_counter() - started
        stages.observe(self._exchange.metrics)
        if stream is None:
            said["server-timing"] = stages.header()
            context.set_trailing_metadata(tuple(said.items()))
        self._exchange.metrics.requests.labels("200").inc()
        return encoded

    def _is_ready(self) -> bool:
        try:
            self._ready.check()
        except (EngineError, NodeError):
            return False
        return True

    def _model_ready(self, message: Any, _: Any, __: str) -> Any:
        self._door.snapshot(message.name, message.version)
        return pb.ModelReadyResponse(ready=self._is_ready())

    def _model_metadata(self, message: Any, _: Any, __: str) -> Any:
        said = model_metadata(message.name, self._door.snapshot(message.name, message.version))
        return json_format.ParseDict(said, pb.ModelMetadataResponse(), ignore_unknown_fields=True)

    def _model_config(self, message: Any, _: Any, __: str) -> Any:
        said = model_config(message.name, self._door.snapshot(message.name, message.version))
        return json_format.ParseDict({"config": said}, pb.ModelConfigResponse())

    def _local(self, context: Any, client: str) -> Neighbour:
        host, port = v2_grpc.address_of(context.peer())
        return neighbour(client, host, port, self._port)

    def _regions(self, message: Any, context: Any, client: str) -> Any:
        answer = pb.SystemSharedMemoryStatusResponse()
        for region in self._door.regions.status(self._local(context, client), message.name):
            found = answer.regions[region.name]
            found.name, found.key, found.offset = region.name, region.key, region.offset
            found.byte_size = region.byte_size
        return answer

    def _register(self, message: Any, context: Any, client: str) -> Any:
        who = self._local(context, client)
        self._door.regions.register(
            who, name=message.name, key=message.key, offset=message.offset, byte_size=message.byte_size
        )
        return pb.SystemSharedMemoryRegisterResponse()

    def _unregister(self, message: Any, context: Any, client: str) -> Any:
        self._door.regions.unregister(self._local(context, client), message.name)
        return pb.SystemSharedMemoryUnregisterResponse()

    def _said(self, error: Exception, name: str) -> BlurfleetError:
        """Return what the client is told, counted; whatever was not raised on purpose goes to the log."""
        if not isinstance(error, BlurfleetError):
            self._log.error("request.unexpected", path=name, error=repr(error), exc_info=error)
            error = BlurfleetError(Reason.UNEXPECTED, "the gateway failed; its log says where")
        self._exchange.metrics.requests.labels(str(status_of(error).value)).inc()
        return error

    def _abort(self, context: Any, error: BlurfleetError) -> None:
        code, details, trailing = v2_grpc.status_of(error)
        context.set_trailing_metadata(trailing)
        context.abort(code, details)


def _at_its_end(context: Any, end: Callable[[], None]) -> None:
    """Call `end` when the call is over, at once where it is: the library forgets what comes after that."""
    if not context.add_callback(end):
        end()


def _declared(headers: dict[str, str]) -> str:
    return headers.get("x-blurfleet-contract", "").strip()


def _metadata(context: Any) -> dict[str, str]:
    """Return the call's metadata as headers."""
    return joined((key, value) for key, value in context.invocation_metadata() if isinstance(value, str))


def _hidden(name: str) -> Work:
    def refuse(*_: Any) -> Any:
        raise InvalidInput(Reason.FORBIDDEN, f"{name} is not for clients", where="method")

    return refuse
