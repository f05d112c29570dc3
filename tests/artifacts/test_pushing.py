"""What the forge built is brought to where nodes fetch it: by digest, once, and addresses say so."""

from __future__ import annotations

from pathlib import Path

import pytest
from object_server import ObjectServer

from blurfleet.api.engineset import Blob, Variant
from blurfleet.api.record import BuildRecord
from blurfleet.artifacts import Location
from blurfleet.check import dumps
from blurfleet.errors import StoreError
from blurfleet.identity import digest_bytes
from blurfleet.reasons import Reason
from blurfleet_agent.staging import Staging
from blurfleet_forge.artifacts import Artifacts
from blurfleet_forge.push import Pusher

TARGET = {"class": "a100", "sm": 80, "platform": "linux-x86_64", "runtimeVersion": "10.13.3.9"}
BIG = bytes(range(256)) * 50_000  # 12.8 MB: more than one part


def record(artifacts: Artifacts, *files: Blob) -> Blob:
    body = {
        "model": "bokeh",
        "modelId": "0" * 12,
        "variant": "a100-fp32",
        "source": {"package": "p==1", "file": "f", "digest": digest_bytes(b"s"), "licence": "Apache-2.0"},
        "artifactDigest": digest_bytes(b"engine"),
        "artifactBytes": 6,
        "precision": "FP32",
        "runtime": "onnxruntime",
        "runtimeVersion": "1",
        "target": TARGET,
        "inputs": [{"name": "image", "shape": [1, 3, 8, 8]}],
        "outputs": [{"name": "matte", "shape": [1, 1, 8, 8]}],
        "serving": {
            "backend": "python",
            "artifactName": "net.onnx",
            "instanceKind": "KIND_CPU",
            "supportFiles": [{"name": "model.py", "uri": f.uri, "digest": f.digest, "bytes": f.bytes} for f in files],
        },
        "simulated": True,
        "builtAt": "2026-11-30T00:00:00Z",
        "buildSeconds": 1.0,
    }
    return artifacts.put(dumps(BuildRecord.model_validate(body).wire()).encode())


def variant(artifacts: Artifacts, engine: bytes, birth: Blob) -> Variant:
    return Variant.model_validate(
        {
            "name": "a100-fp32",
            "target": TARGET,
            "runtime": "onnxruntime",
            "precision": "FP32",
            "artifact": artifacts.put(engine).wire(),
            "buildRecord": birth.wire(),
        }
    )


def place(server: ObjectServer, scheme: str, folder: Path) -> str:
    return {
        "s3": "s3://engines/bokeh",
        "http": f"{server.url}/engines/bokeh",
        "file": (folder / "shared" / "bokeh").as_uri(),
    }[scheme]


SCHEMES = pytest.mark.parametrize("scheme", ["s3", "http", "file"])


@SCHEMES
@pytest.mark.parametrize("data", [pytest.param(b"engine", id="small"), pytest.param(BIG, id="in parts where it can")])
def test_a_pushed_blob_is_fetched_by_the_address_it_got(
    server: ObjectServer, tmp_path: Path, scheme: str, data: bytes
) -> None:
    artifacts, at = Artifacts(tmp_path / "out"), Location(uri=place(server, scheme, tmp_path))
    pushed = Pusher(artifacts, at).blob(artifacts.put(data))
    assert pushed == Blob(
        uri=f"{at.uri}/blobs/sha256/{digest_bytes(data)[7:]}", digest=digest_bytes(data), bytes=len(data)
    )
    assert Staging(tmp_path / "node").ensure(pushed).read_bytes() == data


@SCHEMES
def test_what_is_there_is_not_sent_again(server: ObjectServer, tmp_path: Path, scheme: str) -> None:
    artifacts, at = Artifacts(tmp_path / "out"), Location(uri=place(server, scheme, tmp_path))
    blob = artifacts.put(b"engine")
    first, again = Pusher(artifacts, at), Pusher(artifacts, at)
    assert first.blob(blob) == first.blob(blob) == again.blob(blob)
    assert [(p.sent, p.found) for p in (first, again)] == [(1, 0), (0, 1)]
    assert server.methods().count("PUT") == (0 if scheme == "file" else 1)


@pytest.mark.parametrize("scheme", ["s3", "http"])
def test_a_half_of_it_is_sent_again(server: ObjectServer, tmp_path: Path, scheme: str) -> None:
    artifacts, at = Artifacts(tmp_path / "out"), Location(uri=place(server, scheme, tmp_path))
    key = f"/engines/bokeh/blobs/sha256/{digest_bytes(b'engine')[7:]}"
    server.objects[key] = b"eng"
    Pusher(artifacts, at).blob(artifacts.put(b"engine"))
    assert server.objects[key] == b"engine"


def test_a_writer_who_may_not_look_still_writes(server: ObjectServer, tmp_path: Path) -> None:
    artifacts, server.refuse = Artifacts(tmp_path), {"HEAD": 403}
    pusher = Pusher(artifacts, Location(uri="s3://engines"))
    pusher.blob(artifacts.put(b"engine"))
    assert (pusher.sent, len(server.objects)) == (1, 1)


@pytest.mark.parametrize("scheme", ["s3", "http"])
def test_a_place_that_refuses_is_named_with_the_way_out(server: ObjectServer, tmp_path: Path, scheme: str) -> None:
    artifacts, server.refuse = Artifacts(tmp_path / "out"), {"PUT": 403}
    at = Location(uri=place(server, scheme, tmp_path))
    with pytest.raises(StoreError) as refused:
        Pusher(artifacts, at).blob(artifacts.put(b"engine"))
    assert (refused.value.reason, refused.value.where) == (
        Reason.STORE_UNWRITABLE,
        at.uri_of(digest_bytes(b"engine")),
    )
    assert "BLURFLEET_ARTIFACTS_TOKEN" in refused.value.fix
    assert "\n" not in str(refused.value)


def test_the_record_at_the_place_names_its_files_there(server: ObjectServer, tmp_path: Path) -> None:
    artifacts, at = Artifacts(tmp_path / "out"), Location(uri="s3://engines/bokeh")
    beside = artifacts.put(b"import torch")
    made = variant(artifacts, b"engine", record(artifacts, beside))
    pushed = Pusher(artifacts, at).variant(made)
    staging = Staging(tmp_path / "node")
    there = BuildRecord.model_validate_json(staging.ensure(pushed.build_record).read_bytes())
    (file,) = there.serving.support_files
    assert file.uri == at.uri_of(beside.digest)
    assert staging.ensure(Blob(uri=file.uri, digest=file.digest, bytes=file.bytes)).read_bytes() == b"import torch"
    assert pushed.build_record.digest != made.build_record.digest
    assert pushed.artifact.digest == made.artifact.digest


def test_a_record_without_files_beside_keeps_its_digest(server: ObjectServer, tmp_path: Path) -> None:
    artifacts = Artifacts(tmp_path)
    made = variant(artifacts, b"engine", record(artifacts))
    pushed = Pusher(artifacts, Location(uri="s3://engines")).variant(made)
    assert pushed.build_record.digest == made.build_record.digest
    assert len(server.objects) == 2


def test_without_a_place_addresses_stay(tmp_path: Path) -> None:
    artifacts = Artifacts(tmp_path)
    made = variant(artifacts, b"engine", record(artifacts))
    assert Pusher(artifacts, Location()).variant(made) is made


def test_nothing_is_ever_listed(server: ObjectServer, tmp_path: Path) -> None:
    artifacts = Artifacts(tmp_path / "out")
    pusher = Pusher(artifacts, Location(uri="s3://engines"))
    pusher.blob(artifacts.put(b"engine"))
    pusher.document(artifacts.path(digest_bytes(b"engine")), "sets/x.yaml")
    assert [(a.method, "list" in a.target) for a in server.asked] == [("HEAD", False), ("PUT", False), ("PUT", False)]
    assert "/engines/sets/x.yaml" in server.objects
