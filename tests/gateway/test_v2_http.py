"""KServe v2 over HTTP by tritonclient, as teams use it: one header more, and nothing else."""

import gzip
import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from blurfleet.api.contract import contract_at
from blurfleet.contract import contract_hash
from blurfleet.errors import ContractRefused
from blurfleet.pixels import to_tensor
from blurfleet_preprocess.regions import RegionRef, Regions
from blurfleet_preprocess.v2 import SentTensor
from blurfleet_preprocess.v2 import tensor_of as tensor_of_sent
from blurfleet_preprocess.v2_http import MAX_JSON_BYTES, MAX_JSON_NESTS

Rig = Any  # the fixture's class lives in conftest.py


def tensor_of(rig: Rig) -> np.ndarray:
    rgb = np.random.default_rng(7).integers(0, 256, (rig.size, rig.size, 3), dtype=np.uint8)
    return to_tensor(rgb, contract_at(rig.size))


def declared(rig: Rig) -> dict[str, str]:
    return {"x-blurfleet-contract": contract_hash(contract_at(rig.size))}


@pytest.fixture
def v2(client: httpx.Client) -> Any:
    with triton.InferenceServerClient(f"{client.base_url.host}:{client.base_url.port}") as made:
        yield made


@pytest.mark.parametrize("binary_out", [True, False], ids=["binary out", "json out"])
@pytest.mark.parametrize("binary_in", [True, False], ids=["binary in", "json in"])
def test_a_tensor_is_answered_by_the_served_engine(rig: Rig, v2: Any, binary_in: bool, binary_out: bool) -> None:
    tensor = tensor_of(rig)
    sent = triton.InferInput("image", list(tensor.shape), "FP32")
    sent.set_data_from_numpy(tensor, binary_data=binary_in)
    wish = triton.InferRequestedOutput("matte", binary_data=binary_out)
    answer = v2.infer("bokeh", [sent], outputs=[wish], headers=declared(rig), request_id="mine")
    np.testing.assert_array_equal(answer.as_numpy("matte"), rig.matte("subject")[None, None])
    np.testing.assert_array_equal(rig.engines.tensors[0], tensor)
    said = answer.get_response()
    assert (said["model_name"], said["model_version"], said["id"]) == ("bokeh", "7", "mine")
    assert said["parameters"]["x-blurfleet-engine"] == rig.primary.engine
    assert rig.engines.asked == [rig.primary.engine]


def test_without_the_contracts_hash_the_client_reads_why(rig: Rig, v2: Any) -> None:
    tensor = tensor_of(rig)
    sent = triton.InferInput("image", list(tensor.shape), "FP32").set_data_from_numpy(tensor)
    with pytest.raises(InferenceServerException) as refused:
        v2.infer("bokeh", [sent])
    assert refused.value.status() == "412"
    assert "x-blurfleet-contract is missing" in refused.value.message()
    assert rig.engines.asked == []


def post(client: httpx.Client, rig: Rig, document: Any, tail: bytes = b"", **more: Any) -> httpx.Response:
    """Send a v2 request by hand; `more` are headers, underscores for dashes."""
    head = document if isinstance(document, bytes) else json.dumps(document).encode()
    headers = declared(rig) | {name.replace("_", "-"): str(value) for name, value in more.items()}
    if tail:
        headers.setdefault("inference-header-content-length", str(len(head)))
    return client.post("/v2/models/bokeh/infer", content=head + tail, headers=headers)


def binary_form(tensor: np.ndarray, **changes: Any) -> dict[str, Any]:
    sent = {"name": "image", "datatype": "FP32", "shape": list(tensor.shape)}
    return {"inputs": [sent | {"parameters": {"binary_data_size": tensor.nbytes}} | changes]}


def refused(response: httpx.Response, status: int, reason: str) -> str:
    body = response.json()
    assert (response.status_code, body["reason"]) == (status, reason), body
    assert response.headers["content-type"] == "application/problem+json"
    assert body["detail"] in body["error"]
    return str(body["error"])


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compressed_bodies_are_taken_and_given(rig: Rig, v2: Any, algorithm: str) -> None:
    tensor = tensor_of(rig)
    sent = triton.InferInput("image", list(tensor.shape), "FP32").set_data_from_numpy(tensor)
    answer = v2.infer(
        "bokeh", [sent], headers=declared(rig), request_compression_algorithm=algorithm,
        response_compression_algorithm=algorithm,
    )  # fmt: skip
    np.testing.assert_array_equal(answer.as_numpy("matte"), rig.matte("subject")[None, None])
    np.testing.assert_array_equal(rig.engines.tensors[0], tensor)


def test_a_body_that_inflates_beyond_the_limit_is_refused(rig: Rig, client: httpx.Client) -> None:
    bomb = gzip.compress(bytes(8 << 20))
    assert len(bomb) < 10_000
    refused(post(client, rig, bomb, content_encoding="gzip"), 413, "RequestTooLarge")


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        pytest.param("gzip", b"not gzip", id="no gzip"),
        pytest.param("gzip", gzip.compress(b"{}" * 99)[:-9], id="cut short"),
        pytest.param("gzip", gzip.compress(b"{}") + b"tail", id="a tail"),
        pytest.param("br", b"{}", id="brotli"),
        pytest.param("gzip, gzip", b"{}", id="twice"),
    ],
)
def test_a_body_that_does_not_inflate_is_refused(rig: Rig, client: httpx.Client, encoding: str, body: bytes) -> None:
    refused(post(client, rig, body, content_encoding=encoding), 400, "InvalidRequest")


def test_the_answer_says_who_made_it_in_headers_and_parameters(rig: Rig, client: httpx.Client) -> None:
    rig.engines_behave("with NaN")
    tensor = tensor_of(rig)
    response = post(client, rig, binary_form(tensor), tensor.tobytes())
    assert response.headers["x-blurfleet-withheld"] == "NonFiniteOutput"
    said = response.json()
    assert said["parameters"]["x-blurfleet-engine"] == response.headers["x-blurfleet-engine"] == rig.fallback.engine
    assert said["parameters"]["x-blurfleet-epoch"] == said["model_version"] == "7"
    (output,) = said["outputs"]
    assert output["shape"] == [1, 1, rig.size, rig.size]
    np.testing.assert_array_equal(np.float32(output["data"]), rig.matte("shifted").ravel())


def test_binary_answers_have_their_header_and_their_bytes(rig: Rig, client: httpx.Client) -> None:
    tensor = tensor_of(rig)
    document = binary_form(tensor) | {"parameters": {"binary_data_output": True}}
    response = post(client, rig, document, tensor.tobytes())
    split = int(response.headers["inference-header-content-length"])
    assert json.loads(response.content[:split])["outputs"][0]["parameters"]["binary_data_size"] == 4 * rig.size**2
    np.testing.assert_array_equal(np.frombuffer(response.content[split:], "<f4"), rig.matte("subject").ravel())


def test_a_header_of_odd_length_does_not_spoil_the_values_after_it(rig: Rig, client: httpx.Client) -> None:
    tensor = tensor_of(rig)
    for spaces in range(4):
        head = json.dumps(binary_form(tensor)).encode() + b" " * spaces
        assert post(client, rig, head, tensor.tobytes()).status_code == 200
        np.testing.assert_array_equal(rig.engines.tensors[-1], tensor)


def _bad_requests() -> list[Any]:
    tensor = np.zeros((1, 3, 32, 32), np.float32)
    data, good = tensor.tobytes(), binary_form(tensor)
    text = {"name": "image", "datatype": "FP32", "shape": [1, 3, 32, 32]}
    flat = [0.5] * tensor.size
    return [
        pytest.param(b"", b"", 400, "InvalidRequest", id="no bytes"),
        pytest.param(b"[]", b"", 400, "InvalidRequest", id="no object"),
        pytest.param(b"[" * 5000, b"", 400, "InvalidRequest", id="deep nesting"),
        pytest.param({}, b"", 400, "InvalidRequest", id="no inputs"),
        pytest.param({"inputs": [text, text]}, b"", 400, "InvalidRequest", id="two inputs"),
        pytest.param({"inputs": [text]}, b"", 400, "InvalidRequest", id="an input without data"),
        pytest.param(good, data[:-4], 400, "InvalidRequest", id="a value short"),
        pytest.param(good, data + b"xxxx", 400, "InvalidRequest", id="a value too many"),
        pytest.param(binary_form(tensor, name="picture"), data, 422, "WrongShape", id="another input's name"),
        pytest.param(binary_form(tensor, datatype="FP16"), data, 422, "WrongDtype", id="another type"),
        pytest.param(binary_form(tensor, shape=[3, 32, 32]), data, 422, "WrongShape", id="three axes"),
        pytest.param(binary_form(tensor, shape=[1, 3, 32, 31]), data, 422, "WrongShape", id="a shape of fewer bytes"),
        pytest.param(binary_form(tensor, shape=[1, 3, -32, -32]), data, 400, "InvalidRequest", id="negative axes"),
        pytest.param(binary_form(tensor, shape=[1 << 31] * 4), data, 422, "WrongShape", id="an astronomic shape"),
        pytest.param(binary_form(tensor, shape=["1", 3, 32, 32]), data, 400, "InvalidRequest", id="a text axis"),
        pytest.param({"inputs": [text | {"data": flat[:-1]}]}, b"", 422, "WrongShape", id="a JSON value short"),
        pytest.param({"inputs": [text | {"data": [[1], [1, 2]]}]}, b"", 400, "InvalidRequest", id="ragged JSON"),
        pytest.param({"inputs": [text | {"data": ["x"] * 3072}]}, b"", 400, "InvalidRequest", id="JSON text"),
        pytest.param({"inputs": [text | {"data": ["0.5"] * 3072}]}, b"", 400, "InvalidRequest", id="numbers as text"),
        pytest.param({"inputs": [text | {"data": [*flat[1:], True]}]}, b"", 400, "InvalidRequest", id="a truth value"),
        pytest.param({"inputs": [text | {"data": [[flat[1:], [None]]]}]}, b"", 400, "InvalidRequest", id="a null"),
        pytest.param({"inputs": [text | {"data": 0.5}]}, b"", 400, "InvalidRequest", id="no list"),
        pytest.param({"inputs": [text | {"data": [*flat[1:], 1e39]}]}, b"", 422, "NonFiniteInput", id="beyond float32"),
        pytest.param(good | {"outputs": [{"name": "edges"}]}, data, 400, "InvalidRequest", id="another output"),
        pytest.param(good | {"id": "x" * 300}, data, 400, "InvalidRequest", id="a long id"),
    ]


@pytest.mark.parametrize(("document", "tail", "status", "reason"), _bad_requests())
def test_a_request_that_is_wrong_is_the_senders_problem(
    rig: Rig, client: httpx.Client, document: Any, tail: bytes, status: int, reason: str
) -> None:
    refused(post(client, rig, document, tail), status, reason)
    assert rig.engines.asked == []


@pytest.mark.parametrize("length", ["-1", "99999999", "x", "", "0" * 20 + "1" * 5000, "0" * 20 + "999999"])
def test_a_header_length_that_lies_is_refused(rig: Rig, client: httpx.Client, length: str) -> None:
    tensor = tensor_of(rig)
    head = json.dumps(binary_form(tensor)).encode()
    headers = declared(rig) | {"inference-header-content-length": length}
    response = client.post("/v2/models/bokeh/infer", content=head + tensor.tobytes(), headers=headers)
    assert (response.status_code, response.json()["reason"]) == (400, "InvalidRequest")


@pytest.mark.parametrize(
    ("path", "status", "reason"),
    [
        pytest.param("models/bokeh__aaaaaaaaaaaa", 404, "NotFound", id="an engine"),
        pytest.param("models/bokeh__aaaaaaaaaaaa/ready", 404, "NotFound", id="an engine's health"),
        pytest.param("models/bokeh/versions/6", 404, "NotFound", id="an older epoch"),
        pytest.param("models/bokeh/stats", 404, "NotFound", id="what is not offered"),
        pytest.param("repository/index", 403, "Forbidden", id="the repository"),
        pytest.param("repository/models/bokeh/unload", 403, "Forbidden", id="unloading"),
        pytest.param("trace/setting", 403, "Forbidden", id="trace settings"),
        pytest.param("logging", 403, "Forbidden", id="log settings"),
        pytest.param("cudasharedmemory/status", 403, "Forbidden", id="GPU memory"),
    ],
)
def test_only_the_alias_is_reachable(client: httpx.Client, path: str, status: int, reason: str) -> None:
    refused(client.get(f"/v2/{path}"), status, reason)
    refused(client.post(f"/v2/{path}"), status, reason)


def test_an_engine_cannot_be_asked_by_its_own_name(rig: Rig, client: httpx.Client) -> None:
    tensor = tensor_of(rig)
    head = json.dumps(binary_form(tensor)).encode()
    headers = declared(rig) | {"inference-header-content-length": str(len(head))}
    for name in (rig.primary.engine, rig.fallback.engine):
        response = client.post(f"/v2/models/{name}/infer", content=head + tensor.tobytes(), headers=headers)
        assert "by their own names" in refused(response, 404, "NotFound")
    for version, status in (("7", 200), ("6", 404)):
        path = f"/v2/models/bokeh/versions/{version}/infer"
        assert client.post(path, content=head + tensor.tobytes(), headers=headers).status_code == status
    assert rig.engines.asked == [rig.primary.engine]


def test_the_alias_is_described_and_ready(rig: Rig, v2: Any) -> None:
    assert v2.is_server_live()
    assert v2.is_server_ready()
    assert v2.is_model_ready("bokeh", "7")
    assert not v2.is_model_ready("bokeh", "6")
    assert v2.get_server_metadata()["name"] == "blurfleet"
    said = v2.get_model_metadata("bokeh")
    assert said["versions"] == ["7"]
    assert said["inputs"] == [{"name": "image", "datatype": "FP32", "shape": [1, 3, 32, 32]}]
    assert said["outputs"] == [{"name": "matte", "datatype": "FP32", "shape": [1, 1, 32, 32]}]
    assert v2.get_model_config("bokeh")["input"][0]["dims"] == [1, 3, 32, 32]


def test_nothing_is_ready_without_an_engine(rig: Rig, v2: Any) -> None:
    rig.engines.behaviours.clear()
    assert v2.is_server_live()
    assert not v2.is_server_ready()
    assert not v2.is_model_ready("bokeh")


@pytest.mark.parametrize(
    ("head", "status", "reason"),
    [
        pytest.param(b'{"inputs":[' + b" " * MAX_JSON_BYTES + b"]}", 413, "RequestTooLarge", id="much"),
        pytest.param(b'{"inputs":[' + b"[]," * MAX_JSON_NESTS + b"[]]}", 400, "InvalidRequest", id="many lists"),
    ],
)
def test_json_that_would_fill_memory_is_refused_before_it_is_read(
    rig: Rig, serve: Any, head: bytes, status: int, reason: str
) -> None:
    with serve(rig, max_body_bytes=1 << 24) as client:
        refused(post(client, rig, head), status, reason)


def test_a_region_larger_than_any_tensor_is_not_copied(rig: Rig) -> None:
    regions = Regions(folder=Path("/nowhere"))  # where reading it would say that it is unknown
    sent = SentTensor(
        name="image", datatype="FP32", shape=(1, 3, 4096, 4096),
        data=RegionRef(name="r", offset=0, byte_size=4 * 3 * 4096 * 4096),
    )  # fmt: skip
    with pytest.raises(ContractRefused, match="at most 12288"):
        tensor_of_sent(sent, contract_at(rig.size), regions, "a")


def test_tritonclients_timeout_bounds_the_request(rig: Rig, v2: Any) -> None:
    tensor = tensor_of(rig)
    sent = [triton.InferInput("image", list(tensor.shape), "FP32").set_data_from_numpy(tensor)]
    rig.gateway._timeout_s = 25.0
    v2.infer("bokeh", sent, headers=declared(rig), timeout=20_000_000)
    assert 0 < rig.engines.timeouts[-1] <= 20.0
    with pytest.raises(InferenceServerException) as late:
        v2.infer("bokeh", sent, headers=declared(rig), timeout=1)
    assert (late.value.status(), "DeadlineExceeded" in late.value.message()) == ("504", True)
    assert len(rig.engines.asked) == 1
    for none in (None, 0, 400_000_000):
        v2.infer("bokeh", sent, headers=declared(rig), timeout=none)
        assert rig.engines.timeouts[-1] == 25.0
