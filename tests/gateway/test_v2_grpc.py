"""KServe v2 over gRPC by tritonclient, as teams use it: one metadata key more, and nothing else."""

import contextlib
import hashlib
import json
import os
import queue
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.utils.shared_memory as memory
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from blurfleet.api.contract import contract_at
from blurfleet.contract import contract_hash
from blurfleet.pixels import to_tensor
from blurfleet_preprocess import grpc_door, neighbours, v2_grpc
from blurfleet_preprocess.access import Access, TokenFile
from blurfleet_preprocess.exchange import Exchange
from blurfleet_preprocess.grpc_door import GrpcDoor
from blurfleet_preprocess.grpc_places import OpenStreams
from blurfleet_preprocess.limits import Limits, LimitSpec
from blurfleet_preprocess.problems import Overloaded
from blurfleet_preprocess.readiness import Readiness
from blurfleet_preprocess.streams import Streams
from blurfleet_preprocess.work import Workers

Rig = Any  # the fixture's class lives in conftest.py
Serve = Callable[..., contextlib.AbstractContextManager[str]]


@pytest.fixture
def serve_grpc() -> Serve:
    """Serve a rig's gateway over gRPC; what is passed goes into its exchange."""

    @contextlib.contextmanager
    def over(rig: Rig, *, workers: int = 4, waiting: int = 16, **more: Any) -> Iterator[str]:
        http_workers = Workers(1, 1)
        exchange = Exchange(
            gateway=rig.gateway, streams=Streams("test.1"), metrics=rig.metrics, workers=http_workers,
            **{"max_body_bytes": 1 << 20} | more,
        )  # fmt: skip
        door = GrpcDoor(exchange, Readiness(rig.gateway, cache_s=60), workers=workers, waiting=waiting)
        try:
            yield f"127.0.0.1:{door.listen('127.0.0.1', 0)}"
        finally:
            door.stop(5)
            http_workers.close()

    return over


@pytest.fixture
def v2(rig: Rig, serve_grpc: Serve) -> Iterator[Any]:
    with serve_grpc(rig) as address, triton.InferenceServerClient(address) as made:
        yield made


def tensor_of(rig: Rig, seed: int = 7) -> np.ndarray:
    rgb = np.random.default_rng(seed).integers(0, 256, (rig.size, rig.size, 3), dtype=np.uint8)
    return to_tensor(rgb, contract_at(rig.size))


def sent(tensor: np.ndarray) -> list[Any]:
    return [triton.InferInput("image", list(tensor.shape), "FP32").set_data_from_numpy(tensor)]


def declared(rig: Rig) -> dict[str, str]:
    return {"x-blurfleet-contract": contract_hash(contract_at(rig.size))}


def test_a_tensor_is_answered_by_the_served_engine(rig: Rig, v2: Any) -> None:
    tensor = tensor_of(rig)
    answer = v2.infer("bokeh", sent(tensor), headers=declared(rig), request_id="mine")
    np.testing.assert_array_equal(answer.as_numpy("matte"), rig.matte("subject")[None, None])
    np.testing.assert_array_equal(rig.engines.tensors[0], tensor)
    said = answer.get_response()
    assert (said.model_name, said.model_version, said.id) == ("bokeh", "7", "mine")
    assert said.parameters["x-blurfleet-engine"].string_param == rig.primary.engine
    assert said.parameters["x-blurfleet-frame"].string_param == "test.1/1#1"
    assert rig.engines.asked == [rig.primary.engine]


@pytest.mark.parametrize(
    ("words", "allowed"),
    [([], True), (["yes"], True), (["off"], False), (["no", "yes"], False), (["yes", "no"], False)],
    ids=str,
)
def test_a_refusal_of_evidence_holds_among_several_words(
    rig: Rig, serve_grpc: Serve, words: list[str], allowed: bool
) -> None:
    metadata = [*declared(rig).items(), *(("x-blurfleet-evidence", word) for word in words)]
    with serve_grpc(rig) as address, grpc.insecure_channel(address) as channel:
        message = service_pb2.ModelInferRequest.FromString(valid_message(rig))
        service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(message, metadata=metadata)
    assert [sample.evidence_allowed for sample in rig.told.samples] == [allowed]


def test_a_collapsed_matte_that_nobody_could_check_says_so(rig: Rig, v2: Any) -> None:
    rig.engines_behave("all zero", "late")
    answer = v2.infer("bokeh", sent(tensor_of(rig)), headers=declared(rig))
    assert answer.get_response().parameters["x-blurfleet-unchecked"].string_param == "CollapsedOutput"


def test_a_withheld_matte_is_replaced_by_the_fallbacks(rig: Rig, v2: Any) -> None:
    rig.engines_behave("with NaN")
    answer = v2.infer("bokeh", sent(tensor_of(rig)), headers=declared(rig))
    np.testing.assert_array_equal(answer.as_numpy("matte"), rig.matte("shifted")[None, None])
    parameters = answer.get_response().parameters
    assert parameters["x-blurfleet-withheld"].string_param == "NonFiniteOutput"
    assert parameters["x-blurfleet-engine"].string_param == rig.fallback.engine


@pytest.mark.parametrize(
    ("behaviours", "code"),
    [
        pytest.param(("with NaN", "too large"), "StatusCode.INTERNAL", id="two bad mattes"),
        pytest.param(("missing", "missing"), "StatusCode.UNAVAILABLE", id="no engine"),
        pytest.param(("late", "late"), "StatusCode.DEADLINE_EXCEEDED", id="a late engine"),
    ],
)
def test_engines_that_fail_are_told_apart(rig: Rig, v2: Any, behaviours: tuple[str, str], code: str) -> None:
    rig.engines_behave(*behaviours)
    with pytest.raises(InferenceServerException) as refused:
        v2.infer("bokeh", sent(tensor_of(rig)), headers=declared(rig))
    assert refused.value.status() == code


def test_memory_is_shared_with_the_user_whose_it_is(rig: Rig, v2: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tensor, name = tensor_of(rig), f"test_v2_grpc_{os.getpid()}"
    shared = memory.create_shared_memory_region(name, f"/{name}", tensor.nbytes)
    try:
        memory.set_shared_memory_region(shared, [tensor])
        v2.register_system_shared_memory("r", f"/{name}", tensor.nbytes)
        shared_input = triton.InferInput("image", list(tensor.shape), "FP32")
        shared_input.set_shared_memory("r", tensor.nbytes)
        v2.infer("bokeh", [shared_input], headers=declared(rig))
        np.testing.assert_array_equal(rig.engines.tensors[0], tensor)
        monkeypatch.setattr(neighbours, "user_of", lambda *_: os.geteuid() + 1)
        with pytest.raises(InferenceServerException, match="no region 'r' is registered"):
            v2.infer("bokeh", [shared_input], headers=declared(rig))
        with pytest.raises(InferenceServerException, match="belongs to another user"):
            v2.register_system_shared_memory("r", f"/{name}", tensor.nbytes)
    finally:
        memory.destroy_shared_memory_region(shared)


def test_tritonclients_timeout_bounds_the_request(rig: Rig, v2: Any) -> None:
    rig.gateway._timeout_s = 25.0
    v2.infer("bokeh", sent(tensor_of(rig)), headers=declared(rig), timeout=20_000_000)
    assert 0 < rig.engines.timeouts[-1] <= 20.0
    with pytest.raises(InferenceServerException) as late:
        v2.infer("bokeh", sent(tensor_of(rig)), headers=declared(rig), timeout=1)
    assert (late.value.status(), "DeadlineExceeded" in late.value.message()) == ("StatusCode.DEADLINE_EXCEEDED", True)
    assert len(rig.engines.asked) == 1
    v2.infer("bokeh", sent(tensor_of(rig)), headers=declared(rig))
    assert rig.engines.timeouts[-1] == 25.0


def test_another_contract_is_refused_with_both_hashes(rig: Rig, serve_grpc: Serve) -> None:
    with serve_grpc(rig) as address, grpc.insecure_channel(address) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        request = service_pb2.ModelInferRequest(model_name="bokeh")
        request.inputs.add(name="image", datatype="FP32", shape=[1])
        request.raw_input_contents.append(b"1234")
        for headers, said in (((), "is missing"), ((("x-blurfleet-contract", "sha256:1"),), "sha256:1")):
            with pytest.raises(grpc.RpcError) as refused:
                stub.ModelInfer(request, metadata=headers)
            assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
            assert said in refused.value.details()
            trailing = dict(refused.value.trailing_metadata())
            assert trailing["x-blurfleet-reason"] == "ContractMismatch"
            assert trailing["x-blurfleet-expected"] == declared(rig)["x-blurfleet-contract"]
    assert rig.engines.asked == []


def test_a_well_known_variation_of_the_contract_is_named_field_by_field(rig: Rig, serve_grpc: Serve) -> None:
    declared_hash = contract_hash(contract_at(rig.size).model_copy(update={"color_order": "BGR"}))
    with serve_grpc(rig) as address, grpc.insecure_channel(address) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        request = service_pb2.ModelInferRequest(model_name="bokeh")
        request.inputs.add(name="image", datatype="FP32", shape=[1])
        request.raw_input_contents.append(b"1234")
        with pytest.raises(grpc.RpcError) as refused:
            stub.ModelInfer(request, metadata=(("x-blurfleet-contract", declared_hash),))
    trailing = dict(refused.value.trailing_metadata())
    (found,) = json.loads(trailing["x-blurfleet-differences"])
    assert found == {"field": "colorOrder", "served": "RGB", "declared": "BGR"}


def test_a_streams_frames_come_back_in_order_and_a_bad_one_does_not_end_it(rig: Rig, v2: Any) -> None:
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    v2.start_stream(lambda result, error: answers.put((result, error)), headers=declared(rig))
    for number in range(6):
        tensor = np.full((1, 3, 4, 4), np.nan, np.float32) if number == 3 else tensor_of(rig, number)
        v2.async_stream_infer("bokeh", sent(tensor), request_id=str(number))
    got = [answers.get(timeout=60) for _ in range(6)]
    v2.stop_stream()
    assert [error is None for _, error in got] == [True, True, True, False, True, True]
    assert "WrongShape" in got[3][1].message()
    responses = [result.get_response() for result, error in got if error is None]
    assert [r.id for r in responses] == ["0", "1", "2", "4", "5"]
    frames = [r.parameters["x-blurfleet-frame"].string_param for r in responses]
    assert frames == [f"test.1/1#{n}" for n in (1, 2, 3, 5, 6)]
    np.testing.assert_array_equal(rig.engines.tensors[4], tensor_of(rig, 5))


def test_two_streams_are_two_streams(rig: Rig, serve_grpc: Serve) -> None:
    named = []
    with serve_grpc(rig) as address:
        for _ in range(2):
            with triton.InferenceServerClient(address) as client:
                answers: queue.Queue[Any] = queue.Queue()
                client.start_stream(lambda result, error, to=answers: to.put(error or result), headers=declared(rig))
                client.async_stream_infer("bokeh", sent(tensor_of(rig)))
                said = answers.get(timeout=60).get_response()
                named.append(said.parameters["x-blurfleet-frame"].string_param)
                client.stop_stream()
    assert named == ["test.1/1#1", "test.1/2#1"]


def test_the_alias_is_described_and_ready(rig: Rig, v2: Any) -> None:
    assert v2.is_server_live()
    assert v2.is_server_ready()
    assert v2.is_model_ready("bokeh")
    assert "binary_tensor_data" in v2.get_server_metadata().extensions
    said = v2.get_model_metadata("bokeh")
    assert (said.name, list(said.versions)) == ("bokeh", ["7"])
    assert [(i.name, i.datatype, list(i.shape)) for i in said.inputs] == [("image", "FP32", [1, 3, 32, 32])]
    assert [(o.name, o.datatype, list(o.shape)) for o in said.outputs] == [("matte", "FP32", [1, 1, 32, 32])]
    config = v2.get_model_config("bokeh").config
    assert (config.max_batch_size, list(config.input[0].dims)) == (0, [1, 3, 32, 32])
    assert config.parameters["x-blurfleet-contract"].string_value == declared(rig)["x-blurfleet-contract"]


def test_without_an_engine_nothing_is_ready_but_alive(rig: Rig, v2: Any) -> None:
    rig.engines.behaviours.clear()
    assert v2.is_server_live()
    assert not v2.is_server_ready()
    assert not v2.is_model_ready("bokeh")


@pytest.mark.parametrize(
    ("ask", "code", "reason"),
    [
        pytest.param(lambda c: c.get_model_metadata("bokeh__aaaaaaaaaaaa"), "NOT_FOUND", "NotFound", id="engine"),
        pytest.param(lambda c: c.get_model_metadata("bokeh", "6"), "NOT_FOUND", "NotFound", id="older version"),
        pytest.param(lambda c: c.get_model_repository_index(), "PERMISSION_DENIED", "Forbidden", id="repository"),
        pytest.param(lambda c: c.load_model("bokeh"), "PERMISSION_DENIED", "Forbidden", id="load"),
        pytest.param(lambda c: c.unload_model("bokeh"), "PERMISSION_DENIED", "Forbidden", id="unload"),
        pytest.param(lambda c: c.get_trace_settings(), "PERMISSION_DENIED", "Forbidden", id="trace"),
    ],
)
def test_only_the_alias_is_reachable(rig: Rig, v2: Any, ask: Callable[[Any], Any], code: str, reason: str) -> None:
    with pytest.raises(InferenceServerException) as refused:
        ask(v2)
    assert refused.value.status() == f"StatusCode.{code}"
    assert f"[{reason}]" in refused.value.message()
    assert rig.engines.asked == []


def test_a_message_beyond_the_limit_is_refused(rig: Rig, serve_grpc: Serve) -> None:
    with serve_grpc(rig, max_body_bytes=4096) as address, triton.InferenceServerClient(address) as client:
        with pytest.raises(InferenceServerException) as refused:
            client.infer("bokeh", sent(tensor_of(rig)), headers=declared(rig))
        assert refused.value.status() == "StatusCode.RESOURCE_EXHAUSTED"


@pytest.mark.parametrize("stranger", ["no token", "no hash"])
def test_who_may_not_ask_is_refused_before_the_message_is_read(
    rig: Rig, serve_grpc: Serve, tmp_path: Path, stranger: str
) -> None:
    secret = "s" * 43
    (tmp_path / "tokens").write_text(f"video: sha256:{hashlib.sha256(secret.encode()).hexdigest()}\n")
    metadata = [("authorization", f"Bearer {secret}")] if stranger == "no hash" else list(declared(rig).items())
    sent_one = threading.Event()

    def never_sent() -> Iterator[bytes]:
        sent_one.wait(60)
        yield valid_message(rig)

    with serve_grpc(rig, access=Access(TokenFile(tmp_path / "tokens"))) as address, grpc.insecure_channel(address) as c:
        call = c.stream_unary("/inference.GRPCInferenceService/ModelInfer")
        try:
            with pytest.raises(grpc.RpcError) as refused:
                call(never_sent(), metadata=metadata, timeout=60)
        finally:
            sent_one.set()
    assert refused.value.code().name == {"no token": "UNAUTHENTICATED", "no hash": "FAILED_PRECONDITION"}[stranger]


def test_bytes_that_are_no_message_are_the_clients_fault(rig: Rig, serve_grpc: Serve) -> None:
    with serve_grpc(rig) as address, grpc.insecure_channel(address) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        with pytest.raises(grpc.RpcError) as refused:
            call(b"\xff\xff\xff", metadata=tuple(declared(rig).items()))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_a_fault_of_the_gateway_shows_no_traceback(rig: Rig, v2: Any) -> None:
    rig.engines.behaviours[rig.primary.engine] = lambda _: 1 / 0
    with pytest.raises(InferenceServerException) as refused:
        v2.infer("bokeh", sent(tensor_of(rig)), headers=declared(rig))
    assert refused.value.status() == "StatusCode.INTERNAL"
    assert "ZeroDivision" not in refused.value.message()


def test_a_client_without_a_token_is_refused_and_one_with_it_has_its_share(
    rig: Rig, serve_grpc: Serve, tmp_path: Path
) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"video: {hashlib.sha256(b'one').hexdigest()}\n")
    limits = Limits(LimitSpec(rate_hz=0.01, burst=2), clock=lambda: 0.0)
    with (
        serve_grpc(rig, access=Access(TokenFile(tokens)), limits=limits) as address,
        triton.InferenceServerClient(address) as client,
    ):
        assert client.is_server_ready()
        statuses = []
        for token in ("", "two", "one", "one", "one"):
            try:
                client.infer(
                    "bokeh", sent(tensor_of(rig)), headers=declared(rig) | {"authorization": f"Bearer {token}"}
                )
                statuses.append("OK")
            except InferenceServerException as refused:
                statuses.append(refused.status().removeprefix("StatusCode."))
    assert statuses == ["UNAUTHENTICATED", "UNAUTHENTICATED", "OK", "OK", "RESOURCE_EXHAUSTED"]
    assert len(rig.engines.asked) == 3  # one of them is the readiness probe's


def test_a_streams_frames_count_as_requests(rig: Rig, serve_grpc: Serve) -> None:
    limits = Limits(LimitSpec(rate_hz=0.01, burst=3), clock=lambda: 0.0)
    with serve_grpc(rig, limits=limits) as address, triton.InferenceServerClient(address) as client:
        answers: queue.Queue[Any] = queue.Queue()
        client.start_stream(lambda result, error: answers.put(error or result), headers=declared(rig))
        for _ in range(4):
            client.async_stream_infer("bokeh", sent(tensor_of(rig)))
        got = [answers.get(timeout=60) for _ in range(4)]
        client.stop_stream()
    assert [isinstance(g, InferenceServerException) for g in got] == [False, False, False, True]
    assert "RateLimited" in got[3].message()


def test_a_stream_needs_a_token_to_be_opened(rig: Rig, serve_grpc: Serve, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"video: {hashlib.sha256(b'one').hexdigest()}\n")
    with serve_grpc(rig, access=Access(TokenFile(tokens))) as address, grpc.insecure_channel(address) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        with pytest.raises(grpc.RpcError) as refused:
            next(stub.ModelStreamInfer(iter(())))
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_one_client_cannot_hold_every_stream() -> None:
    streams = OpenStreams(all_=5, of_one=3)
    said = [outcome(partial(streams.open, who)) for who in "aaaabbb"]
    assert said == ["a", "a", "a", "3 streams of this client are open", "b", "b", "5 streams are open"]
    streams.close("a")
    assert [outcome(lambda: streams.open("b")), outcome(lambda: streams.open("a"))] == ["b", "5 streams are open"]


def outcome(work: Callable[[], str]) -> str:
    try:
        return work()
    except Overloaded as refused:
        return refused.message


def test_a_closed_streams_place_is_free_again(rig: Rig, serve_grpc: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_door, "OpenStreams", partial(OpenStreams, of_one=1))
    with serve_grpc(rig) as address, triton.InferenceServerClient(address) as client:
        for _ in range(4):
            answers: queue.Queue[Any] = queue.Queue()
            client.start_stream(lambda result, error, to=answers: to.put(error or result), headers=declared(rig))
            client.async_stream_infer("bokeh", sent(tensor_of(rig)))
            assert not isinstance(answers.get(timeout=60), InferenceServerException)
            client.stop_stream()


def test_values_may_come_typed_and_not_without_end(
    rig: Rig, serve_grpc: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensor = tensor_of(rig)
    request = service_pb2.ModelInferRequest(model_name="bokeh")
    image = request.inputs.add(name="image", datatype="FP32", shape=tensor.shape)
    image.contents.fp32_contents.extend(tensor.ravel().tolist())
    with serve_grpc(rig) as address, grpc.insecure_channel(address) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        metadata = tuple(declared(rig).items())
        stub.ModelInfer(request, metadata=metadata)
        np.testing.assert_array_equal(rig.engines.tensors[0], tensor)
        monkeypatch.setattr(v2_grpc, "MAX_TYPED", tensor.size - 1)
        with pytest.raises(grpc.RpcError) as refused:
            stub.ModelInfer(request, metadata=metadata)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_a_compressed_message_is_bounded_once_inflated(rig: Rig, serve_grpc: Serve) -> None:
    with serve_grpc(rig, max_body_bytes=1 << 20) as address, triton.InferenceServerClient(address) as client:
        answer = client.infer("bokeh", sent(tensor_of(rig)), headers=declared(rig), compression_algorithm="gzip")
        np.testing.assert_array_equal(answer.as_numpy("matte"), rig.matte("subject")[None, None])
        bomb = np.zeros((1, 3, 2048, 2048), np.float32)  # 50 MB in 50 kB
        with pytest.raises(InferenceServerException) as refused:
            client.infer("bokeh", sent(bomb), headers=declared(rig), compression_algorithm="gzip")
        assert refused.value.status() == "StatusCode.RESOURCE_EXHAUSTED"
    assert len(rig.engines.asked) == 1


def valid_message(rig: Rig) -> bytes:
    request = service_pb2.ModelInferRequest(model_name="bokeh", id="1")
    request.inputs.add(name="image", datatype="FP32", shape=(1, 3, rig.size, rig.size))
    request.outputs.add(name="matte")
    request.raw_input_contents.append(tensor_of(rig).tobytes())
    return bytes(request.SerializeToString())


def test_no_bytes_are_the_gateways_fault(rig: Rig, serve_grpc: Serve) -> None:
    allowed = {"INVALID_ARGUMENT", "NOT_FOUND", "PERMISSION_DENIED", "OK"}
    metadata = tuple(declared(rig).items())
    with serve_grpc(rig) as address, grpc.insecure_channel(address) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        whole = valid_message(rig)

        @settings(max_examples=150, deadline=None)
        @given(cut=st.integers(0, 120), at=st.integers(0, 90), put=st.binary(max_size=12), alone=st.binary(max_size=60))
        def each(cut: int, at: int, put: bytes, alone: bytes) -> None:
            for body in (whole[:at] + put + whole[at + cut :], alone):
                try:
                    call(body, metadata=metadata)
                    code = "OK"
                except grpc.RpcError as error:
                    code = error.code().name
                assert code in allowed, body

        each()


def test_a_streams_own_numbers_are_no_name_that_another_could_take(rig: Rig, serve_grpc: Serve) -> None:
    with serve_grpc(rig) as address, triton.InferenceServerClient(address) as client:
        answers: queue.Queue[Any] = queue.Queue()
        client.start_stream(lambda result, error: answers.put(error or result), headers=declared(rig))
        client.async_stream_infer("bokeh", sent(tensor_of(rig)))
        first = answers.get(timeout=60).get_response().parameters["x-blurfleet-frame"].string_param
        named = declared(rig) | {"x-blurfleet-stream": "grpc.1"}
        other = client.infer("bokeh", sent(tensor_of(rig)), headers=named)
        second = other.get_response().parameters["x-blurfleet-frame"].string_param
        client.stop_stream()
    assert (first, second) == ("test.1/1#1", "test.1/2#1")
