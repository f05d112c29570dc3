"""Who is let in: tokens, their file, and the address that decides whether they must be asked for."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from blurfleet.errors import NodeError
from blurfleet_preprocess.access import Access, TokenFile, client_with, is_local, parse_tokens
from blurfleet_preprocess.entrance import entrance
from blurfleet_preprocess.settings import GatewaySettings

Rig = Any  # the fixture's class lives in conftest.py
Serve = Callable[..., Any]


def hashed(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    path.write_text(f"# clients\nvideo: sha256:{hashed('one')}\nphotos: {hashed('two')}  # second\n\n")
    return path


def test_a_token_names_its_client_and_nobody_else(tokens: Path) -> None:
    hashes = parse_tokens(tokens.read_text())
    assert [client_with(token, hashes) for token in ("one", "two", "", "ONE", "one ", hashed("one"))] == [
        "video", "photos", None, None, None, None,
    ]  # fmt: skip


@pytest.mark.parametrize(
    "line",
    ["video", "video: one", "video: sha256:" + "0" * 63, "vi deo: " + "0" * 64, ": " + "0" * 64, "v: md5:" + "0" * 64],
)
def test_a_line_that_is_no_client_is_an_error(line: str) -> None:
    with pytest.raises(ValueError, match="line 2"):
        parse_tokens(f"a: {'1' * 64}\n{line}")
    with pytest.raises(ValueError, match="line 2"):
        parse_tokens(f"a: {'1' * 64}\na: {'2' * 64}")


def test_a_request_is_let_in_by_its_token_alone(rig: Rig, serve: Serve, tokens: Path, photo: bytes) -> None:
    with serve(rig, access=Access(TokenFile(tokens))) as client:
        for header in (None, "Bearer wrong", "Basic one", "Bearer", "bearer  two two", "one"):
            answer = client.post("/v1/matte", content=photo, headers={"authorization": header} if header else {})
            assert (answer.status_code, answer.json()["reason"]) == (401, "Unauthenticated")
            assert answer.headers["www-authenticate"] == "Bearer"
        assert rig.engines.asked == []
        assert client.post("/v1/matte", content=photo, headers={"authorization": "Bearer one"}).status_code == 200
        assert client.post("/v1/matte", content=photo, headers={"authorization": "bearer two"}).status_code == 200
        refused = client.get("/v2/models/bokeh")
        assert "bearer token is missing" in refused.json()["error"]


def test_probes_and_figures_need_no_token(rig: Rig, serve: Serve, tokens: Path) -> None:
    with serve(rig, access=Access(TokenFile(tokens))) as client:
        for path in ("/healthz", "/readyz", "/metrics", "/v2/health/live", "/v2/health/ready"):
            assert (path, client.get(path).status_code) == (path, 200)
        for path in ("/v1/contract", "/v2", "/v2/models/bokeh", "/v2/models/bokeh/ready", "/healthz/", "//healthz"):
            # The whole address: httpx takes what follows two slashes for a host and would ask for the page at /.
            address = str(client.base_url).rstrip("/") + path
            assert (path, client.get(address).status_code) == (path, 401)


def test_the_file_is_read_again_when_it_changes_and_a_broken_one_changes_nothing(tokens: Path) -> None:
    access = Access(TokenFile(tokens))
    assert access.client("Bearer one") == "video"
    replace(tokens, f"video: {hashed('new')}\n")
    assert access.client("Bearer new") == "video"
    with pytest.raises(Exception, match="not a client's"):
        access.client("Bearer one")
    replace(tokens, "video: half a li")
    assert access.client("Bearer new") == "video"
    tokens.unlink()
    assert access.client("Bearer new") == "video"


def replace(path: Path, text: str) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.replace(path)  # as a certificate manager does it


def test_without_a_readable_file_there_is_no_start(tmp_path: Path) -> None:
    for text in (None, "not a token file"):
        path = tmp_path / "tokens"
        if text is not None:
            path.write_text(text)
        with pytest.raises(NodeError) as refused:
            TokenFile(path)
        assert refused.value.reason == "UnreadableFile"


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("[::1]", True), ("localhost", True), ("", True),
        ("::ffff:127.0.0.1", True), ("0.0.0.0", False), ("::", False), ("10.0.0.1", False), ("::ffff:10.0.0.1", False),
        ("node.example", False), ("localhost.example", False), ("127.0.0.1.example", False),
    ],
)  # fmt: skip
def test_what_is_of_this_machine_alone(host: str, local: bool) -> None:
    assert is_local(host) is local


def settings(tmp_path: Path, **more: Any) -> GatewaySettings:
    return GatewaySettings(node_dir=tmp_path, triton_grpc="127.0.0.1:1", **more)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "node-1"])
def test_a_door_to_other_machines_has_tls_and_tokens_or_does_not_open(
    tmp_path: Path, tokens: Path, host: str, certificate: tuple[Path, Path]
) -> None:
    cert, key = certificate
    tls = {"tls_cert_file": cert, "tls_key_file": key}
    for more, lacks in (({}, "TLS and tokens"), (tls, "tokens"), ({"tokens_file": tokens}, "TLS")):
        with pytest.raises(NodeError) as refused:
            entrance(settings(tmp_path, gateway_host=host, **more))
        assert refused.value.reason == "DoorUnguarded"
        assert f"and {lacks} are not set" in refused.value.message
    made = entrance(settings(tmp_path, gateway_host=host, tokens_file=tokens, **tls))
    assert made.certificate is not None
    assert made.access.client("Bearer one") == "video"
    assert entrance(settings(tmp_path, gateway_host=host, open_door=True)).certificate is None


def test_loopback_needs_neither(tmp_path: Path) -> None:
    made = entrance(settings(tmp_path, gateway_host="127.0.0.1"))
    assert made.access.client("") == "anyone"
    assert made.grpc_credentials() is None


def test_half_a_certificate_and_a_wrong_one_are_no_start(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    for files in ({"tls_cert_file": cert}, {"tls_key_file": key}, {"tls_cert_file": key, "tls_key_file": cert}):
        with pytest.raises(NodeError) as refused:
            entrance(settings(tmp_path, **files))
        assert refused.value.reason == "UnreadableFile"


def test_a_websockets_token_may_come_as_a_subprotocol(
    rig: Rig, serve: Serve, tokens: Path, caplog: pytest.LogCaptureFixture
) -> None:
    upgrade = {
        "connection": "upgrade", "upgrade": "websocket", "sec-websocket-version": "13",
        "sec-websocket-key": "AAAAAAAAAAAAAAAAAAAAAA==",
    }  # fmt: skip
    with serve(rig, access=Access(TokenFile(tokens))) as client:
        statuses = []
        for offered in ("blurfleet.v1", "blurfleet.v1, bearer.wrong", "blurfleet.v1, bearer.one"):
            try:
                headers = upgrade | {"sec-websocket-protocol": offered}
                with client.stream("GET", "/v1/stream", headers=headers) as answer:
                    statuses.append(answer.status_code)
            except httpx.RemoteProtocolError:
                statuses.append(101)
    assert statuses == [401, 401, 101]
    assert caplog.records == []


def test_a_subprotocol_is_no_token_of_a_plain_request(rig: Rig, serve: Serve, tokens: Path, photo: bytes) -> None:
    with serve(rig, access=Access(TokenFile(tokens))) as client:
        headers = {"sec-websocket-protocol": "bearer.one"}
        assert client.post("/v1/matte", content=photo, headers=headers).status_code == 401
        assert client.get("/v1/contract", headers=headers).status_code == 401


def test_two_clients_streams_of_one_name_are_two(rig: Rig, serve: Serve, tokens: Path, photo: bytes) -> None:
    frames = []
    with serve(rig, access=Access(TokenFile(tokens))) as client:
        for token in ("one", "two", "one"):
            headers = {"authorization": f"Bearer {token}", "x-blurfleet-stream": "cam"}
            frames.append(client.post("/v1/matte", content=photo, headers=headers).headers["x-blurfleet-frame"])
    assert frames == ["test.1/1#1", "test.1/2#1", "test.1/1#2"]
