"""How much one client may ask: the bucket by its clock, and the refusals over both protocols."""

import hashlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blurfleet_preprocess.access import Access, TokenFile
from blurfleet_preprocess.counting import address_of, let_in
from blurfleet_preprocess.limits import MAX_CLIENTS, Bucket, Limits, LimitSpec, TooManyRequests, fresh, taken

Rig = Any  # the fixture's class lives in conftest.py
Serve = Callable[..., Any]
SPEC = LimitSpec(rate_hz=10, burst=3)


def test_a_burst_is_allowed_and_then_the_rate() -> None:
    bucket, waits = fresh(SPEC, 100.0), []
    for now in (100.0, 100.0, 100.0, 100.0, 100.05, 100.1, 100.1):
        bucket, wait = taken(bucket, SPEC, now)
        waits.append(round(wait, 6))
    assert waits == [0, 0, 0, 0.1, 0.05, 0, 0.1]


def test_a_pause_gives_no_more_than_the_burst() -> None:
    bucket = Bucket(level=0, at=0.0)
    allowed = 0
    for _ in range(10):
        bucket, wait = taken(bucket, SPEC, 3600.0)
        allowed += wait == 0
    assert allowed == 3


def test_a_clock_that_goes_back_gives_nothing_and_takes_nothing() -> None:
    bucket, _ = taken(Bucket(level=2, at=100.0), SPEC, 50.0)
    assert bucket.level == 1


@given(
    steps=st.lists(st.floats(0, 0.5), min_size=1, max_size=80),
    rate=st.floats(0.5, 50),
    burst=st.integers(1, 10),
)
def test_never_more_than_burst_and_rate_together(steps: list[float], rate: float, burst: int) -> None:
    spec, now, allowed = LimitSpec(rate_hz=rate, burst=burst), 0.0, 0
    bucket = fresh(spec, now)
    for step in steps:
        now += step
        bucket, wait = taken(bucket, spec, now)
        allowed += wait == 0
        assert wait == 0 or taken(bucket, spec, now + wait + 1e-6)[1] == 0  # who waits as told gets in
    assert allowed <= burst + now * rate + 1e-6


def test_the_least_recent_client_is_forgotten_unless_it_is_being_served() -> None:
    limits = Limits(LimitSpec(rate_hz=1, burst=1, at_once=1), clock=lambda: 0.0)
    with limits.held("served"):
        limits.take("first")
        for number in range(MAX_CLIENTS + 5):
            limits.take(str(number))
        limits.take("first")  # forgotten: a full bucket again
        with pytest.raises(TooManyRequests):
            limits.held("served").__enter__()


def test_a_client_beyond_its_rate_is_told_when_to_come_back_and_others_are_not(
    rig: Rig, serve: Serve, photo: bytes
) -> None:
    now = [0.0]
    limits = Limits(LimitSpec(rate_hz=0.25, burst=2), clock=lambda: now[0])
    with serve(rig, limits=limits) as client:
        assert [client.post("/v1/matte", content=photo).status_code for _ in range(2)] == [200, 200]
        refused = client.post("/v1/matte", content=photo)
        assert (refused.status_code, refused.json()["reason"]) == (429, "RateLimited")
        assert refused.headers["retry-after"] == "4"
        assert "error" in client.get("/v2").json()
        assert client.get("/healthz").status_code == 200
        limits.take("another client")
        now[0] = 4.0
        assert client.post("/v1/matte", content=photo).status_code == 200
    assert rig.count("blurfleet_requests_total", status="429") == 2


def test_headers_of_proxies_make_no_new_client(rig: Rig, serve: Serve, photo: bytes) -> None:
    with serve(rig, limits=Limits(LimitSpec(rate_hz=0.001, burst=2))) as client:
        said = [{"x-forwarded-for": f"10.0.0.{n}", "x-real-ip": f"10.0.0.{n}"} for n in range(4)]
        statuses = [client.post("/v1/matte", content=photo, headers=headers).status_code for headers in said]
    assert statuses == [200, 200, 429, 429]


def test_wrong_tokens_are_limited_by_address_and_right_ones_are_not_in_their_way(
    rig: Rig, serve: Serve, tmp_path: Path, photo: bytes
) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"video: sha256:{hashlib.sha256(b'one').hexdigest()}")
    limits = Limits(LimitSpec(rate_hz=0.001, burst=2))
    with serve(rig, limits=limits, access=Access(TokenFile(tokens))) as client:
        statuses = [
            client.post("/v1/matte", content=photo, headers={"authorization": f"Bearer {token}"}).status_code
            for token in ("a", "b", "c", "one", "one", "one", "d")
        ]
    assert statuses == [401, 401, 429, 200, 200, 429, 429]


@pytest.mark.parametrize(
    ("host", "counted"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::1%eth0", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::1", "2001:db8:1:3::/64"),
        ("", ""),
    ],
)
def test_a_network_of_ipv6_is_one_client(host: str, counted: str) -> None:
    assert address_of(host) == counted
    limits = Limits(LimitSpec(rate_hz=0.001, burst=1))
    limits.take(counted)
    with pytest.raises(TooManyRequests):
        limits.take(let_in(Access(), limits, "", host)[1])


def test_a_client_has_so_many_requests_at_once(rig: Rig, serve: Serve, photo: bytes) -> None:
    entered, release = threading.Semaphore(0), threading.Event()

    def slow(_: object) -> object:
        entered.release()
        assert release.wait(20)
        return rig.matte("subject")[None, None]

    rig.engines.behaviours[rig.primary.engine] = slow
    with serve(rig, limits=Limits(LimitSpec(at_once=1))) as client, ThreadPoolExecutor(1) as pool:
        held = pool.submit(client.post, "/v1/matte", content=photo)
        assert entered.acquire(timeout=20)
        refused = client.post("/v1/matte", content=photo)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        release.set()
        assert held.result(20).status_code == 200
        assert client.post("/v1/matte", content=photo).status_code == 200
