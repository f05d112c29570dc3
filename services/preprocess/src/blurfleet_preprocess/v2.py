"""KServe v2 as the gateway speaks it, whatever the transport: one alias, one tensor in, its matte out."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from blurfleet import __version__
from blurfleet.api.contract import ContractSpec, SizeRange
from blurfleet.errors import ContractRefused, UnknownName
from blurfleet.pixels import Tensor
from blurfleet.reasons import Reason
from blurfleet_preprocess.dataplane import Answer, Caller, Gateway, Snapshot
from blurfleet_preprocess.regions import Neighbour, RegionRef, Regions
from blurfleet_preprocess.tensors import admit_values

INPUT, OUTPUT, DATATYPE = "image", "matte", "FP32"
PLATFORM = "blurfleet"
EXTENSIONS = ("binary_tensor_data", "system_shared_memory", "model_configuration")
_ITEM = 4  # bytes of one FP32


@dataclass(frozen=True, kw_only=True)
class SentTensor:
    """A tensor as the client describes it: nothing is true of it yet. `data` are its bytes or where they lie."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes | memoryview | RegionRef


@dataclass(frozen=True, kw_only=True)
class InferRequest:
    """One inference as it was asked for. `region` is where the client wants the matte written, None to be sent it.

    `timeout_us` are the microseconds from its arrival that it may take, 0 for as many as the gateway allows.
    """

    id: str
    sent: SentTensor
    binary: bool = True
    region: RegionRef | None = None
    timeout_us: int = 0

    @property
    def shares(self) -> bool:
        """Tell whether tensor or matte lie in the client's memory."""
        return self.region is not None or isinstance(self.sent.data, RegionRef)


@dataclass(frozen=True, kw_only=True)
class Door:
    """Answers v2 requests for the gateway's alias; engines' own names and the model repository are behind it."""

    gateway: Gateway
    regions: Regions

    def server(self) -> dict[str, Any]:
        """Return the server's metadata."""
        return {"name": "blurfleet", "version": __version__, "extensions": list(EXTENSIONS)}

    def snapshot(self, model: str, version: str = "") -> Snapshot:
        """Return what is served. Raises UnknownName (neither alias nor its epoch), EngineError, NodeError."""
        self.known(model)
        snapshot = self.gateway.snapshot()
        _of_version(snapshot, version)
        return snapshot

    def known(self, model: str) -> None:
        """Raise UnknownName unless `model` is the alias."""
        if model != self.gateway.alias:
            raise UnknownName(
                Reason.NOT_FOUND,
                f"no model {model[:80]!r} is served here",
                where="model",
                fix=f"ask the alias {self.gateway.alias!r}; engines are not called by their own names",
            )

    def infer(
        self, caller: Caller, declared: str, model: str, version: str, request: InferRequest, who: Neighbour
    ) -> Answer:
        """Answer `request`; where it named a region, one of `who`, the matte is written there.

        Raises UnknownName, ContractMismatch, ContractRefused, InvalidInput (a region), RequestEnded, EngineError,
        NodeError.
        """
        self.known(model)
        if request.timeout_us > 0:
            caller.life.shorten(request.timeout_us / 1e6)
        caller.life.check()

        def admit(snapshot: Snapshot) -> Tensor:
            _of_version(snapshot, version)
            return tensor_of(request.sent, snapshot.route.contract, self.regions, who)

        if request.region is not None:
            self.regions.check(who, request.region)
        answer = self.gateway.ready_tensor(caller, declared, admit)
        if request.region is not None:
            self.regions.write(who, request.region, answer.matte)
        return answer


def tensor_of(sent: SentTensor, spec: ContractSpec, regions: Regions, who: Neighbour) -> Tensor:
    """Return the float32 tensor that was sent, if the contract allows it. Raises ContractRefused, InvalidInput."""
    if sent.name != INPUT:
        raise ContractRefused(Reason.WRONG_SHAPE, f"the input is {INPUT!r}, not {sent.name[:40]!r}", where="inputs")
    if sent.datatype != DATATYPE:
        raise ContractRefused(Reason.WRONG_DTYPE, f"{sent.datatype[:20]}, not {DATATYPE}", where=INPUT)
    size = sent.data.byte_size if isinstance(sent.data, RegionRef) else len(sent.data)
    if len(sent.shape) != 4 or min(sent.shape) < 1 or math.prod(sent.shape) * _ITEM != size:
        message = f"{size} bytes are no {DATATYPE} of shape {list(sent.shape[:8])}"
        raise ContractRefused(Reason.WRONG_SHAPE, message, where=INPUT, fix="send it whole")
    largest = 3 * spec.height.max * spec.width.max * _ITEM
    if size > largest:  # before a region of any size is copied
        raise ContractRefused(Reason.WRONG_SHAPE, f"{size} bytes, a tensor has at most {largest}", where=INPUT)
    data = regions.read(who, sent.data) if isinstance(sent.data, RegionRef) else memoryview(sent.data)
    tensor = np.frombuffer(data, dtype="<f4").reshape(sent.shape)
    return admit_values(tensor if tensor.flags.aligned else tensor.copy(), spec)


def model_metadata(alias: str, snapshot: Snapshot) -> dict[str, Any]:
    """Return the alias's metadata; its one version is the epoch. An axis of several lengths is -1."""
    spec = snapshot.route.contract
    image, matte = _dims(spec)
    return {
        "name": alias,
        "versions": [str(snapshot.route.epoch)],
        "platform": PLATFORM,
        "inputs": [{"name": INPUT, "datatype": DATATYPE, "shape": image}],
        "outputs": [{"name": OUTPUT, "datatype": DATATYPE, "shape": matte}],
        "parameters": {"x-blurfleet-contract": snapshot.contract_hash},
    }


def model_config(alias: str, snapshot: Snapshot) -> dict[str, Any]:
    """Return the alias's configuration as clients read it: names, types, dimensions, no batching."""
    image, matte = _dims(snapshot.route.contract)
    return {
        "name": alias,
        "platform": PLATFORM,
        "version_policy": {"specific": {"versions": [snapshot.route.epoch]}},
        "max_batch_size": 0,
        "input": [{"name": INPUT, "data_type": "TYPE_FP32", "dims": image}],
        "output": [{"name": OUTPUT, "data_type": "TYPE_FP32", "dims": matte}],
        "parameters": {"x-blurfleet-contract": {"string_value": snapshot.contract_hash}},
    }


def matte_shape(answer: Answer) -> list[int]:
    """Return the shape that the matte [H,W] is sent as: [1,1,H,W]."""
    return [1, 1, *answer.matte.shape]


def _dims(spec: ContractSpec) -> tuple[list[int], list[int]]:
    plane = [_length(spec.height), _length(spec.width)]
    return ([1, 3, *plane] if spec.layout == "NCHW" else [1, *plane, 3]), [1, 1, *plane]


def _length(axis: SizeRange) -> int:
    return axis.opt if axis.min == axis.max else -1


def _of_version(snapshot: Snapshot, version: str) -> None:
    if version not in ("", "-1", str(snapshot.route.epoch)):
        raise UnknownName(
            Reason.NOT_FOUND,
            f"version {version[:20]!r} is not served, {snapshot.route.epoch} is",
            where="version",
            fix="leave the version out: it is the epoch, and grows with every swap",
        )
