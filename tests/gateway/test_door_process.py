"""The gateway as a process on an address that other machines can reach: TLS and tokens on both protocols."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from blurfleet.client import Client, FrameFailure, GatewayFailure, GatewayUnavailable, Terms
from blurfleet.reasons import Reason

Until = Callable[..., None]
Made = Callable[[Path, str], tuple[Path, Path]]


def environment(folder: Path, **more: str) -> dict[str, str]:
    return {
        **os.environ,
        "BLURFLEET_NODE_DIR": str(folder),
        "BLURFLEET_TRITON_GRPC": "127.0.0.1:9",
        "BLURFLEET_GATEWAY_PORT": "0",
        "BLURFLEET_GATEWAY_HOST": "0.0.0.0",
        **more,
    }


@pytest.fixture
def gateway(tmp_path: Path, certificate: tuple[Path, Path], until: Until) -> Iterator[dict[str, Any]]:
    """A guarded gateway; no Triton is behind it."""
    (tmp_path / "tokens").write_text(f"video: sha256:{hashlib.sha256(b'one').hexdigest()}\n")
    more = {
        "BLURFLEET_TLS_CERT_FILE": str(certificate[0]),
        "BLURFLEET_TLS_KEY_FILE": str(certificate[1]),
        "BLURFLEET_TOKENS_FILE": str(tmp_path / "tokens"),
    }
    said = tmp_path / "gateway.json"
    with (tmp_path / "gateway.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "blurfleet_cli", "gateway"], env=environment(tmp_path, **more), stderr=log
        )
    try:
        until(lambda: said.exists() or process.poll() is not None, 60, "the gateway")
        found = json.loads(said.read_text())
        yield {name: value.replace("0.0.0.0", "127.0.0.1") for name, value in found.items() if isinstance(value, str)}
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def https(gateway: dict[str, Any], trusted: Path) -> httpx.Client:
    context = ssl.create_default_context(cafile=str(trusted))
    return httpx.Client(base_url=f"https://{gateway['address']}", verify=context, trust_env=False, timeout=20)


def over_grpc(gateway: dict[str, Any], trusted: Path) -> Any:
    credentials = grpc.ssl_channel_credentials(trusted.read_bytes())
    return triton.InferenceServerClient(gateway["grpc_address"], ssl=True, creds=credentials)


def test_both_protocols_are_encrypted_and_ask_for_a_token(
    gateway: dict[str, Any], certificate: tuple[Path, Path]
) -> None:
    with https(gateway, certificate[0]) as client:
        assert client.get("/healthz").status_code == 200
        assert client.get("/v2").status_code == 401
        assert client.get("/v2", headers={"authorization": "Bearer one"}).json()["name"] == "blurfleet"
    with pytest.raises(httpx.HTTPError):
        httpx.get(f"http://{gateway['address']}/healthz", trust_env=False)
    with over_grpc(gateway, certificate[0]) as client:
        assert client.is_server_live()
        with pytest.raises(InferenceServerException) as refused:
            client.get_server_metadata()
        assert refused.value.status() == "StatusCode.UNAUTHENTICATED"
        assert client.get_server_metadata(headers={"authorization": "Bearer one"}).name == "blurfleet"


def test_the_python_client_comes_in_with_its_token_and_trusts_no_stranger(
    gateway: dict[str, Any], certificate: tuple[Path, Path]
) -> None:
    url, trusted = f"https://{gateway['address']}", ssl.create_default_context(cafile=str(certificate[0]))
    with Client(url, Terms(token="one", deadline_s=4.0), verify=trusted) as guest:
        with guest.stream() as video:
            video.send(b"a frame")
            heard = video.receive()
        with pytest.raises(GatewayUnavailable) as nothing:
            guest.contract()
    # No Triton and no routing: whoever is let in learns that nothing is served yet.
    assert isinstance(heard, FrameFailure)
    assert heard.error.reason is nothing.value.reason is Reason.NOTHING_SERVED
    for terms, verify, reason in (
        (Terms(token="two"), trusted, Reason.UNAUTHENTICATED),
        (Terms(token="one"), True, Reason.GATEWAY_UNREACHABLE),
    ):
        with Client(url, terms, verify=verify) as stranger:
            with pytest.raises(GatewayFailure) as refused:
                stranger.contract()
            assert refused.value.reason is reason
            with pytest.raises(GatewayFailure) as unopened, stranger.stream():
                pass
            assert unopened.value.reason is reason


def test_a_renewed_certificate_is_shown_to_new_connections(
    gateway: dict[str, Any], certificate: tuple[Path, Path], new_certificate: Made, tmp_path: Path
) -> None:
    old = tmp_path / "old.crt"
    old.write_bytes(certificate[0].read_bytes())
    fresh = new_certificate(tmp_path, "renewed")
    trusted = tmp_path / "trusted.crt"
    trusted.write_bytes(fresh[0].read_bytes())
    for made, served in zip(fresh, certificate, strict=True):
        made.replace(served)
    with https(gateway, trusted) as client:
        assert client.get("/healthz").status_code == 200
    with over_grpc(gateway, trusted) as client:
        assert client.is_server_live()
    with https(gateway, old) as client, pytest.raises(httpx.ConnectError):
        client.get("/healthz")


def test_an_unguarded_door_does_not_open_and_says_what_to_set(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "blurfleet_cli", "gateway"],
        env=environment(tmp_path), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert "DoorUnguarded" in done.stderr
    assert "BLURFLEET_OPEN_DOOR" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "gateway.json").exists()
