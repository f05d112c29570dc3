"""`blurfleet.client` against a gateway over real HTTP and WebSocket: numpy in and out, answers and failures typed."""

import asyncio
import contextlib
import io
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import cv2
import httpx
import numpy as np
import pytest

from blurfleet.api.contract import contract_at
from blurfleet.client import (
    AsyncClient,
    Client,
    FrameFailure,
    FrameResult,
    GatewayFailure,
    GatewayUnavailable,
    MatteWithheld,
    RequestRefused,
    Terms,
    VideoOptions,
    calls,
)
from blurfleet.client.failures import failure_from, failure_of
from blurfleet.client.terms import pause_before_retry
from blurfleet.contract import contract_hash
from blurfleet.errors import InvalidInput
from blurfleet.reasons import Reason
from blurfleet_preprocess import problems

Rig = Any  # the fixture's class lives in conftest.py
Serve = Callable[..., contextlib.AbstractContextManager[httpx.Client]]
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
RGB = cv2.GaussianBlur(np.random.default_rng(8).integers(0, 256, (48, 64, 3), dtype=np.uint8), (0, 0), 3)
NOW = datetime(2026, 11, 30, 12, 0, 0, tzinfo=UTC)


@pytest.fixture
def gateway(client: httpx.Client) -> Iterator[Client]:
    with Client(str(client.base_url)) as made:
        yield made


def test_a_picture_comes_back_with_who_made_it(rig: Rig, client: httpx.Client, gateway: Client, photo: bytes) -> None:
    answer = gateway.blur(photo, format="png", radius=9)
    direct = client.post("/v1/blur?format=png&radius=9", content=photo)
    assert (answer.data, answer.media_type) == (direct.content, "image/png")
    assert answer.rgb.shape == (24, 40, 3)
    by = answer.by
    assert (by.engine, by.digest, by.precision) == (rig.primary.engine, rig.primary.digest, "Mixed")
    assert (by.role, by.epoch, by.simulated, by.withheld) == ("Primary", 7, True, "")
    assert by.contract == contract_hash(contract_at(rig.size))
    assert by.trace == rig.told.samples[0].trace_id
    assert {"decode", "infer", "encode"} <= set(by.stages)


def test_an_array_is_the_same_picture_as_its_lossless_file(gateway: Client) -> None:
    encoded = bytes(cv2.imencode(".png", cv2.cvtColor(RGB, cv2.COLOR_RGB2BGR))[1])
    from_array, from_file = gateway.blur(RGB, format="png"), gateway.blur(encoded, format="png")
    np.testing.assert_array_equal(from_array.rgb, from_file.rgb)
    np.testing.assert_array_equal(from_array.rgb[20:28, 28:36], RGB[20:28, 28:36])  # the subject, red still first


def test_the_matte_is_the_networks_own_or_a_fine_one_at_the_pictures_size(rig: Rig, gateway: Client) -> None:
    np.testing.assert_array_equal(gateway.matte(RGB).matte, rig.matte("subject"))
    fine = gateway.matte(RGB, fine=True).matte
    assert (fine.shape, fine.dtype) == ((48, 64), np.float32)
    assert (fine[24, 32], fine[2, 2]) == (1.0, 0.0)


def test_a_withheld_matte_is_told_with_the_answer_that_replaced_it(rig: Rig, gateway: Client) -> None:
    rig.engines_behave("with NaN")
    answer = gateway.matte(RGB)
    assert (answer.by.withheld, answer.by.role, answer.by.engine) == (
        "NonFiniteOutput",
        "Fallback",
        rig.fallback.engine,
    )
    np.testing.assert_array_equal(answer.matte, rig.matte("shifted"))


def test_a_prepared_tensor_is_the_gateways_own_to_the_byte(rig: Rig, gateway: Client) -> None:
    prepared = gateway.prepare(RGB)
    answer = gateway.tensor(prepared)
    gateway.matte(RGB)
    np.testing.assert_array_equal(rig.engines.tensors[0], prepared)
    np.testing.assert_array_equal(rig.engines.tensors[1], prepared)
    np.testing.assert_array_equal(answer.matte, rig.matte("subject")[None, None])


def test_a_tensor_made_with_another_contract_is_refused_before_it_is_sent(rig: Rig, gateway: Client) -> None:
    other = contract_at(rig.size).model_copy(update={"color_order": "BGR"})
    with pytest.raises(RequestRefused, match="make it with the contract") as refused:
        gateway.tensor(gateway.prepare(RGB), made_with=other)
    assert (refused.value.reason, refused.value.problem) == (Reason.CONTRACT_MISMATCH, None)
    assert rig.engines.asked == []


def test_a_contract_that_changed_is_learned_after_one_refusal(rig: Rig, gateway: Client) -> None:
    tensor = gateway.prepare(RGB)
    route = rig.table.models["bokeh"]
    changed = route.contract.model_copy(update={"resize": "area"})
    rig.table = rig.table.with_route(route.model_copy(update={"contract": changed}))
    with pytest.raises(RequestRefused) as refused:
        gateway.tensor(tensor)
    assert refused.value.problem is not None
    assert (refused.value.problem.status, refused.value.reason) == (412, Reason.CONTRACT_MISMATCH)
    assert refused.value.problem.model_extra is not None
    assert refused.value.problem.model_extra["expected"] == contract_hash(changed)
    assert gateway.contract().hash == contract_hash(changed)
    gateway.tensor(gateway.prepare(RGB))


def test_what_the_gateway_refuses_is_raised_with_its_reason_sentence_and_fix(gateway: Client, photo: bytes) -> None:
    with pytest.raises(RequestRefused) as refused:
        gateway.blur(photo[:50])
    assert (refused.value.reason, refused.value.where) == (Reason.TRUNCATED_IMAGE, "image")
    with pytest.raises(RequestRefused, match="frobnicate") as unknown:
        gateway.blur(photo, frobnicate=1)
    assert unknown.value.fix.startswith("use radius")
    unpictured: Any = RGB.astype(np.float32)
    with pytest.raises(InvalidInput, match="float32 is no picture"):
        gateway.blur(unpictured)


def test_two_bad_mattes_are_an_error_of_their_own(rig: Rig, gateway: Client, photo: bytes) -> None:
    rig.engines_behave("with NaN", "with NaN")
    with pytest.raises(MatteWithheld) as withheld:
        gateway.matte(photo)
    assert withheld.value.reason is Reason.NON_FINITE_OUTPUT


def test_a_503_is_asked_again_when_the_gateway_said(rig: Rig, client: httpx.Client, photo: bytes) -> None:
    rig.engines_behave("missing", "missing")
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            rig.engines_behave("subject")

    with Client(str(client.base_url), pause=pause) as gateway:
        assert gateway.blur(photo).by.engine == rig.primary.engine
    assert pauses == [1.0, 1.0]


def test_past_the_deadline_nothing_is_asked_again(
    rig: Rig, client: httpx.Client, photo: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(problems, "RETRY_AFTER_S", 30)
    rig.engines_behave("missing", "missing")
    pauses: list[float] = []
    hasty = Client(str(client.base_url), Terms(deadline_s=20.0), pause=pauses.append)
    with hasty, pytest.raises(GatewayUnavailable) as failed:
        hasty.blur(photo)
    assert pauses == []
    assert (failed.value.reason, failed.value.problem and failed.value.problem.status) == (
        Reason.TRITON_UNREACHABLE,
        503,
    )


def test_an_answer_that_takes_too_long_is_given_up_on_both_sides(rig: Rig, client: httpx.Client, photo: bytes) -> None:
    opened = threading.Event()

    def slow(tensor: np.ndarray) -> np.ndarray:
        assert opened.wait(20)
        return rig.matte("subject")[None, None]

    rig.engines.behaviours[rig.primary.engine] = slow
    try:
        hasty = Client(str(client.base_url), Terms(deadline_s=1.5))
        with hasty, pytest.raises(GatewayUnavailable) as late:
            hasty.blur(photo)
    finally:
        opened.set()
    assert late.value.reason is Reason.DEADLINE_EXCEEDED
    assert rig.engines.lives[0].left_s() is not None


def test_nobody_there_is_an_error_that_says_so() -> None:
    with Client("http://127.0.0.1:9") as gateway:
        with pytest.raises(GatewayUnavailable, match="is a gateway running there") as failed:
            gateway.blur(b"x")
        with pytest.raises(GatewayUnavailable) as unopened, gateway.stream():
            pass
    assert failed.value.reason is unopened.value.reason is Reason.GATEWAY_UNREACHABLE


def test_terms_are_told_with_every_request(rig: Rig, gateway: Client, photo: bytes) -> None:
    terms = {"evidence": False, "traceparent": f"00-{TRACE}-00f067aa0ba902b7-01", "stream": "lobby"}
    asked = gateway.asking(**terms)
    first, second = asked.matte(photo).by, asked.blur(photo).by
    plain = gateway.matte(photo).by
    assert first.trace == second.trace == TRACE != plain.trace
    assert [sample.evidence_allowed for sample in rig.told.samples] == [False, False, True]
    assert [first.frame[-2:], second.frame[-2:], plain.frame[-2:]] == ["#1", "#2", "#1"]
    assert first.frame.split("#")[0] == second.frame.split("#")[0] != plain.frame.split("#")[0]
    assert Terms(token="secret").headers(1)["authorization"] == "Bearer secret"
    assert Terms().headers(1.5) == {"x-blurfleet-deadline-ms": "1500"}


@pytest.mark.parametrize(
    ("status", "retry_after", "left_s", "wanted"),
    [
        (503, "2", 3.0, 2.0),
        (503, "0", 3.0, 0.0),
        (503, "2", 2.0, None),
        (503, "Mon, 30 Nov 2026 12:00:05 GMT", 9.0, 5.0),
        (503, "Mon, 30 Nov 2026 11:00:00 GMT", 9.0, 0.0),
        (503, "Mon, 30 Nov 2026 13:00:00 GMT", 9.0, None),
        (503, "", 9.0, None),
        (503, "soon", 9.0, None),
        (503, "-1", 9.0, None),
        (503, "²", 9.0, None),
        (429, "1", 9.0, None),
        (500, "1", 9.0, None),
        (200, "1", 9.0, None),
    ],
)
def test_only_a_503_that_says_when_is_asked_again(
    status: int, retry_after: str, left_s: float, wanted: float | None
) -> None:
    assert pause_before_retry(status, retry_after, left_s, NOW) == wanted


def test_a_reason_newer_than_this_client_is_kept_as_it_was_said() -> None:
    failure = failure_from({"status": 422, "reason": "TooSunny", "detail": "too much sun", "shade": 0})
    assert (type(failure), failure.reason, failure.message) == (RequestRefused, Reason.UNEXPECTED, "too much sun")
    assert failure.problem is not None
    assert (failure.problem.reason, failure.problem.model_extra) == ("TooSunny", {"shade": 0})


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, RequestRefused), (502, MatteWithheld), (503, GatewayUnavailable), (504, GatewayUnavailable), (500, None)],
)
def test_an_answer_that_is_no_problem_document_is_an_error_all_the_same(status: int, kind: type | None) -> None:
    for body in (b"", b"<html>", b"[]", b"{}", b'"x"', b"\xff"):
        failure = failure_of(status, body)
        assert type(failure) is (kind or GatewayFailure)
        assert str(status) in failure.message


def test_a_stream_is_answered_frame_by_frame(rig: Rig, gateway: Client) -> None:
    options = VideoOptions(output="both", format="png", smoothing=0.5, look={"radius": 9})
    with gateway.asking(evidence=False).stream(options) as video:
        assert video.send(RGB) == 1
        first = video.receive()
        assert video.send(b"no picture") == 2
        second = video.receive()
        video.send(RGB)
        third = video.receive()
    assert isinstance(first, FrameResult)
    assert isinstance(third, FrameResult)
    assert isinstance(second, FrameFailure)
    assert (first.id, first.by.engine, first.by.epoch, first.by.simulated) == (1, rig.primary.engine, 7, True)
    assert first.picture().shape == (48, 64, 3)
    assert (first.matte.shape, first.matte[24, 32]) == ((48, 64), 1.0)
    assert (second.id, type(second.error), second.error.reason) == (2, RequestRefused, Reason.UNSUPPORTED_IMAGE)
    assert (third.id, third.flicker) == (3, 0.0)
    assert video.summary is not None
    assert (video.summary.answered, video.summary.refused) == (2, 1)
    assert video.name == video.summary.stream == rig.told.samples[0].stream
    assert not rig.told.samples[0].evidence_allowed


def test_a_streams_matte_as_npy_is_the_engines_own(rig: Rig, gateway: Client) -> None:
    with gateway.stream(VideoOptions(output="matte", format="npy")) as video:
        video.send(RGB)
        heard = video.receive()
        assert isinstance(heard, FrameResult)
        np.testing.assert_array_equal(heard.matte, rig.matte("subject"))
        video.end()
        assert list(video) == []


def test_a_stream_that_is_refused_says_why(gateway: Client) -> None:
    with pytest.raises(RequestRefused) as refused, gateway.stream(VideoOptions(look={"radius": 0})):
        pass
    assert (refused.value.reason, refused.value.where) == (Reason.INVALID_REQUEST, "radius")


def test_an_error_of_the_callers_own_goes_through_a_stream_unchanged(gateway: Client) -> None:
    with pytest.raises(FileNotFoundError), gateway.stream():
        raise FileNotFoundError("holiday.mp4")


def test_the_same_things_can_be_awaited(rig: Rig, client: httpx.Client, photo: bytes) -> None:
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        rig.engines_behave("subject")

    async def ask() -> None:
        async with AsyncClient(str(client.base_url), pause=pause) as gateway:
            picture, matte = await asyncio.gather(gateway.blur(photo, format="png"), gateway.matte(photo))
            assert picture.data == client.post("/v1/blur?format=png", content=photo).content
            np.testing.assert_array_equal(matte.matte, rig.matte("subject"))
            tensor = await gateway.prepare(RGB)
            answer = await gateway.asking(traceparent=f"00-{TRACE}-00f067aa0ba902b7-01").tensor(tensor)
            assert (answer.by.trace, answer.matte.shape) == (TRACE, (1, 1, rig.size, rig.size))
            with pytest.raises(RequestRefused):
                await gateway.tensor(tensor, made_with="sha256:" + "0" * 64)
            async with gateway.stream(VideoOptions(output="matte", format="npy")) as video:
                await video.send(RGB)
                heard = await video.receive()
                assert isinstance(heard, FrameResult)
                np.testing.assert_array_equal(heard.matte, rig.matte("subject"))
            assert video.summary is not None
            assert video.summary.answered == 1
            with pytest.raises(RequestRefused):
                async with gateway.stream(VideoOptions(alias="portrait")):
                    pass
            rig.engines_behave("missing", "missing")
            await gateway.blur(photo)

    asyncio.run(ask())
    assert pauses == [1.0]


def test_npy_is_what_numpy_reads() -> None:
    buffer = io.BytesIO()
    np.save(buffer, np.zeros((2, 2), np.float64))
    with pytest.raises(GatewayFailure, match="float64, not float32") as failed:
        calls.matte(RGB, fine=False).answer({}, buffer.getvalue())
    assert failed.value.reason is Reason.UNPARSEABLE
