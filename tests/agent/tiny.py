"""Engines, records and golden frames small enough for tests: a python-backend model that is told how to be wrong."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from blurfleet.api.base import Precision
from blurfleet.api.contract import contract_at
from blurfleet.api.engineset import Blob
from blurfleet.api.nodeengine import EngineRef
from blurfleet.api.record import BuildRecord, Serving, Source, SupportFile, Target, Tensor
from blurfleet.identity import digest12, digest_bytes
from blurfleet.pixels import decode, to_tensor

SIZE = 32
CONTRACT = contract_at(SIZE)
MODEL_PY = '''"""A tiny network, wrong in the way its engine.json says."""

import json
import os

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        folder = os.path.join(args["model_repository"], args["model_version"])
        with open(os.path.join(folder, "engine.json")) as handle:
            self.spec = json.load(handle)
        if self.spec["kind"] == "refuses-to-load":
            raise RuntimeError("this engine does not load")

    def execute(self, requests):
        answers = []
        for request in requests:
            image = pb_utils.get_input_tensor_by_name(request, "image").as_numpy()
            matte = 1.0 / (1.0 + np.exp(-image.mean(axis=1, keepdims=True)))
            kind, bright = self.spec["kind"], float(image.mean()) > 1.5
            if kind == "shifted":
                matte = matte + 0.17
            if kind == "nan-when-bright" and bright:
                matte[..., 3, 4] = np.nan
            if kind == "zero-when-bright" and bright:
                matte = matte * 0.0
            if kind == "striped":
                matte[..., ::2, :] = 0.1
            if kind == "tiny-drift":
                matte = matte + 0.0005
            matte = np.clip(matte, 0.0, 1.0) if kind == "shifted" else matte
            tensor = pb_utils.Tensor("matte", np.ascontiguousarray(matte, np.float32))
            answers.append(pb_utils.InferenceResponse([tensor]))
        return answers
'''


@dataclass(frozen=True, kw_only=True)
class Shelf:
    """Where the test's blobs lie."""

    folder: Path

    def put(self, data: bytes) -> Blob:
        digest = digest_bytes(data)
        path = self.folder / digest.removeprefix("sha256:")
        path.write_bytes(data)
        return Blob(uri=path.as_uri(), digest=digest, bytes=len(data))


def reference(tensor: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return what the sound network answers."""
    return np.asarray(1.0 / (1.0 + np.exp(-tensor.mean(axis=1, keepdims=True))), np.float32)


def picture(seed: int, *, bright: bool = False) -> bytes:
    """Return a PNG of SIZE x SIZE with soft blobs; a bright one averages far above mid-grey."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (6, 6, 3), dtype=np.uint8)
    image = cv2.resize(coarse, (SIZE, SIZE), interpolation=cv2.INTER_CUBIC)
    if bright:
        image = np.asarray(255 - image // 5, np.uint8)
    ok, data = cv2.imencode(".png", image)
    assert ok
    return data.tobytes()


def tensor_of(data: bytes) -> NDArray[np.float32]:
    """Return the tensor that the contract makes of a picture."""
    return to_tensor(decode(data, CONTRACT).rgb, CONTRACT)


def golden(shelf: Shelf, seeds: tuple[int, ...] = (1, 2, 3), *, spoil_pictures: bool = False) -> Blob:
    """Return a golden bundle; with `spoil_pictures` its pictures no longer make its tensors."""
    pictures = [picture(s) for s in seeds]
    tensors = np.concatenate([tensor_of(p) for p in pictures])
    shown = [picture(s + 100) for s in seeds] if spoil_pictures else pictures
    out = io.BytesIO()
    arrays = {f"picture_{i}": np.frombuffer(p, np.uint8) for i, p in enumerate(shown)}
    names = np.array([f"golden-{s}" for s in seeds])
    np.savez(out, names=names, tensors=tensors, references=reference(tensors), **arrays)
    return shelf.put(out.getvalue())


def engine(
    shelf: Shelf,
    kind: str,
    *,
    set_name: str,
    precision: Precision = "Mixed",
    salt: str = "",
    model_py: bool = True,
    memory_bytes: int = 0,
) -> EngineRef:
    """Return an engine of `kind` with record and support file on the shelf."""
    artifact = shelf.put(json.dumps({"kind": kind, "salt": salt}).encode())
    script = shelf.put(MODEL_PY.encode())
    support = (SupportFile(name="model.py", uri=script.uri, digest=script.digest, bytes=script.bytes or 0),)
    record = BuildRecord(
        model="tiny",
        model_id=digest12(artifact.digest),
        variant=f"{kind}-{precision.lower()}",
        source=Source(package="tests", file="tiny", digest=artifact.digest, licence="Apache-2.0"),
        artifact_digest=artifact.digest,
        artifact_bytes=artifact.bytes or 0,
        precision=precision,
        runtime="python",
        runtime_version="0",
        target=Target(device_class="jetson-orin", runtime_version="0"),
        inputs=(Tensor(name="image", shape=(1, 3, SIZE, SIZE)),),
        outputs=(Tensor(name="matte", shape=(1, 1, SIZE, SIZE)),),
        serving=Serving(
            backend="python",
            artifact_name="engine.json",
            instance_kind="KIND_CPU",
            support_files=support if model_py else (),
        ),
        simulated=True,
        built_at="1970-01-01T00:00:00Z",
        build_seconds=0.0,
    )
    return EngineRef(
        set=set_name,
        variant=record.variant,
        digest=artifact.digest,
        precision=precision,
        artifact=artifact,
        build_record=shelf.put(record.model_dump_json(by_alias=True).encode()),
        memory_bytes=memory_bytes,
    )
