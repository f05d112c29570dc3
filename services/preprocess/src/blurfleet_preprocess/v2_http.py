"""KServe v2 over HTTP: JSON and the binary tensor extension, read without trust and written."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from blurfleet.errors import ContractRefused, InvalidInput
from blurfleet.reasons import Reason
from blurfleet_preprocess.dataplane import Answer
from blurfleet_preprocess.exchange import JSON
from blurfleet_preprocess.regions import RegionRef
from blurfleet_preprocess.v2 import DATATYPE, OUTPUT, InferRequest, SentTensor, matte_shape

LENGTH_HEADER = "inference-header-content-length"
BINARY = "application/octet-stream"
MAX_JSON_BYTES = 8 << 20  # a 320x320 tensor of 27 characters a number; 160 MB once parsed
MAX_JSON_NESTS = 1 << 14  # a list for each row of three planes, and some
M = TypeVar("M", bound=BaseModel)
_LEVEL = 1  # a matte that is sent compressed: the fastest level, the network is what is slow

_LENGTH = re.compile("[0-9]{1,12}")

_Dimension = Annotated[int, Field(ge=0, le=1 << 31)]
_Bytes = Annotated[int, Field(ge=0, le=1 << 40)]


class _Lenient(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)


class _Parameters(_Lenient):
    binary_data_size: _Bytes | None = None
    binary_data: bool | None = None
    binary_data_output: bool | None = None
    shared_memory_region: str | None = None
    shared_memory_byte_size: _Bytes | None = None
    shared_memory_offset: _Bytes = 0
    timeout: _Bytes = 0

    def region(self) -> RegionRef | None:
        if self.shared_memory_region is None:
            return None
        return RegionRef(
            name=self.shared_memory_region,
            offset=self.shared_memory_offset,
            byte_size=self.shared_memory_byte_size or 0,
        )


class _Input(_Lenient):
    name: str
    datatype: str
    shape: Annotated[list[_Dimension], Field(max_length=8)]
    parameters: _Parameters = _Parameters()
    data: Any = None


class _Output(_Lenient):
    name: str
    parameters: _Parameters = _Parameters()


class _Body(_Lenient):
    id: Annotated[str, Field(max_length=256)] = ""
    parameters: _Parameters = _Parameters()
    inputs: Annotated[list[_Input], Field(min_length=1, max_length=1)]
    outputs: Annotated[list[_Output], Field(max_length=1)] = []


class RegisterBody(_Lenient):
    """What registers a system shared memory region."""

    key: str
    byte_size: _Bytes
    offset: _Bytes = 0


def read_request(body: bytes, headers: Mapping[str, str], max_bytes: int) -> InferRequest:
    """Return the request in an HTTP body.

    Raises InvalidInput: InvalidRequest (form), RequestTooLarge (once inflated, or of JSON), ContractRefused WrongDtype.
    """
    body = inflated(body, headers.get("content-encoding", ""), max_bytes)
    length = headers.get(LENGTH_HEADER)
    if length is not None and not (_LENGTH.fullmatch(length) and int(length) <= len(body)):
        raise _malformed(f"{LENGTH_HEADER} {length[:40]!r} is not within the body's {len(body)} bytes")
    split = len(body) if length is None else int(length)
    _check_json(body[:split])
    asked = parsed(_Body, body[:split])
    outputs = asked.outputs
    if outputs and outputs[0].name != OUTPUT:
        raise _malformed(f"the output is {OUTPUT!r}, not {outputs[0].name[:40]!r}")
    wish = outputs[0].parameters if outputs else _Parameters()
    binary = asked.parameters.binary_data_output if wish.binary_data is None else wish.binary_data
    return InferRequest(
        id=asked.id,
        sent=_sent(asked.inputs[0], memoryview(body)[split:]),
        binary=bool(binary),
        region=wish.region(),
        timeout_us=asked.parameters.timeout,
    )


def _check_json(head: bytes) -> None:
    """Raise InvalidInput before parsing what would become many times its size in memory."""
    if len(head) > MAX_JSON_BYTES:
        raise InvalidInput(
            Reason.REQUEST_TOO_LARGE,
            f"{len(head)} bytes of JSON, at most {MAX_JSON_BYTES}",
            where="body",
            fix="send the tensor as binary data",
        )
    if head.count(b"[") + head.count(b"{") > MAX_JSON_NESTS:
        raise _malformed(f"more than {MAX_JSON_NESTS} lists and objects")


def parsed(kind: type[M], data: bytes) -> M:
    """Return `data` as `kind`. Raises InvalidInput with the first fault."""
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise _malformed(f"{where}: {first['msg']}" if where else str(first["msg"])) from error


def inflated(body: bytes, encoding: str, max_bytes: int) -> bytes:
    """Return the body without its content encoding. Raises InvalidInput: InvalidRequest, RequestTooLarge."""
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return body
    if name not in ("gzip", "deflate"):
        raise InvalidInput(
            Reason.INVALID_REQUEST, f"content-encoding {name[:40]!r} is neither gzip nor deflate", where="body"
        )
    engine = zlib.decompressobj(wbits=47)  # gzip and zlib alike, told apart by their first bytes
    try:
        plain = engine.decompress(body, max_bytes + 1)
    except zlib.error as error:
        raise _malformed(f"the body is no {name}: {error}") from error
    if len(plain) > max_bytes:
        raise InvalidInput(Reason.REQUEST_TOO_LARGE, f"the body inflates beyond {max_bytes} bytes", where="body")
    if not engine.eof or engine.unused_data:
        raise _malformed(f"the body's {name} is cut short or has a tail")
    return plain


def response_of(
    answer: Answer, request: InferRequest, alias: str, facts: Mapping[str, str], accept_encoding: str
) -> tuple[bytes, dict[str, str]]:
    """Return the body and the headers of an answer, in the form and encoding that was asked for."""
    output: dict[str, Any] = {"name": OUTPUT, "datatype": DATATYPE, "shape": matte_shape(answer)}
    tail = b""
    if request.region is not None:
        output["parameters"] = {
            "shared_memory_region": request.region.name,
            "shared_memory_byte_size": answer.matte.nbytes,
            "shared_memory_offset": request.region.offset,
        }
    elif request.binary:
        tail = answer.matte.tobytes()
        output["parameters"] = {"binary_data_size": len(tail)}
    else:
        output["data"] = answer.matte.ravel().tolist()
    document: dict[str, Any] = {
        "model_name": alias,
        "model_version": str(answer.route.epoch),
        "parameters": dict(facts),
        "outputs": [output],
    }
    if request.id:
        document["id"] = request.id
    head = json.dumps(document, separators=(",", ":"), allow_nan=False).encode()
    headers = {"content-type": JSON}
    if tail:
        headers = {"content-type": BINARY, LENGTH_HEADER: str(len(head))}
    return _encoded(head + tail, headers, accept_encoding)


def _encoded(body: bytes, headers: dict[str, str], accept: str) -> tuple[bytes, dict[str, str]]:
    wanted = [part.split(";")[0].strip().lower() for part in accept.split(",")]
    if "gzip" in wanted:
        return gzip.compress(body, _LEVEL, mtime=0), headers | {"content-encoding": "gzip"}
    if "deflate" in wanted:
        return zlib.compress(body, _LEVEL), headers | {"content-encoding": "deflate"}
    return body, headers


def _sent(tensor: _Input, tail: memoryview) -> SentTensor:
    region, size = tensor.parameters.region(), tensor.parameters.binary_data_size
    given = [region is not None, size is not None, tensor.data is not None]
    if given.count(True) != 1:
        raise _malformed("an input has data, binary_data_size or shared_memory_region, one of them")
    if (0 if size is None else size) != len(tail):
        raise _malformed(f"{len(tail)} bytes follow the header, the input has {size or 0}")
    return SentTensor(
        name=tensor.name,
        datatype=tensor.datatype,
        shape=tuple(tensor.shape),
        data=region if region is not None else tail if size is not None else _values(tensor.data, tensor.datatype),
    )


def _values(data: Any, datatype: str) -> bytes:
    if datatype != DATATYPE:
        raise ContractRefused(Reason.WRONG_DTYPE, f"{datatype[:20]}, not {DATATYPE}", where="inputs")
    if not (isinstance(data, list) and _only_numbers(data)):
        raise _malformed("an input's data is a list of numbers, flat or nested evenly")
    try:
        with np.errstate(over="ignore"):  # beyond float32 is infinite, and refused as that
            return np.asarray(data, dtype=np.float64).astype("<f4").tobytes()
    except (ValueError, TypeError, OverflowError) as error:
        raise _malformed("an input's data is a list of numbers, flat or nested evenly") from error


def _only_numbers(data: list[Any]) -> bool:
    """Tell whether nested lists hold numbers alone: NumPy would read "1" and true as numbers too."""
    kinds = set(map(type, data))
    return kinds <= {int, float} or (kinds == {list} and all(map(_only_numbers, data)))


def _malformed(message: str) -> InvalidInput:
    return InvalidInput(Reason.INVALID_REQUEST, message, where="body", fix="see KServe's v2 protocol")
