"""Coverage-guided fuzzing of what a door reads: `python -m tests.fuzz.fuzz_bodies picture|tensor|v2 [libFuzzer flags]`.

Begins with whole pictures, tensors and requests; what is found lies in out/fuzz. Only Python is instrumented: OpenCV
and libjpeg are driven, not seen into. A refusal by a reason is right, anything else (a crash, time, memory) is not.
"""

from __future__ import annotations

import io
import json
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import atheris
import numpy as np

with atheris.instrument_imports(include=["blurfleet", "blurfleet_preprocess"]):
    from blurfleet.api.contract import ContractSpec, contract_at
    from blurfleet.errors import InvalidInput
    from blurfleet.pixels import decode, to_tensor
    from blurfleet_preprocess.tensors import admit_tensor
    from blurfleet_preprocess.v2_http import LENGTH_HEADER, read_request

from tests.fuzz.pictures import seeds, with_checksums

OUT = Path("out/fuzz")
SIZE = 32
SMALL = ContractSpec(max_pixels=1_000_000)
SPEC = contract_at(SIZE)
FLAGS = ("-timeout=20", "-rss_limit_mb=3000", "-max_len=16384", f"-artifact_prefix={OUT}/")


def picture(data: bytes) -> None:
    """Decode what was sent, with its checksums and with right ones."""
    for sent in {data, with_checksums(data)}:
        try:
            found = decode(sent, SMALL)
        except InvalidInput:
            continue
        assert np.isfinite(to_tensor(found.rgb, SPEC)).all()


def tensor(data: bytes) -> None:
    """Admit what was sent as a `.npy` body."""
    try:
        admit_tensor(data, SPEC)
    except InvalidInput:
        return


def v2(data: bytes) -> None:
    """Read what was sent as a v2 body whose header ends at every place that its own end could be."""
    for headers in ({}, {LENGTH_HEADER: str(data.rfind(b"}") + 1)}, {"content-encoding": "gzip"}):
        try:
            read_request(data, headers, 1 << 20)
        except InvalidInput:
            continue


def _seeds(target: str) -> Mapping[str, bytes]:
    array = np.zeros((1, 3, SIZE, SIZE), np.float32)
    if target == "picture":
        return seeds()
    if target == "tensor":
        buffer = io.BytesIO()
        np.save(buffer, array)
        return {"tensor": buffer.getvalue()}
    given = {"name": "image", "datatype": "FP32", "shape": list(array.shape)}
    binary = {"inputs": [{**given, "parameters": {"binary_data_size": array.nbytes}}]}
    plain = {
        "id": "1",
        "inputs": [{**given, "shape": [1, 1, 1, 2], "data": [[0.5, 1]]}],
        "outputs": [{"name": "matte"}],
    }
    return {"binary": json.dumps(binary).encode() + array.tobytes(), "json": json.dumps(plain).encode()}


def main(target: str, flags: list[str]) -> None:
    """Fuzz one target until it fails or the flags say to stop."""
    targets: dict[str, Callable[[bytes], None]] = {"picture": picture, "tensor": tensor, "v2": v2}
    corpus = OUT / target
    corpus.mkdir(parents=True, exist_ok=True)
    for name, data in _seeds(target).items():
        (corpus / name.replace(" ", "-")).write_bytes(data)
    warnings.simplefilter("ignore")  # numpy comments on headers that other tools wrote
    atheris.Setup([sys.argv[0], *FLAGS, *flags, str(corpus)], targets[target])
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
