"""KServe v2 over gRPC: messages read without trust and written, errors as statuses."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

import grpc
import numpy as np
from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from blurfleet.errors import BlurfleetError, ContractRefused, EngineTimeout, InvalidInput, RequestEnded
from blurfleet.reasons import Reason
from blurfleet_preprocess.dataplane import Answer
from blurfleet_preprocess.problems import problem
from blurfleet_preprocess.regions import RegionRef
from blurfleet_preprocess.tensors import ContractMismatch
from blurfleet_preprocess.v2 import DATATYPE, OUTPUT, InferRequest, SentTensor, matte_shape

MAX_ID = 256
MAX_TYPED = 1 << 21  # each becomes an object of its own on its way into an array
_CODES = {
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    408: grpc.StatusCode.DEADLINE_EXCEEDED,
    412: grpc.StatusCode.FAILED_PRECONDITION,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    500: grpc.StatusCode.INTERNAL,
    502: grpc.StatusCode.INTERNAL,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}


def only(requests: Iterator[bytes]) -> bytes:
    """Return the message of a call that has one. Raises InvalidInput, RequestEnded ClientGone."""
    try:
        data = next(requests, None)
    except grpc.RpcError as error:
        raise RequestEnded(Reason.CLIENT_GONE, "whoever asked has hung up", where="message") from error
    if data is None:
        raise _malformed("the call has no message")
    return data


def parsed(kind: Any, data: bytes) -> Any:
    """Return the message in `data`. Raises InvalidInput."""
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise _malformed(f"the bytes are no {kind.DESCRIPTOR.name}") from error


def read_request(message: Any) -> InferRequest:
    """Return the request in a ModelInferRequest. Raises InvalidInput, ContractRefused (an input of another type)."""
    if len(message.inputs) != 1 or len(message.outputs) > 1:
        raise _malformed(f"one input and one output, not {len(message.inputs)} and {len(message.outputs)}")
    if len(message.id) > MAX_ID:
        raise _malformed(f"an id has at most {MAX_ID} characters")
    if message.outputs and message.outputs[0].name != OUTPUT:
        raise _malformed(f"the output is {OUTPUT!r}, not {message.outputs[0].name[:40]!r}")
    sent = message.inputs[0]
    return InferRequest(
        id=message.id,
        sent=SentTensor(name=sent.name, datatype=sent.datatype, shape=tuple(sent.shape), data=_data(message)),
        region=_region(message.outputs[0]) if message.outputs else None,
        timeout_us=message.parameters["timeout"].int64_param if "timeout" in message.parameters else 0,
    )


def response_of(answer: Answer, request: InferRequest, alias: str, facts: Mapping[str, str]) -> Any:
    """Return the ModelInferResponse; who answered is in its parameters, since tritonclient shows no metadata."""
    message = service_pb2.ModelInferResponse(model_name=alias, model_version=str(answer.route.epoch), id=request.id)
    for name, value in facts.items():
        message.parameters[name].string_param = value
    output = message.outputs.add(name=OUTPUT, datatype=DATATYPE, shape=matte_shape(answer))
    if request.region is None:
        message.raw_output_contents.append(answer.matte.tobytes())
        return message
    output.parameters["shared_memory_region"].string_param = request.region.name
    output.parameters["shared_memory_byte_size"].int64_param = answer.matte.nbytes
    output.parameters["shared_memory_offset"].int64_param = request.region.offset
    return message


def status_of(error: BlurfleetError) -> tuple[grpc.StatusCode, str, tuple[tuple[str, str], ...]]:
    """Return code, details and trailing metadata of an error raised on purpose; its reason is in both."""
    http, headers, _ = problem(error)
    code = grpc.StatusCode.DEADLINE_EXCEEDED if isinstance(error, EngineTimeout) else _CODES.get(http)
    more = {"x-blurfleet-reason": error.reason.value, "x-blurfleet-where": error.where, "x-blurfleet-fix": error.fix}
    if isinstance(error, ContractMismatch):
        more |= {"x-blurfleet-expected": error.expected, "x-blurfleet-received": error.received}
        if error.differences:
            more["x-blurfleet-differences"] = json.dumps(error.named(), separators=(",", ":"))
    if "retry-after" in headers:
        more["retry-after"] = headers["retry-after"]
    trailing = tuple((name, _ascii(value)) for name, value in more.items() if value)
    return code or grpc.StatusCode.INVALID_ARGUMENT, str(error), trailing


def address_of(peer: str) -> tuple[str, int]:
    """Return address and port in a peer such as `ipv4:127.0.0.1:5000`; empty and 0 for a Unix socket's."""
    port = unquote(peer).rpartition(":")[2]
    return host_of(peer), int(port) if port.isascii() and port.isdigit() else 0


def host_of(peer: str) -> str:
    """Return the address in a peer such as `ipv4:127.0.0.1:5000`, empty for a Unix socket's."""
    kind, _, rest = unquote(peer).partition(":")
    return "" if kind.startswith("unix") else rest.rpartition(":")[0].strip("[]")


def _data(message: Any) -> bytes | RegionRef:
    sent, raw = message.inputs[0], message.raw_input_contents
    region, typed = _region(sent), len(sent.contents.fp32_contents)
    if [region is not None, len(raw) > 0, typed > 0].count(True) != 1 or len(raw) > 1:
        raise _malformed("an input has raw contents, FP32 contents or a shared memory region, one of them")
    if region is not None:
        return region
    if raw:
        return bytes(raw[0])
    if sent.datatype != DATATYPE:
        raise ContractRefused(Reason.WRONG_DTYPE, f"{sent.datatype[:20]}, not {DATATYPE}", where="inputs")
    if typed > MAX_TYPED:
        raise _malformed(f"{typed} FP32 contents, at most {MAX_TYPED}: send raw contents")
    return np.asarray(sent.contents.fp32_contents, dtype="<f4").tobytes()


def _region(tensor: Any) -> RegionRef | None:
    given = tensor.parameters
    if "shared_memory_region" not in given:
        return None
    return RegionRef(
        name=given["shared_memory_region"].string_param,
        offset=given["shared_memory_offset"].int64_param if "shared_memory_offset" in given else 0,
        byte_size=given["shared_memory_byte_size"].int64_param if "shared_memory_byte_size" in given else 0,
    )


def _ascii(text: str) -> str:
    return text.encode("ascii", "replace").decode()


def _malformed(message: str) -> InvalidInput:
    return InvalidInput(Reason.INVALID_REQUEST, message, where="message", fix="see KServe's v2 protocol")
