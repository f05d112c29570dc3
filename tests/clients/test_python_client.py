"""The Python client and its examples before a real gateway process and a real Triton: matte = red channel."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from skimage import data
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from blurfleet.cache import cache_dir
from blurfleet.client import AsyncClient, Client, FrameResult, RequestRefused, VideoOptions
from blurfleet.contract import contract_hash
from blurfleet.errors import InvalidInput
from blurfleet.pixels import to_tensor
from blurfleet.serving.streaming import SUBPROTOCOL
from blurfleet_agent.tritonenv import ensure_environment
from blurfleet_cli.door_bench import SIZE, SPEC, gateway_before
from blurfleet_cli.swap_bench import SwapBench

EXAMPLES = Path(__file__).resolve().parents[2] / "examples/clients"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("door")
    with SwapBench(ensure_environment(cache_dir()), folder, size=SIZE) as bench, gateway_before(bench) as said:
        yield f"http://{said['address']}"
        bench.server.kill()  # a stop in order takes 1 to 3 s, and has tests of its own


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    cv2.imwrite(str(tmp_path / "photo.png"), cv2.cvtColor(data.astronaut(), cv2.COLOR_RGB2BGR))
    return tmp_path


def run(folder: Path, name: str, *arguments: str) -> list[str]:
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_example_for_pictures(url: str, folder: Path) -> None:
    assert run(folder, "blurfleet_pictures.py", url, "photo.png") == ["FP32 Primary 1 (512, 512, 3)"]
    matte = np.load(folder / "matte.npy")
    assert (matte.shape, matte.dtype) == ((512, 512), np.float32)
    assert np.corrcoef(matte.ravel(), data.astronaut()[..., 0].ravel())[0, 1] > 0.9
    assert cv2.imread(str(folder / "blurred.png")).shape == (512, 512, 3)


def test_a_refusal_ends_the_example_with_reason_and_fix(url: str, folder: Path) -> None:
    (folder / "photo.png").write_bytes((folder / "photo.png").read_bytes()[:5000])
    command = [sys.executable, str(EXAMPLES / "blurfleet_pictures.py"), url, "photo.png"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("TruncatedImage: ")
    assert "Traceback" not in done.stderr


def test_the_example_for_tensors(url: str, folder: Path) -> None:
    assert run(folder, "blurfleet_tensor.py", url, "photo.png", "matte.npy") == ["FP32"]
    np.testing.assert_array_equal(np.load(folder / "matte.npy"), to_tensor(data.astronaut(), SPEC)[:, :1])


def test_the_example_that_awaits(url: str, folder: Path) -> None:
    assert run(folder, "blurfleet_async.py", url, "photo.png") == ["FP32 (512, 512, 3) (512, 512, 4)"]


def test_the_example_for_video(url: str, folder: Path) -> None:
    *frames, last = run(folder, "blurfleet_video.py", url, "photo.png")
    assert frames == [f"{number} (512, 512, 3) (512, 512) None" for number in range(1, 6)]
    assert last == "5 True"


def test_a_stream_brings_each_frames_own_matte_whoever_of_two_clients_sent_it(url: str) -> None:
    options = VideoOptions(output="matte", format="npy")
    with Client(url) as gateway, gateway.stream(options) as one, gateway.stream(options) as other:
        for step in range(4):
            shots = [np.roll(data.astronaut(), 9 * step, axis=1), np.roll(data.astronaut(), 9 * step, axis=0)]
            for video, rgb in zip((one, other), shots, strict=True):
                video.send(bytes(cv2.imencode(".png", cv2.cvtColor(rgb, cv2.COLOR_RGB2BGR))[1]))
            for video, rgb in zip((one, other), shots, strict=True):
                heard: Any = video.receive()
                assert isinstance(heard, FrameResult)
                np.testing.assert_array_equal(heard.matte, to_tensor(rgb, SPEC)[0, 0])
                assert (heard.id, heard.by.contract) == (step + 1, contract_hash(SPEC))
        assert one.name != other.name


def test_a_frame_beyond_the_gateways_limit_is_refused_and_the_stream_goes_on(url: str) -> None:
    with Client(url) as gateway, gateway.stream() as video:
        with pytest.raises(RequestRefused, match="a frame of 9437184 bytes, and this gateway takes 8388608"):
            video.send(bytes(9 << 20))
        assert video.send(data.astronaut()) == 1
        heard = video.receive()
        assert isinstance(heard, FrameResult)
        assert heard.id == 1
    assert video.summary is not None
    assert (video.summary.received, video.summary.answered) == (1, 1)


def test_a_client_that_sends_such_a_frame_all_the_same_is_hung_up_on_at_its_first_bytes(url: str) -> None:
    with connect(f"ws{url.removeprefix('http')}/v1/stream", subprotocols=[SUBPROTOCOL]) as socket:
        socket.send('{"kind": "hello"}')
        assert '"ready"' in str(socket.recv(timeout=60))
        masked_binary = bytes([0x82, 0xFF]) + (9 << 20).to_bytes(8, "big") + bytes(4)
        socket.socket.sendall(masked_binary)
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(timeout=60)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1009


@pytest.mark.parametrize("url", ["127.0.0.1:8090", "ftp://127.0.0.1", "http://", ""])
def test_what_is_no_address_is_refused_before_anything_is_asked(url: str) -> None:
    for kind in (Client, AsyncClient):
        with pytest.raises(InvalidInput, match=re.escape(f"{url!r} is no address of a gateway")) as refused:
            kind(url)
        assert "http://127.0.0.1:8090" in refused.value.fix


@pytest.mark.parametrize("photo", ["photo.jpg", Path("photo.jpg"), None], ids=["name", "path", "nothing"])
def test_a_files_name_is_no_picture(photo: Any) -> None:
    with Client("http://127.0.0.1:9") as gateway, pytest.raises(InvalidInput, match="is no picture") as refused:
        gateway.blur(photo)
    assert refused.value.fix == "give the file's bytes, or uint8 RGB [H,W,3]"
