"""Composing is bounded: by the pixels, however they lie, and by who waits for the picture."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pytest
import simplejpeg

from blurfleet.api.contract import ContractSpec
from blurfleet.deadline import came_true
from blurfleet.errors import RequestEnded
from blurfleet.reasons import Reason
from blurfleet_preprocess import picture
from blurfleet_preprocess.compositing import backdrop
from blurfleet_preprocess.compositing.look import Look
from blurfleet_preprocess.compositing.scales import work_level

Rig = Any  # the fixture's class lives in conftest.py
Check = Any  # a request's life.check, bound to it
Serve = Callable[..., contextlib.AbstractContextManager[httpx.Client]]
DEADLINE_S = 20.0
RNG = np.random.default_rng(0)
# Nothing is settled in it, so that every pixel is work.
DOUBTFUL = RNG.random((320, 320), dtype=np.float32)


def noise(height: int, width: int) -> Any:
    return RNG.integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.mark.parametrize(
    ("height", "width", "look", "all_s", "gap_s"),
    [
        pytest.param(271, 32766, Look(), 12.0, 1.5, id="a strip of a third of a metre by forty"),
        pytest.param(32766, 271, Look(style="disc"), 12.0, 1.5, id="the strip upright"),
        pytest.param(2000, 3000, Look(mode="depth"), 20.0, 3.0, id="depth on six megapixels"),
        pytest.param(2000, 3000, Look(background="transparent"), 10.0, 1.5, id="a cut-out of six megapixels"),
    ],
)
def test_processor_time_is_bounded_and_so_is_the_time_until_somebody_asks_who_waits(
    height: int, width: int, look: Look, all_s: float, gap_s: float
) -> None:
    """Measured: 1.1, 1.2, 2.2 and 0.5 s, gaps of 0.1 to 0.6 s; the strip took 69 s when refined at full size."""
    asked = [time.thread_time()]
    shown = picture.composed(
        noise(height, width), DOUBTFUL, ContractSpec(), look, lambda: asked.append(time.thread_time())
    )
    asked.append(time.thread_time())
    assert shown.shape[:2] == (height, width)
    assert asked[-1] - asked[0] < all_s
    assert max(np.diff(asked)) < gap_s


@pytest.mark.parametrize(
    ("size", "wanted"),
    [((320, 320), 0), ((1080, 1920), 2), ((271, 32766), 2), ((32766, 271), 2), ((5773, 8660), 4)],
)
def test_a_matte_is_refined_on_a_million_pixels_at_the_most(size: tuple[int, int], wanted: int) -> None:
    assert work_level(size) == wanted
    assert size[0] * size[1] >> (2 * wanted) <= 1 << 20


@pytest.mark.parametrize("radius", [1.0, 9.0])
@pytest.mark.parametrize("style", ["gaussian", "disc"])
def test_strips_are_the_whole_picture_to_a_level(monkeypatch: pytest.MonkeyPatch, radius: float, style: Any) -> None:
    rgb, look = np.repeat(np.repeat(noise(251, 201), 4, 0), 4, 1)[:1001, :803], Look(radius=radius, style=style)
    made = []
    for pixels in (1 << 40, 1 << 17):
        monkeypatch.setattr(backdrop, "_STRIP_PIXELS", pixels)
        made.append(picture.composed(rgb, DOUBTFUL, ContractSpec(), look).astype(np.int16))
    difference = np.abs(made[0] - made[1])
    assert difference.max() <= 1
    assert (difference > 0).mean() < 1e-4


def ends_of(monkeypatch: pytest.MonkeyPatch, ask: str, before: Callable[[Check], object]) -> list[Reason]:
    """Call `before` with what asks who waits, as the composing for `ask` begins; return why composings end early."""
    ended, name = list[Reason](), "fine_matte" if ask == "/v1/matte" else "composed"
    work = getattr(picture, name)

    def watched(*given: Any) -> Any:
        before(given[-1])
        try:
            return work(*given)
        except RequestEnded as error:
            ended.append(error.reason)
            raise

    monkeypatch.setattr(picture, name, watched)
    return ended


@pytest.mark.parametrize("ask", ["/v1/blur?mode=depth", "/v1/blur?radius=40", "/v1/matte"])
def test_a_client_that_hangs_up_ends_the_composing(
    rig: Rig, serve: Serve, photo: bytes, monkeypatch: pytest.MonkeyPatch, ask: str
) -> None:
    entered = threading.Event()

    def hung_up(check: Check) -> None:
        entered.set()
        assert came_true(lambda: gone(check), DEADLINE_S)  # not before the hang-up is known

    ended = ends_of(monkeypatch, ask, hung_up)
    body = simplejpeg.encode_jpeg(noise(1200, 1600), 50)
    head = f"POST {ask} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    with serve(rig, workers=1, waiting=0, max_body_bytes=1 << 22) as client:
        with socket.create_connection((client.base_url.host, client.base_url.port or 0), timeout=DEADLINE_S) as made:
            made.sendall(head + body)
            assert entered.wait(DEADLINE_S)
        assert came_true(lambda: ended == [Reason.CLIENT_GONE], DEADLINE_S)
        monkeypatch.undo()
        assert came_true(lambda: client.post("/v1/matte", content=photo).status_code == 200, DEADLINE_S)


@pytest.mark.parametrize("ask", ["/v1/blur?mode=depth", "/v1/blur?radius=40", "/v1/matte"])
def test_a_deadline_that_passes_while_it_is_composed_ends_the_composing_and_says_so(
    rig: Rig, serve: Serve, photo: bytes, monkeypatch: pytest.MonkeyPatch, ask: str
) -> None:
    # Its time is up in this moment, however busy the machine.
    ended = ends_of(monkeypatch, ask, lambda check: check.__self__.shorten(1e-6))
    with serve(rig, workers=1, waiting=0) as client:
        answer = client.post(ask, content=photo, headers={"x-blurfleet-deadline-ms": "20000"})
        assert (answer.status_code, answer.json()["reason"]) == (504, "DeadlineExceeded")
        assert ended == [Reason.DEADLINE_EXCEEDED], "in the midst of it, not after it"
        monkeypatch.undo()
        assert came_true(lambda: client.post("/v1/matte", content=photo).status_code == 200, DEADLINE_S)


def gone(check: Check) -> bool:
    try:
        check()
    except RequestEnded:
        return True
    return False
