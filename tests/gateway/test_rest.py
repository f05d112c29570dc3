"""The gateway over real HTTP: answers, headers, and every error a problem document with a stable reason."""

import contextlib
import io
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cv2
import httpx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from blurfleet.api.contract import ContractSpec, contract_at
from blurfleet.client import Client, FrameResult
from blurfleet.client.answers import MadeBy, made_by
from blurfleet.contract import contract_hash
from blurfleet.pixels import to_tensor

Rig = Any  # the fixture's class lives in conftest.py
Serve = Callable[..., contextlib.AbstractContextManager[httpx.Client]]
CASES = Path(__file__).parents[1] / "cases" / "img"


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def matte_of(response: httpx.Response) -> np.ndarray:
    return np.load(io.BytesIO(response.content), allow_pickle=False)


def problem(response: httpx.Response, status: int, reason: str) -> dict[str, Any]:
    body: dict[str, Any] = response.json()
    assert (response.status_code, body["status"], body["reason"]) == (status, status, reason)
    assert response.headers["content-type"] == "application/problem+json"
    assert body["type"] == f"urn:blurfleet:problem:{reason}"
    return body


def test_a_matte_as_npy_is_the_engines_own_with_the_headers_of_one_snapshot(
    rig: Rig, client: httpx.Client, photo: bytes
) -> None:
    headers = {"accept": "application/x-npy", "x-blurfleet-stream": "camera"}
    response = client.post("/v1/matte", content=photo, headers=headers)
    assert response.status_code == 200
    np.testing.assert_array_equal(matte_of(response), rig.matte("subject"))
    wanted = {
        "engine": rig.primary.engine,
        "digest": rig.primary.digest,
        "precision": "Mixed",
        "role": "Primary",
        "epoch": "7",
        "contract": contract_hash(contract_at(rig.size)),
        "simulated": "true",
        "frame": "test.1/1#1",
    }
    assert {name: response.headers[f"x-blurfleet-{name}"] for name in wanted} == wanted
    assert "x-blurfleet-withheld" not in response.headers
    stages = [part.split(";")[0] for part in response.headers["server-timing"].split(", ")]
    assert stages == ["queue", "decode", "contract", "infer", "check", "encode", "total"]


def test_a_withheld_matte_is_named_in_the_answer(rig: Rig, client: httpx.Client, photo: bytes) -> None:
    rig.engines_behave("with NaN")
    response = client.post("/v1/matte?format=npy", content=photo)
    assert response.headers["x-blurfleet-withheld"] == "NonFiniteOutput"
    assert response.headers["x-blurfleet-engine"] == rig.fallback.engine
    assert response.headers["x-blurfleet-role"] == "Fallback"
    np.testing.assert_array_equal(matte_of(response), rig.matte("shifted"))


@pytest.mark.parametrize(
    ("transport", "fallback"),
    [("/v1/matte", bad) for bad in ("with NaN", "too large", "missing", "late", "wrong shape")]
    + [("/v1/blur", "with NaN"), ("/v2", "with NaN"), ("stream", "with NaN")],
)
def test_a_collapsed_matte_that_the_fallback_cannot_check_is_served_and_says_so(
    rig: Rig, client: httpx.Client, photo: bytes, transport: str, fallback: str
) -> None:
    rig.engines_behave("all zero", fallback)
    by = asked_over(rig, client, photo, transport)
    assert (by.unchecked, by.withheld, by.engine) == ("CollapsedOutput", "", rig.primary.engine)


@pytest.mark.parametrize(
    "engines", [("subject", "with NaN"), ("all zero", "all zero"), ("all zero", "subject")], ids=str
)
def test_a_sound_or_checked_matte_is_not_called_unchecked(
    rig: Rig, client: httpx.Client, photo: bytes, engines: tuple[str, str]
) -> None:
    rig.engines_behave(*engines)
    assert asked_over(rig, client, photo, "/v1/matte").unchecked == ""
    assert asked_over(rig, client, photo, "stream").unchecked == ""


def asked_over(rig: Rig, client: httpx.Client, photo: bytes, transport: str) -> MadeBy:
    """Who answered, as the client library reads it."""
    if transport == "stream":
        with Client(str(client.base_url)) as gateway, gateway.stream() as video:
            video.send(photo)
            result = video.receive()
            assert isinstance(result, FrameResult), result
            return result.by
    if transport == "/v2":
        spec = contract_at(rig.size)
        black = to_tensor(np.zeros((8, 8, 3), np.uint8), contract_at(rig.size)).ravel().tolist()
        sent = {"name": "image", "datatype": "FP32", "shape": [1, 3, rig.size, rig.size], "data": black}
        headers = {"x-blurfleet-contract": contract_hash(spec)}
        response = client.post("/v2/models/bokeh/infer", json={"inputs": [sent]}, headers=headers)
        assert response.json()["parameters"].get("x-blurfleet-unchecked") == response.headers["x-blurfleet-unchecked"]
    else:
        response = client.post(transport, content=photo)
    assert response.status_code == 200, response.text
    return made_by(response.headers)


@pytest.mark.parametrize(
    ("said", "allowed"),
    [([], True), (["yes"], True), (["YES", "yes"], True)]
    + [([word], False) for word in ("no", "No", "false", "0", "off", "none", "", "no, no", "yes, no", "yes,")]
    + [(["yes", "no"], False), (["no", "yes"], False)],
    ids=str,
)
def test_a_client_may_refuse_to_have_its_picture_kept(
    rig: Rig, client: httpx.Client, photo: bytes, said: list[str], allowed: bool
) -> None:
    client.post("/v1/matte", content=photo, headers=[("x-blurfleet-evidence", word) for word in said])
    assert [sample.evidence_allowed for sample in rig.told.samples] == [allowed]


def test_a_matte_as_png_has_the_pictures_upright_size(client: httpx.Client) -> None:
    response = client.post("/v1/matte", content=(CASES / "exif_o6.jpg").read_bytes())
    grey = cv2.imdecode(np.frombuffer(response.content, np.uint8), cv2.IMREAD_UNCHANGED)
    assert response.headers["content-type"] == "image/png"
    assert grey.shape == (80, 48)
    assert (grey[40, 24], grey[2, 2]) == (255, 0)


@pytest.mark.parametrize(("form", "media"), [("jpeg", "image/jpeg"), ("png", "image/png"), ("webp", "image/webp")])
def test_blur_keeps_the_subject_and_smooths_the_background(client: httpx.Client, form: str, media: str) -> None:
    noise = np.random.default_rng(4).integers(0, 256, (96, 96, 3), dtype=np.uint8)
    data = bytes(cv2.imencode(".png", noise)[1])
    response = client.post(f"/v1/blur?format={form}&radius=12", content=data)
    assert response.headers["content-type"] == media
    picture = cv2.imdecode(np.frombuffer(response.content, np.uint8), cv2.IMREAD_COLOR)
    assert picture.shape == (96, 96, 3)
    assert picture[:16, :16].std() < noise[:16, :16].std() / 4
    if form == "png":
        np.testing.assert_array_equal(picture[44:52, 44:52], noise[44:52, 44:52])


def test_a_tensor_made_by_the_contract_is_answered(rig: Rig, client: httpx.Client) -> None:
    rgb = np.random.default_rng(6).integers(0, 256, (24, 40, 3), dtype=np.uint8)
    tensor = to_tensor(rgb, contract_at(rig.size))
    headers = {"x-blurfleet-contract": contract_hash(contract_at(rig.size))}
    response = client.post("/v1/tensor", content=npy(tensor), headers=headers)
    assert response.status_code == 200
    np.testing.assert_array_equal(matte_of(response), rig.matte("subject")[None, None])
    np.testing.assert_array_equal(rig.engines.tensors[0], tensor)


def test_a_tensor_by_another_contract_is_refused_with_both_hashes(rig: Rig, client: httpx.Client) -> None:
    other = contract_hash(ContractSpec(color_order="BGR"))
    response = client.post("/v1/tensor", content=b"", headers={"x-blurfleet-contract": other})
    body = problem(response, 412, "ContractMismatch")
    assert body["expected"] == contract_hash(contract_at(rig.size))
    assert body["received"] == other
    problem(client.post("/v1/tensor", content=b""), 412, "ContractMismatch")
    for path in ("/v1/tensor", "/v2/models/bokeh/infer"):
        for body in (b"no tensor", bytes(2 << 20)):
            problem(client.post(path, content=body), 412, "ContractMismatch")
    assert rig.engines.asked == []


def _bad_tensors() -> list[Any]:
    good = np.zeros((1, 3, 32, 32), np.float32)
    nan = good.copy()
    nan[0, 0, 0, 0] = np.nan
    claims_huge = npy(good).replace(b"(1, 3, 32, 32)", b"(9999999, 999)")
    return [
        pytest.param(npy(nan), 422, "NonFiniteInput", id="NaN"),
        pytest.param(npy(good.astype(np.float64)), 422, "WrongDtype", id="float64"),
        pytest.param(npy(good.astype(">f4")), 422, "WrongDtype", id="big-endian"),
        pytest.param(npy(np.asfortranarray(good)), 422, "WrongDtype", id="Fortran order"),
        pytest.param(npy(good[:, :, :16]), 422, "WrongShape", id="half the height"),
        pytest.param(npy(good.transpose(0, 2, 3, 1).copy()), 422, "WrongShape", id="channels last"),
        pytest.param(npy(good)[:-4], 422, "WrongShape", id="one value short"),
        pytest.param(claims_huge, 422, "WrongShape", id="a header that claims 40 GB"),
        pytest.param(b"", 400, "Unparseable", id="no bytes"),
        pytest.param(b"\x93NUMPY\x01\x00\xff\xffjunk", 400, "Unparseable", id="a broken header"),
        pytest.param(npy(np.array([{}], dtype=object)), 422, "WrongDtype", id="a pickle"),
    ]


@pytest.mark.parametrize(("body", "status", "reason"), _bad_tensors())
def test_a_tensor_that_cannot_be_the_contracts_is_refused(
    rig: Rig, client: httpx.Client, body: bytes, status: int, reason: str
) -> None:
    headers = {"x-blurfleet-contract": contract_hash(contract_at(rig.size))}
    problem(client.post("/v1/tensor", content=body, headers=headers), status, reason)
    assert rig.engines.asked == []


@pytest.mark.parametrize(
    ("name", "status", "reason"),
    [
        ("empty.jpg", 400, "EmptyImage"),
        ("trunc_base.jpg", 400, "TruncatedImage"),
        ("trunc_prog.jpg", 400, "TruncatedImage"),
        ("want.json", 415, "UnsupportedImage"),
    ],
)
def test_a_bad_picture_is_the_senders_problem(client: httpx.Client, name: str, status: int, reason: str) -> None:
    for path in ("/v1/matte", "/v1/blur"):
        problem(client.post(path, content=(CASES / name).read_bytes()), status, reason)


@pytest.mark.parametrize("query", ["format=gif", "radius=0", "radius=1e3", "radius=nan", "radius=-4", "radius=x"])
def test_a_wrong_parameter_is_the_senders_problem(client: httpx.Client, photo: bytes, query: str) -> None:
    problem(client.post(f"/v1/blur?{query}", content=photo), 400, "InvalidRequest")


def test_unknown_paths_and_methods_are_problems_too(client: httpx.Client) -> None:
    assert "/v1/blur" in problem(client.get("/nowhere"), 404, "NotFound")["fix"]
    slashed = client.post("/v1/blur/", headers={"host": "localhost:1"})
    problem(slashed, 404, "NotFound")
    assert "location" not in slashed.headers
    posted_only = client.get("/v1/matte")
    assert "Allow" in problem(posted_only, 405, "InvalidRequest")["fix"]
    assert posted_only.headers["allow"] == "POST"


@pytest.mark.parametrize("chunked", [False, True], ids=["declared", "chunked"])
def test_a_body_beyond_the_limit_is_refused(rig: Rig, serve: Serve, chunked: bool) -> None:
    with serve(rig, max_body_bytes=1000) as client:
        body = bytes(4000)
        content = (body[n : n + 500] for n in range(0, 4000, 500)) if chunked else body
        problem(client.post("/v1/matte", content=content), 413, "RequestTooLarge")


def test_two_bad_mattes_are_502(rig: Rig, client: httpx.Client, photo: bytes) -> None:
    rig.engines_behave("with NaN", "too large")
    problem(client.post("/v1/matte", content=photo), 502, "NonFiniteOutput")


@pytest.mark.parametrize(("behaviour", "reason"), [("missing", "TritonUnreachable"), ("late", "InferTimeout")])
def test_no_engine_is_503_with_retry_after(
    rig: Rig, client: httpx.Client, photo: bytes, behaviour: str, reason: str
) -> None:
    rig.engines_behave(behaviour, behaviour)
    response = client.post("/v1/matte", content=photo)
    problem(response, 503, reason)
    assert response.headers["retry-after"] == "1"


def test_a_fault_of_the_gateway_is_a_problem_without_a_traceback(rig: Rig, client: httpx.Client, photo: bytes) -> None:
    rig.engines.behaviours[rig.primary.engine] = lambda _: 1 / 0
    response = client.post("/v1/matte", content=photo)
    problem(response, 500, "Unexpected")
    assert b"ZeroDivision" not in response.content


def test_a_request_beyond_the_workers_and_places_is_told_at_once(rig: Rig, serve: Serve, photo: bytes) -> None:
    entered, release = threading.Semaphore(0), threading.Event()

    def slow(_: object) -> object:
        entered.release()
        assert release.wait(20)
        return rig.matte("subject")[None, None]

    rig.engines.behaviours[rig.primary.engine] = slow
    with serve(rig, workers=1, waiting=0) as client, ThreadPoolExecutor(1) as pool:
        held = pool.submit(client.post, "/v1/matte", content=photo)
        assert entered.acquire(timeout=20)
        refused = client.post("/v1/matte", content=photo)
        problem(refused, 503, "Overloaded")
        assert refused.headers["retry-after"] == "1"
        release.set()
        assert held.result(20).status_code == 200
        assert client.post("/v1/matte", content=photo).status_code == 200


def test_the_contract_can_be_read(rig: Rig, client: httpx.Client) -> None:
    body = client.get("/v1/contract").json()
    assert ContractSpec.model_validate(body["contract"]) == contract_at(rig.size)
    assert body["contract_hash"] == contract_hash(contract_at(rig.size))


def test_ready_means_an_inference_through_the_alias_and_probes_share_it(rig: Rig, client: httpx.Client) -> None:
    first = client.get("/readyz")
    assert first.status_code == 200
    assert (first.json()["epoch"], first.json()["alias_epoch"]) == (7, 1)
    assert client.get("/readyz").status_code == 200
    assert rig.engines.asked == ["bokeh"]


def test_not_ready_without_an_alias_but_alive(rig: Rig, client: httpx.Client) -> None:
    rig.engines.behaviours.clear()
    problem(client.get("/readyz"), 503, "TritonUnreachable")
    assert client.get("/healthz").json() == {"ok": True}


def test_a_drained_node_is_not_ready_at_once_and_answers_what_still_comes(
    rig: Rig, client: httpx.Client, photo: bytes
) -> None:
    assert client.get("/readyz").status_code == 200  # remembered for a while, which must not hide the drain
    route = rig.table.models["bokeh"]
    rig.table = rig.table.with_route(route.model_copy(update={"drained": True}))
    body = problem(client.get("/readyz"), 503, "NodeSuspect")
    assert "other nodes of its class answer" in body["detail"]
    assert client.get("/healthz").status_code == 200
    assert client.post("/v1/matte", content=photo).headers["x-blurfleet-engine"] == rig.primary.engine
    rig.table = rig.table.with_route(route)
    assert client.get("/readyz").status_code == 200


def test_metrics_are_exposed_with_bounded_labels(rig: Rig, client: httpx.Client, photo: bytes) -> None:
    rig.engines_behave("with NaN")
    client.post("/v1/matte", content=photo)
    text = client.get("/metrics").text
    assert 'blurfleet_frames_withheld_total{reason="NonFiniteOutput"} 1.0' in text
    assert 'blurfleet_request_seconds_count{stage="infer"} 1.0' in text
    assert 'blurfleet_requests_total{status="200"}' in text


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    path=st.sampled_from(["/v1/matte", "/v1/blur", "/v1/tensor"]),
    body=st.one_of(st.binary(max_size=200), st.binary(max_size=80).map(lambda tail: b"\x93NUMPY\x01\x00v\x00" + tail)),
    declared=st.booleans(),
    stream=st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=200),
    trace=st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=70),
)
def test_no_bytes_and_headers_make_a_500(
    client: httpx.Client, rig: Rig, path: str, body: bytes, declared: bool, stream: str, trace: str
) -> None:
    headers = {"x-blurfleet-stream": stream, "traceparent": trace}
    if declared:
        headers["x-blurfleet-contract"] = contract_hash(contract_at(rig.size))
    response = client.post(path, content=body, headers=headers)
    assert 400 <= response.status_code < 500
    assert response.json()["reason"]
