"""Artifacts over http and S3 on a real socket: resumed where a line broke, checked by digest, never listed."""

from __future__ import annotations

from pathlib import Path

import pytest
from object_server import ObjectServer

from blurfleet.api.engineset import Blob
from blurfleet.artifacts import Location, fetchers
from blurfleet.errors import ArtifactRefused
from blurfleet.identity import digest_bytes
from blurfleet_agent.staging import Staging

DATA = bytes(range(251)) * 4000  # 1 MB, and no two stretches of it look alike at 64 KiB
KEY = "/bucket/blobs/engine.plan"


def blob(uri: str, data: bytes = DATA, size: int | None = len(DATA)) -> Blob:
    return Blob(uri=uri, digest=digest_bytes(data), bytes=size)


def address(server: ObjectServer, scheme: str) -> str:
    return "s3://bucket/blobs/engine.plan" if scheme == "s3" else server.url + KEY


SCHEMES = pytest.mark.parametrize("scheme", ["http", "s3"])


@SCHEMES
@pytest.mark.parametrize("size", [pytest.param(len(DATA), id="size known"), pytest.param(None, id="size unknown")])
def test_bytes_arrive_by_one_request_and_nothing_is_listed(
    server: ObjectServer, tmp_path: Path, scheme: str, size: int | None
) -> None:
    server.objects[KEY] = DATA
    assert Staging(tmp_path).ensure(blob(address(server, scheme), size=size)).read_bytes() == DATA
    assert [(a.method, a.target) for a in server.asked] == [("GET", KEY)]


@SCHEMES
def test_a_connection_cut_half_way_goes_on_by_range(server: ObjectServer, tmp_path: Path, scheme: str) -> None:
    server.objects[KEY] = DATA
    server.cut_after = 400_000
    path = Staging(tmp_path).ensure(blob(address(server, scheme)))
    assert path.read_bytes() == DATA
    offsets = [int(a.range[6:].rstrip("-") or 0) for a in server.asked]
    assert offsets[0] == 0
    assert offsets == sorted(offsets)
    assert offsets[1] > 300_000
    assert {a.target for a in server.asked} == {KEY}


@SCHEMES
def test_what_came_before_the_server_went_away_is_not_fetched_again_after_a_restart(
    server: ObjectServer, tmp_path: Path, scheme: str
) -> None:
    server.objects[KEY] = DATA[:600_000]  # its owner was still uploading
    wanted = blob(address(server, scheme))
    with pytest.raises(ArtifactRefused) as caught:
        Staging(tmp_path).ensure(wanted)
    assert caught.value.reason == "SizeMismatch"
    (tmp_path / f"{wanted.digest[7:]}.partial").write_bytes(DATA[:600_000])
    server.objects[KEY] = DATA
    server.asked.clear()
    assert Staging(tmp_path).ensure(wanted).read_bytes() == DATA
    assert [a.range for a in server.asked] == ["bytes=600000-"]


def test_a_server_without_ranges_is_read_again_from_the_start(server: ObjectServer, tmp_path: Path) -> None:
    server.objects[KEY], server.ranges = DATA, False
    wanted = blob(server.url + KEY)
    (tmp_path / f"{wanted.digest[7:]}.partial").write_bytes(DATA[:1000])
    assert Staging(tmp_path).ensure(wanted).read_bytes() == DATA
    assert [a.range for a in server.asked] == ["bytes=1000-", ""]


@SCHEMES
@pytest.mark.parametrize(
    ("served", "reason"),
    [
        pytest.param(DATA[:-1] + b"\0", "DigestMismatch", id="other bytes"),
        pytest.param(DATA + b"\0", "SizeMismatch", id="more bytes than promised"),
        pytest.param(DATA[:-1], "SizeMismatch", id="fewer bytes than promised"),
        pytest.param(None, "ArtifactUnavailable", id="no such object"),
    ],
)
def test_wrong_answers_are_refused_by_reason_and_leave_nothing(
    server: ObjectServer, tmp_path: Path, scheme: str, served: bytes | None, reason: str
) -> None:
    if served is not None:
        server.objects[KEY] = served
    wanted = blob(address(server, scheme))
    with pytest.raises(ArtifactRefused) as caught:
        Staging(tmp_path).ensure(wanted)
    assert (caught.value.reason, caught.value.where) == (reason, wanted.uri)
    assert list(tmp_path.iterdir()) == []
    assert {a.target for a in server.asked} == {KEY}


def test_a_flood_ends_at_the_promised_size(server: ObjectServer, tmp_path: Path) -> None:
    server.objects[KEY] = bytes(50_000_000)
    with pytest.raises(ArtifactRefused) as caught:
        Staging(tmp_path).ensure(Blob(uri=server.url + KEY, digest=digest_bytes(b"x"), bytes=10))
    assert caught.value.reason == "SizeMismatch"
    assert "more than 10 bytes" in caught.value.message


@SCHEMES
def test_a_server_that_refuses_is_an_unavailable_artifact_with_its_code(
    server: ObjectServer, tmp_path: Path, scheme: str
) -> None:
    server.objects[KEY], server.refuse = DATA, {"GET": 403}
    with pytest.raises(ArtifactRefused) as caught:
        Staging(tmp_path).ensure(blob(address(server, scheme)))
    assert caught.value.reason == "ArtifactUnavailable"
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("home", "shown"),
    [
        pytest.param("{url}/bucket", "Bearer secret", id="below the place it is for"),
        pytest.param("{url}/bucket/", "Bearer secret", id="a slash at the end changes nothing"),
        pytest.param("{url}/buck", "", id="a place whose name merely begins alike is a stranger"),
        pytest.param("https://elsewhere", "", id="another host is a stranger"),
        pytest.param("", "", id="no place, no token"),
    ],
)
def test_a_token_is_shown_only_below_its_own_place(server: ObjectServer, tmp_path: Path, home: str, shown: str) -> None:
    server.objects[KEY] = DATA
    at = Location(uri=home.format(url=server.url), token="secret")
    Staging(tmp_path, fetch=fetchers(at)).ensure(blob(server.url + KEY))
    assert server.asked[0].authorization == shown


def test_an_s3_request_is_signed_with_the_key_of_the_environment(server: ObjectServer, tmp_path: Path) -> None:
    server.objects[KEY] = DATA
    Staging(tmp_path).ensure(blob(address(server, "s3")))
    assert server.asked[0].authorization.startswith("AWS4-HMAC-SHA256 Credential=key/")
