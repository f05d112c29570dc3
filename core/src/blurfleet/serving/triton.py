"""A thin Triton client for the request path: one channel, safe to share between threads, one copy per tensor."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.experimental
import numpy as np
import numpy.typing as npt
from tritonclient.grpc import service_pb2, service_pb2_grpc

from blurfleet.errors import EngineError, EngineTimeout, InvalidInput
from blurfleet.reasons import Reason
from blurfleet.serving.life import RequestLife
from blurfleet.serving.sharedtensors import SharedSettings, SharedTensors

MAX_MESSAGE_BYTES = 2**31 - 1
_DTYPES = {"FP32": np.float32, "FP16": np.float16}
_UNANSWERED = (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE)
_LOOPBACK = ("127.", "localhost:", "[::1]:", "unix:")
_UNREACHABLE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
CHANNEL_OPTIONS = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.use_local_subchannel_pool", 1),  # a client that is closed must not leave a broken connection to the next
    ("grpc.initial_reconnect_backoff_ms", 100),  # a restarted server is found within a second
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)
_MODEL_INFER = "/inference.GRPCInferenceService/ModelInfer"
# Whoever asks waits for its answer itself: the library else starts a thread for a call and wakes the asker from there.
_ON_ITS_OWN_THREAD = (grpc.experimental.ChannelOptions.SingleThreadedUnaryStream, 1)


@dataclass(frozen=True, kw_only=True)
class InferResult:
    """A model's answer: the matte float32 [1,1,H,W] (read-only view of the message), who answered, which version.

    `model_version` is the epoch when an alias was asked, 1 when an engine was.
    """

    matte: npt.NDArray[np.float32]
    model_name: str
    model_version: int


def channel_to(address: str, *more: tuple[str, Any]) -> grpc.Channel:
    """Return a channel to `host:port` fit for whole frames, with `more` of the library's options."""
    return grpc.insecure_channel(address, options=(*CHANNEL_OPTIONS, *more))


def without_traceback(details: str) -> str:
    """Return what a server says in one line, without the Python traceback that the python backend appends."""
    return " ".join(details.split("\n\nAt:")[0].split()).rstrip(";")


def typed_error(error: grpc.RpcError, *, where: str, failed: Reason, timed_out: Reason) -> EngineError:
    """Return the blurfleet error of a gRPC failure.

    EngineTimeout with `timed_out` past the deadline, EngineError TritonUnreachable when nobody answers,
    TritonRefused when the restricted API refuses, EngineError with `failed` otherwise.
    """
    code, details = error.code(), without_traceback(str(error.details()))
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return EngineTimeout(timed_out, "no answer before the deadline", where=where)
    if "protocol is restricted" in details:
        return EngineError(Reason.TRITON_REFUSED, details, where=where, fix="only the key's holder may call this")
    if code in _UNREACHABLE:
        return EngineError(Reason.TRITON_UNREACHABLE, details, where=where)
    return EngineError(failed, details, where=where)


Answered = tuple[Any, Sequence[bytes]]


def _byte_size(output: Any) -> int:
    itemsize = np.dtype(_DTYPES[output.datatype]).itemsize if output.datatype in _DTYPES else 0
    return int(itemsize * math.prod(output.shape))


class TritonClient:
    """Asks models for mattes. `input_name` and `output_name` are the tensors' names in the contract.

    With `shared`, tensors pass through memory that this process and Triton share, where the two are on one machine.
    """

    def __init__(
        self,
        address: str,
        *,
        input_name: str = "image",
        output_name: str = "matte",
        shared: SharedSettings | None = None,
    ) -> None:
        self.address = address
        self._input = input_name
        self._output = output_name
        self._channel = channel_to(address, _ON_ITS_OWN_THREAD)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        # One message comes back; a call with a stream of answers is the kind that waits here and can be cut off.
        self._cancellable = self._channel.unary_stream(
            _MODEL_INFER,
            request_serializer=service_pb2.ModelInferRequest.SerializeToString,
            response_deserializer=service_pb2.ModelInferResponse.FromString,
        )
        local = shared is not None and address.startswith(_LOOPBACK)
        self._shared = SharedTensors(self._stub, shared) if shared is not None and local else None

    def infer(
        self,
        model: str,
        image: npt.NDArray[np.float32],
        *,
        timeout_s: float,
        headers: Mapping[str, str] | None = None,
        version: int | None = None,
        life: RequestLife | None = None,
    ) -> InferResult:
        """Run `model` on `image` (float32 [1,3,H,W], C order) and return its matte.

        `headers` (e.g. traceparent) travel as gRPC metadata. With a `life` the call lasts no longer than that, and is
        cancelled when the client hangs up: Triton tells the engine, and sends nothing back. Raises InvalidInput for
        another dtype or rank, RequestEnded, EngineTimeout (InferTimeout) past `timeout_s`, EngineError for every other
        failure.
        """
        if image.dtype != np.float32 or image.ndim != 4:
            raise InvalidInput(
                Reason.WRONG_DTYPE if image.dtype != np.float32 else Reason.WRONG_SHAPE,
                f"an image tensor is float32 [1,3,H,W], this one is {image.dtype} {list(image.shape)}",
                where=model,
            )
        request = service_pb2.ModelInferRequest(model_name=model, model_version="" if version is None else str(version))
        request.inputs.add(name=self._input, datatype="FP32", shape=image.shape)
        request.outputs.add(name=self._output)
        metadata = tuple((headers or {}).items())

        def call() -> Any:
            if life is None:
                return self._stub.ModelInfer(request, timeout=timeout_s, metadata=metadata)
            return self._while_alive(request, life, timeout_s, metadata)

        try:
            response, raw = self._through_memory(request, image, call) or self._as_bytes(request, image, call)
        except grpc.RpcError as error:
            raise typed_error(error, where=model, failed=Reason.INFER_FAILED, timed_out=Reason.INFER_TIMEOUT) from error
        return InferResult(
            matte=self._matte(response, raw, model),
            model_name=response.model_name,
            model_version=int(response.model_version or 0),
        )

    def _as_bytes(self, request: Any, image: npt.NDArray[np.float32], call: Callable[[], Any]) -> Answered:
        request.inputs[0].ClearField("parameters")
        request.outputs[0].ClearField("parameters")
        request.raw_input_contents.append(image.tobytes())
        response = call()
        return response, response.raw_output_contents

    def _through_memory(self, request: Any, image: npt.NDArray[np.float32], call: Callable[[], Any]) -> Answered | None:
        """Return the response and its outputs' bytes, None where there is no shared memory to be had."""
        if self._shared is None:
            return None
        with self._shared.lent(image.nbytes) as region:
            if region is None:
                return None
            region.put(image, request)
            region.sound = False  # until there is an answer, Triton may write to it
            try:
                response = call()
            except grpc.RpcError as error:
                region.sound = error.code() not in _UNANSWERED
                if self._shared.lost(region, error):
                    region.sound = False
                    return None
                raise
            region.sound = True
            # Triton says where the matte lies but not how long it is.
            return response, [region.matte(_byte_size(output)) for output in response.outputs]

    def _while_alive(
        self, request: Any, life: RequestLife, timeout_s: float, metadata: tuple[tuple[str, str], ...]
    ) -> Any:
        life.check()
        bound = life.within(timeout_s)
        call = self._cancellable(request, timeout=bound, metadata=metadata)
        try:
            with life.ending(call.cancel):
                answers = list(call)  # to the end: the status comes last
        except grpc.RpcError as error:
            life.check()  # a client's end is not the engine's fault
            if bound < timeout_s and error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise life.too_late() from error  # gRPC's clock may be a little ahead
            raise
        if len(answers) != 1:
            message = f"{len(answers)} answers to one request"
            raise EngineError(Reason.INFER_FAILED, message, where=request.model_name)
        return answers[0]

    def _matte(self, response: Any, raw: Sequence[bytes], model: str) -> npt.NDArray[np.float32]:
        for index, output in enumerate(response.outputs):
            if output.name == self._output and output.datatype in _DTYPES:
                flat = np.frombuffer(raw[index], dtype=_DTYPES[output.datatype])
                return flat.reshape(tuple(output.shape)).astype(np.float32, copy=False)
        got = ", ".join(f"{o.name} {o.datatype}" for o in response.outputs) or "nothing"
        raise EngineError(Reason.WRONG_DTYPE, f"expected {self._output} as FP32 or FP16, got {got}", where=model)

    def server_ready(self, *, timeout_s: float = 1.0) -> bool:
        """Tell whether the server answers and is ready. Never raises."""
        try:
            return bool(self._stub.ServerReady(service_pb2.ServerReadyRequest(), timeout=timeout_s).ready)
        except grpc.RpcError:
            return False

    def model_ready(self, model: str, *, timeout_s: float = 1.0) -> bool:
        """Tell whether `model` can be asked now. Never raises."""
        try:
            request = service_pb2.ModelReadyRequest(name=model)
            return bool(self._stub.ModelReady(request, timeout=timeout_s).ready)
        except grpc.RpcError:
            return False

    def close(self) -> None:
        """Close the channel; calls in flight end as CANCELLED."""
        if self._shared is not None:
            self._shared.close()
        self._channel.close()

    def __enter__(self) -> TritonClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
