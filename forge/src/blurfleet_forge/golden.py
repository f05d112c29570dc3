"""The golden bundle: pictures, their tensors, and the FP32 answers of a runtime that serves nowhere."""

from __future__ import annotations

import io
import zipfile
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Tensor = NDArray[np.float32]
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time a zip can hold: equal bundles must be equal bytes


@dataclass(frozen=True, kw_only=True)
class GoldenBundle:
    """N golden frames: names, picture files as they are, tensors and answers, each float32 [1, C, S, S]."""

    names: tuple[str, ...]
    pictures: tuple[bytes, ...]
    tensors: tuple[Tensor, ...]
    references: tuple[Tensor, ...]


def pack(bundle: GoldenBundle) -> bytes:
    """Return the bundle as npz: `names`, `tensors` [N,3,S,S], `references` [N,1,S,S], `picture_0`... as uint8 bytes."""
    arrays: dict[str, NDArray[np.generic]] = {
        "names": np.array(bundle.names),
        "tensors": np.concatenate(bundle.tensors),
        "references": np.concatenate(bundle.references),
    }
    for i, data in enumerate(bundle.pictures):
        arrays[f"picture_{i}"] = np.frombuffer(data, np.uint8)
    return _npz(arrays)


def unpack(data: bytes) -> GoldenBundle:
    """Return the bundle that `pack` made."""
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        names = tuple(str(n) for n in arrays["names"])
        return GoldenBundle(
            names=names,
            pictures=tuple(arrays[f"picture_{i}"].tobytes() for i in range(len(names))),
            tensors=_rows(arrays["tensors"]),
            references=_rows(arrays["references"]),
        )


def _rows(stack: Tensor) -> tuple[Tensor, ...]:
    return tuple(stack[i : i + 1] for i in range(len(stack)))


def _npz(arrays: dict[str, NDArray[np.generic]]) -> bytes:
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            part = io.BytesIO()
            np.lib.format.write_array(part, np.ascontiguousarray(array), allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(f"{name}.npy", _EPOCH), part.getvalue(), zipfile.ZIP_DEFLATED)
    return whole.getvalue()
