"""Each thing that can be asked of a gateway, as a request to send and a way to read its answer. No transport here."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, cast
from urllib.parse import urlsplit

import cv2
import numpy as np
import numpy.typing as npt

from blurfleet.api.contract import ContractSpec
from blurfleet.client.answers import (
    ContractAnswer,
    MatteAnswer,
    PictureAnswer,
    TensorAnswer,
    made_by,
    pixels_of,
)
from blurfleet.client.failures import GatewayFailure, RequestRefused
from blurfleet.contract import contract_hash
from blurfleet.errors import InvalidInput
from blurfleet.pixels import Tensor, decode, to_tensor
from blurfleet.reasons import Reason

T = TypeVar("T")
Photo = bytes | npt.NDArray[np.uint8]
"""An encoded picture, or uint8 RGB [H,W,3]."""
NPY = "application/x-npy"
_PNG_LEVEL = 1  # on loopback zlib's time costs more than its bytes


@dataclass(frozen=True, kw_only=True)
class Call(Generic[T]):
    """One request; `read` makes the answer of its headers (lower-case names) and body."""

    method: str
    path: str
    read: Callable[[Mapping[str, str], bytes], T]
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""

    def answer(self, headers: Mapping[str, str], body: bytes) -> T:
        """Return the answer. Raises GatewayFailure Unparseable where it is not one."""
        try:
            return self.read(headers, body)
        except ValueError as error:
            raise GatewayFailure(Reason.UNPARSEABLE, f"the answer cannot be read: {error}", where=self.path) from error


def matte(photo: Photo, *, fine: bool) -> Call[MatteAnswer]:
    """Ask for the network's matte at its own size, or a fine one at the picture's (in 256 levels)."""
    form, read = ("png", _fine) if fine else ("npy", _plain)

    def answer(headers: Mapping[str, str], body: bytes) -> MatteAnswer:
        return MatteAnswer(matte=read(body), by=made_by(headers))

    return Call(method="POST", path="/v1/matte", query={"format": form}, body=encoded(photo), read=answer)


def blur(photo: Photo, options: Mapping[str, str | float]) -> Call[PictureAnswer]:
    """Ask for the finished picture; `options` are those of `/v1/blur`."""

    def answer(headers: Mapping[str, str], body: bytes) -> PictureAnswer:
        return PictureAnswer(data=body, media_type=headers.get("content-type", ""), by=made_by(headers))

    query = {name: option(value) for name, value in options.items()}
    return Call(method="POST", path="/v1/blur", query=query, body=encoded(photo), read=answer)


def tensor(values: Tensor, declared: str) -> Call[TensorAnswer]:
    """Ask for the matte of a ready tensor made by the contract with the hash `declared`."""

    def answer(headers: Mapping[str, str], body: bytes) -> TensorAnswer:
        return TensorAnswer(matte=_array(body), by=made_by(headers))

    buffer = io.BytesIO()
    np.save(buffer, np.ascontiguousarray(values), allow_pickle=False)
    headers = {"x-blurfleet-contract": declared, "content-type": NPY}
    return Call(method="POST", path="/v1/tensor", headers=headers, body=buffer.getvalue(), read=answer)


def contract() -> Call[ContractAnswer]:
    """Ask for the contract. The hash is computed here too: an answer in which the two differ is refused."""

    def answer(_: Mapping[str, str], body: bytes) -> ContractAnswer:
        said = json.loads(body)
        spec = ContractSpec.model_validate(said["contract"])
        if contract_hash(spec) != said["contract_hash"]:
            raise ValueError("the contract's hash is not the one that the gateway names; use the gateway's release")
        return ContractAnswer(alias=said["alias"], hash=said["contract_hash"], spec=spec)

    return Call(method="GET", path="/v1/contract", read=answer)


def agreed(served: ContractAnswer, made_with: str | ContractSpec | None) -> str:
    """Return the hash to declare for a tensor made with a contract (or its hash); None: with the one served.

    Raises RequestRefused ContractMismatch before anything is sent where another is served.
    """
    if made_with is None:
        return served.hash
    declared = made_with if isinstance(made_with, str) else contract_hash(made_with)
    if declared != served.hash:
        raise RequestRefused(
            Reason.CONTRACT_MISMATCH,
            f"the tensor was made with {declared}, and {served.hash} is served",
            where="x-blurfleet-contract",
            fix="make it with the contract that contract() returns, or let prepare() do it",
        )
    return declared


def prepared(photo: Photo, served: ContractAnswer) -> Tensor:
    """Return the tensor of a picture by the contract served, by the gateway's own code. Raises ContractRefused."""
    return to_tensor(decode(encoded(photo), served.spec), served.spec)


def base_url(url: str) -> str:
    """Return a gateway's address without a slash at its end. Raises InvalidInput for what is no http or https URL."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        message, fix = f"{url[:80]!r} is no address of a gateway", "give one such as http://127.0.0.1:8090"
        raise InvalidInput(Reason.INVALID_REQUEST, message, where="url", fix=fix)
    return url.rstrip("/")


def encoded(photo: Photo) -> bytes:
    """Return a picture's bytes; an array uint8 RGB [H,W,3] is packed as PNG, without loss. Raises InvalidInput."""
    if isinstance(photo, bytes):
        return photo
    bgr = bgr_of(photo)
    return bytes(cv2.imencode(".png", bgr, [cv2.IMWRITE_PNG_COMPRESSION, _PNG_LEVEL])[1])


def bgr_of(photo: npt.NDArray[np.uint8]) -> Any:
    """Return an array as OpenCV stores it. Raises InvalidInput for anything but uint8 RGB [H,W,3]."""
    if not isinstance(photo, np.ndarray):
        message, fix = f"a {type(photo).__name__} is no picture", "give the file's bytes, or uint8 RGB [H,W,3]"
        raise InvalidInput(Reason.WRONG_SHAPE, message, where="picture", fix=fix)
    if photo.dtype != np.uint8 or photo.ndim != 3 or photo.shape[2] != 3 or 0 in photo.shape:
        message = f"an array of {list(photo.shape)} {photo.dtype} is no picture"
        raise InvalidInput(Reason.WRONG_SHAPE, message, where="picture", fix="give uint8 RGB [H,W,3], or encoded bytes")
    return cv2.cvtColor(photo, cv2.COLOR_RGB2BGR)


def option(value: str | float) -> str:
    """Return an option's value as a query writes it."""
    return value if isinstance(value, str) else f"{value:g}"


def _array(body: bytes) -> Tensor:
    found = np.load(io.BytesIO(body), allow_pickle=False)
    if found.dtype != np.float32:
        raise ValueError(f"{found.dtype}, not float32")
    return cast("Tensor", found)


def _plain(body: bytes) -> npt.NDArray[np.float32]:
    return _array(body)


def _fine(body: bytes) -> npt.NDArray[np.float32]:
    return pixels_of(body).astype(np.float32) / np.float32(255)
