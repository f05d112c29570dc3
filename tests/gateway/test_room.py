"""Memory is bounded: by what pictures need together, over many requests, and under more load than can be answered."""

import contextlib
import gc
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import cv2
import httpx
import numpy as np
import psutil
import pytest

from blurfleet.deadline import came_true
from blurfleet.errors import RequestEnded
from blurfleet.imageheader import read_header
from blurfleet.reasons import Reason
from blurfleet.serving.life import RequestLife
from blurfleet_preprocess.room import Room, needed

Rig = Any  # the fixture's class lives in conftest.py
Serve = Callable[..., contextlib.AbstractContextManager[httpx.Client]]
DEADLINE_S = 30.0
MIB = 1 << 20


def header(pixels: int, depth: Any = np.uint8) -> Any:
    return read_header(bytes(cv2.imencode(".png", np.zeros((pixels // 100, 100, 3), depth))[1]))


@contextlib.contextmanager
def peak() -> Iterator[Callable[[], int]]:
    """Watch this process's memory; what is yielded returns the most, in bytes above where it began."""
    gc.collect()
    process, stop = psutil.Process(), threading.Event()
    start = process.memory_info().rss
    most = [start]

    def watch() -> None:
        while not stop.wait(0.005):
            most[0] = max(most[0], process.memory_info().rss)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield lambda: most[0] - start
    finally:
        stop.set()
        thread.join()


def test_16_bit_pictures_need_twice_the_room() -> None:
    assert (needed(header(1000)), needed(header(1000, np.uint16))) == (13_000, 28_000)


def test_pictures_wait_their_turn() -> None:
    room, order = Room(20_000), list[str]()

    def enter(name: str, pixels: int) -> None:
        with room.share(RequestLife(DEADLINE_S)) as share:
            share.take(header(pixels))
            order.append(name)

    with room.share(RequestLife()) as first:
        first.take(header(1000))
        threads = []
        for name, pixels in (("large", 1500), ("small", 100)):
            threads.append(threading.Thread(target=enter, args=(name, pixels)))
            threads[-1].start()
            assert came_true(lambda: len(room._waiting) == len(threads), DEADLINE_S)
        assert (order, room.held) == ([], 13_000), "small would fit, but large came first"
    for thread in threads:
        thread.join(DEADLINE_S)
    assert (order, room.held) == (["large", "small"], 0)


def test_a_small_picture_passes_large_ones_that_wait_and_finds_room_beside_them() -> None:
    room = Room(64 * 13_000)
    life = RequestLife()
    with room.share(RequestLife()) as first, ThreadPoolExecutor(1) as pool:
        first.take(header(50_000))

        def wait() -> None:
            with room.share(life) as share:
                share.take(header(10_000))

        waiting = pool.submit(wait)
        assert came_true(lambda: len(room._waiting) == 1, DEADLINE_S), "650 and 130 of 832 would fill the reserve"
        with room.share(RequestLife(DEADLINE_S)) as small:
            small.take(header(1000))
            assert (small.bytes, room.held, len(room._waiting)) == (13_000, 663_000, 1)
        life.hang_up()
        with pytest.raises(RequestEnded):
            waiting.result(DEADLINE_S)
    assert room.held == 0


def test_large_pictures_cannot_take_every_worker(rig: Rig, serve: Serve, photo: bytes) -> None:
    opened, held = threading.Event(), list[int]()

    def first_is_held(_: object) -> Any:
        held.append(1)
        assert len(held) > 1 or opened.wait(DEADLINE_S)
        return rig.matte("subject")[None, None]

    rig.engines.behaviours[rig.primary.engine] = first_is_held
    large = bytes(cv2.imencode(".png", np.zeros((600, 1000, 3), np.uint8))[1])
    with serve(rig, workers=2, picture_bytes=12_000_000) as client, ThreadPoolExecutor(1) as pool:
        under_way = pool.submit(lambda: client.post("/v1/matte", content=large).status_code)
        assert came_true(lambda: held == [1], DEADLINE_S)
        refused = client.post("/v1/matte", content=large)
        assert (refused.status_code, refused.json()["reason"], refused.headers["retry-after"]) == (
            503,
            "Overloaded",
            "1",
        )
        assert client.post("/v1/matte", content=photo).status_code == 200
        opened.set()
        assert under_way.result(DEADLINE_S) == 200
        assert client.post("/v1/matte", content=large).status_code == 200


def test_what_is_larger_than_the_room_is_refused(rig: Rig, serve: Serve, photo: bytes) -> None:
    with serve(rig, picture_bytes=24 * 40 * 13) as client:
        assert client.post("/v1/matte", content=photo).status_code == 200
        for path in ("/v1/matte", "/v1/blur"):
            one_more = client.post(path, content=bytes(cv2.imencode(".png", np.zeros((24, 41, 3), np.uint8))[1]))
            assert (one_more.status_code, one_more.json()["reason"]) == (413, "ImageTooLarge")
            assert "12792 bytes at work, 12480 are given" in one_more.json()["detail"]
        deep = client.post("/v1/blur?mode=depth", content=photo)
        assert (deep.status_code, deep.json()["reason"]) == (413, "ImageTooLarge")


def test_who_does_not_wait_any_more_leaves_the_line() -> None:
    room = Room(10_000)
    with room.share(RequestLife()) as first:
        first.take(header(500))
        with pytest.raises(RequestEnded) as late, room.share(RequestLife(0.05)) as share:
            share.take(header(500))
        assert late.value.reason is Reason.DEADLINE_EXCEEDED
        life, found = RequestLife(), list[Reason]()

        def wait() -> None:
            try:
                with room.share(life) as share:
                    share.take(header(500))
            except RequestEnded as error:
                found.append(error.reason)

        thread = threading.Thread(target=wait)
        thread.start()
        assert came_true(lambda: len(room._waiting) == 1, DEADLINE_S)
        life.hang_up()
        thread.join(DEADLINE_S)
        assert (found, len(room._waiting), room.held) == ([Reason.CLIENT_GONE], 0, 6500)
    assert room.held == 0


def test_more_load_than_can_be_answered_is_told_at_once_and_costs_no_memory(
    rig: Rig, serve: Serve, photo: bytes
) -> None:
    opened = threading.Event()

    def held(_: object) -> Any:
        assert opened.wait(DEADLINE_S)
        return rig.matte("subject")[None, None]

    rig.engines.behaviours[rig.primary.engine] = held
    body = photo + bytes(200_000)
    with serve(rig, workers=2, waiting=4) as client, ThreadPoolExecutor(6) as few, ThreadPoolExecutor(16) as many:

        def patient() -> int:
            codes = [0]

            def answered() -> bool:
                codes[0] = client.post("/v1/matte", content=body).status_code
                return codes[0] != 503

            assert came_true(answered, DEADLINE_S)
            return codes[0]

        under_way = [few.submit(patient) for _ in range(6)]
        late = {"x-blurfleet-deadline-ms": "200"}
        assert came_true(lambda: client.post("/v1/matte", content=body, headers=late).status_code == 503, DEADLINE_S)
        with peak() as most:
            began = time.monotonic()
            refused = list(many.map(lambda _: client.post("/v1/matte", content=body), range(400)))
            each = (time.monotonic() - began) / 400
        assert {(r.status_code, r.json()["reason"], r.headers["retry-after"]) for r in refused} == {
            (503, "Overloaded", "1")
        }
        assert max(r.elapsed.total_seconds() for r in refused) < DEADLINE_S
        assert each < 0.25
        assert most() < 48 * MIB, f"{most() / MIB:.0f} MiB for 80 MB of bodies"
        opened.set()
        assert {future.result(DEADLINE_S) for future in under_way} == {200}
