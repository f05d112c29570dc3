"""Tensors that clients made themselves: parsed without trust, and refused where they cannot be the contract's."""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from blurfleet.api.contract import ContractSpec, SizeRange
from blurfleet.contract import contract_hash
from blurfleet.diagnosis.variations import differences_of
from blurfleet.errors import ContractRefused
from blurfleet.pixels import Tensor
from blurfleet.reasons import Reason

_WHERE = "tensor"


class ContractMismatch(ContractRefused):
    """The client made its tensor by another contract than the one served; both hashes are kept.

    `differences` are what the two disagree on, where the declared contract is a well-known variation of the served one;
    a hash alone tells no more.
    """

    def __init__(self, served: ContractSpec, received: str) -> None:
        self.expected = contract_hash(served)
        self.received = received
        self.differences = differences_of(served, received) if received else None
        said = f"says {received[:80]!r}" if received else "is missing"
        named = "; ".join(f"{d.field} {d.right}, served {d.left}" for d in self.differences or ())
        super().__init__(
            Reason.CONTRACT_MISMATCH,
            f"x-blurfleet-contract {said}; {self.expected} is served" + (f" ({named})" if named else ""),
            where="x-blurfleet-contract",
            fix="GET /v1/contract, prepare the tensor by it and send its hash",
        )

    def named(self) -> list[dict[str, Any]]:
        """Return the differences as clients read them: field, served, declared; empty where none is known."""
        return [{"field": d.field, "served": d.left, "declared": d.right} for d in self.differences or ()]


class OutsideProfile(ContractRefused):
    """A tensor whose height or width is none that the contract allows; `facts` name profile, axis and limits."""

    def __init__(self, name: str, axis: int, length: int, limits: SizeRange) -> None:
        steps = f" in steps of {limits.multiple_of}" if limits.multiple_of > 1 else ""
        allowed = f"{limits.min} to {limits.max}{steps}" if limits.min < limits.max else f"{limits.opt}"
        super().__init__(
            Reason.WRONG_SHAPE,
            f"{name} (axis {axis}) is {length}; the contract's {name} profile allows {allowed}",
            where=_WHERE,
            fix=f"resize to {limits.opt}, the length the engine is best at",
        )
        self.facts = {"profile": name, "axis": axis, "length": length, "limits": limits.wire()}


def admit_tensor(body: bytes, spec: ContractSpec) -> Tensor:
    """Return the float32 tensor in `.npy` bytes, a read-only view of them.

    Raises ContractRefused: Unparseable (no .npy), WrongDtype (not little-endian float32 in C order), WrongShape. The
    header is judged before any array is made.
    """
    shape, start = _header(body)
    _check_shape(shape, spec)
    count = math.prod(shape)
    if len(body) - start != 4 * count:
        raise ContractRefused(
            Reason.WRONG_SHAPE,
            f"{len(body) - start} bytes of values, not {4 * count}",
            where=_WHERE,
            fix="send it whole",
        )
    return admit_values(np.frombuffer(body, dtype="<f4", count=count, offset=start).reshape(shape), spec)


def admit_values(tensor: Tensor, spec: ContractSpec) -> Tensor:
    """Return a float32 tensor of a shape that the contract allows, whatever transport it came by.

    Raises ContractRefused (WrongShape; OutsideProfile where only a length is wrong).
    """
    _check_shape(tensor.shape, spec)
    return tensor


def _check_shape(shape: tuple[int, ...], spec: ContractSpec) -> None:
    rows, columns = (2, 3) if spec.layout == "NCHW" else (1, 2)
    channels = 1 if spec.layout == "NCHW" else 3
    if len(shape) != 4 or shape[0] != 1 or shape[channels] != 3:
        wanted = [1, 3, "H", "W"] if spec.layout == "NCHW" else [1, "H", "W", 3]
        text = f"shape {list(shape[:8])}, not {wanted} (layout {spec.layout})".replace("'", "")
        raise ContractRefused(Reason.WRONG_SHAPE, text, where=_WHERE, fix="one picture of three channels at a time")
    for name, axis, limits in (("height", rows, spec.height), ("width", columns, spec.width)):
        length = shape[axis]
        if not limits.min <= length <= limits.max or length % limits.multiple_of:
            raise OutsideProfile(name, axis, length, limits)


def numbers_in(body: bytes) -> npt.NDArray[Any]:
    """Return the numbers in `.npy` bytes as they are, of any shape and type, for the self-test to judge.

    Raises ContractRefused: Unparseable, WrongDtype (no numbers, or more than 64 bit), WrongShape (values are missing).
    """
    shape, fortran, dtype, start = _npy_header(body)
    if dtype.kind not in "fiu" or dtype.itemsize > 8:
        raise ContractRefused(Reason.WRONG_DTYPE, f"{dtype} are no numbers to compare", where=_WHERE)
    count = math.prod(shape)
    if count < 1 or len(shape) > 4 or len(body) - start != dtype.itemsize * count:
        text = f"{len(body) - start} bytes are not {list(shape[:8])} of {dtype}"
        raise ContractRefused(Reason.WRONG_SHAPE, text, where=_WHERE, fix="send one picture's tensor, whole")
    flat = np.frombuffer(body, dtype=dtype, count=count, offset=start)
    return flat.reshape(shape, order="F" if fortran else "C")


def _header(body: bytes) -> tuple[tuple[int, ...], int]:
    shape, fortran, dtype, start = _npy_header(body)
    if fortran or dtype != np.dtype("<f4"):
        order = "Fortran" if fortran else "C"
        message = f"{dtype} in {order} order, not little-endian float32 in C order"
        fix = "save numpy.ascontiguousarray(tensor, dtype='<f4')"
        raise ContractRefused(Reason.WRONG_DTYPE, message, where=_WHERE, fix=fix)
    return shape, start


def _npy_header(body: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Return (shape, Fortran order, dtype, where the values begin). Raises ContractRefused Unparseable."""
    stream = io.BytesIO(body)
    try:
        version = np.lib.format.read_magic(stream)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        shape, fortran, dtype = read(stream)
    except Exception as error:  # numpy evaluates the header as Python: it raises what its tokenizer and parser do
        message = f"not a .npy file: {error!r:.120}"
        raise ContractRefused(Reason.UNPARSEABLE, message, where=_WHERE, fix="send what numpy.save writes") from error
    if not all(type(length) is int and length >= 0 for length in shape):  # a bool passes for an int
        message = f"not a .npy file: no array has shape {shape!r:.80}"
        raise ContractRefused(Reason.UNPARSEABLE, message, where=_WHERE, fix="send what numpy.save writes")
    return tuple(shape), bool(fortran), dtype, stream.tell()
