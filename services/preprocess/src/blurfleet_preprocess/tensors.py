"""Tensors that clients made themselves: parsed without trust, and refused where they cannot be the contract's."""

from __future__ import annotations

import io
import math

import numpy as np

from blurfleet.api.contract import ContractSpec
from blurfleet.errors import ContractRefused
from blurfleet.pixels import Tensor
from blurfleet.reasons import Reason

_WHERE = "tensor"


class ContractMismatch(ContractRefused):
    """The client made its tensor by another contract than the one served; both hashes are kept."""

    def __init__(self, *, expected: str, received: str) -> None:
        said = f"says {received}" if received else "is missing"
        super().__init__(
            Reason.CONTRACT_MISMATCH,
            f"x-blurfleet-contract {said}; {expected} is served",
            where="x-blurfleet-contract",
            fix="GET /v1/contract, prepare the tensor by it and send its hash",
        )
        self.expected = expected
        self.received = received


def admit_tensor(body: bytes, spec: ContractSpec) -> Tensor:
    """Return the float32 tensor in `.npy` bytes, a read-only view of them.

    Raises ContractRefused: Unparseable (no .npy), WrongDtype (not little-endian float32 in C order), WrongShape,
    NonFiniteInput. The header is judged before any array is made.
    """
    shape, start = _header(body)
    wanted = wanted_shape(spec)
    if shape != wanted:
        raise ContractRefused(Reason.WRONG_SHAPE, f"shape {list(shape)}, not {list(wanted)}", where=_WHERE)
    count = math.prod(wanted)
    if len(body) - start != 4 * count:
        raise ContractRefused(
            Reason.WRONG_SHAPE,
            f"{len(body) - start} bytes of values, not {4 * count}",
            where=_WHERE,
            fix="send it whole",
        )
    return admit_values(np.frombuffer(body, dtype="<f4", count=count, offset=start).reshape(wanted), spec)


def wanted_shape(spec: ContractSpec) -> tuple[int, int, int, int]:
    """Return the shape of a tensor by `spec`."""
    plane = (spec.height.opt, spec.width.opt)
    return (1, 3, *plane) if spec.layout == "NCHW" else (1, *plane, 3)


def admit_values(tensor: Tensor, spec: ContractSpec) -> Tensor:
    """Return a float32 tensor whose values can be the contract's, whatever transport it came by.

    Raises ContractRefused: WrongShape, NonFiniteInput.
    """
    wanted = wanted_shape(spec)
    if tensor.shape != wanted:
        raise ContractRefused(Reason.WRONG_SHAPE, f"shape {list(tensor.shape)}, not {list(wanted)}", where=_WHERE)
    if not np.isfinite(tensor).all():
        bad = int(tensor.size - np.count_nonzero(np.isfinite(tensor)))
        raise ContractRefused(Reason.NON_FINITE_INPUT, f"{bad} values are NaN or infinite", where=_WHERE)
    return tensor


def _header(body: bytes) -> tuple[tuple[int, ...], int]:
    stream = io.BytesIO(body)
    try:
        version = np.lib.format.read_magic(stream)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        shape, fortran, dtype = read(stream)
    except (ValueError, KeyError, SyntaxError, TypeError, EOFError) as error:
        message = f"not a .npy file: {error!r:.120}"
        raise ContractRefused(Reason.UNPARSEABLE, message, where=_WHERE, fix="send what numpy.save writes") from error
    if fortran or dtype != np.dtype("<f4"):
        order = "Fortran" if fortran else "C"
        raise ContractRefused(
            Reason.WRONG_DTYPE, f"{dtype} in {order} order, not little-endian float32 in C order", where=_WHERE
        )
    return tuple(shape), stream.tell()
