"""Shared memory of local clients: what may be registered, its bounds, and both protocols through tritonclient."""

import asyncio
import json
import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import pytest
import tritonclient.http as triton
import tritonclient.utils.shared_memory as memory
from tritonclient.utils import InferenceServerException

from blurfleet.api.contract import contract_at
from blurfleet.contract import contract_hash
from blurfleet.errors import BlurfleetError
from blurfleet.pixels import to_tensor
from blurfleet_preprocess import neighbours
from blurfleet_preprocess.exchange import Exchange
from blurfleet_preprocess.neighbours import user_of
from blurfleet_preprocess.readiness import Readiness
from blurfleet_preprocess.regions import MAX_OF_ONE, MAX_REGIONS, Neighbour, RegionRef, Regions
from blurfleet_preprocess.rest import build_app
from blurfleet_preprocess.streams import Streams
from blurfleet_preprocess.work import Workers

Rig = Any  # the fixture's class lives in conftest.py
A, B = (Neighbour(client=name, user=os.geteuid()) for name in "ab")


@pytest.fixture
def regions(tmp_path: Path) -> Iterator[Regions]:
    made = Regions(folder=tmp_path)
    yield made
    made.close()


def exchange_over(rig: Rig) -> Exchange:
    workers = Workers(1, 4)
    return Exchange(
        gateway=rig.gateway, streams=Streams("test.1"), metrics=rig.metrics, workers=workers, max_body_bytes=1 << 20
    )


async def post_from(host: str, app: Any, path: str, body: bytes) -> httpx.Response:
    transport = httpx.ASGITransport(app, client=(host, 5000))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        return await client.post(path, content=body)


def region_file(folder: Path, name: str = "mine", size: int = 4096, mode: int = 0o600) -> Path:
    path = folder / name
    path.write_bytes(bytes(range(256)) * (size // 256))
    path.chmod(mode)
    return path


def reason_of(work: Callable[[], object]) -> str:
    with pytest.raises(BlurfleetError) as refused:
        work()
    return refused.value.reason.value


def test_what_is_read_and_written_lies_where_it_was_said(regions: Regions, tmp_path: Path) -> None:
    path = region_file(tmp_path)
    regions.register(A, name="r", key="/mine", offset=256, byte_size=1024)
    assert bytes(regions.read(A, RegionRef(name="r", offset=3, byte_size=4))) == bytes([3, 4, 5, 6])
    regions.write(A, RegionRef(name="r", offset=512, byte_size=16), np.float32([[1, 2], [3, 4]]))
    stored = path.read_bytes()
    np.testing.assert_array_equal(np.frombuffer(stored[768:784], np.float32), [1, 2, 3, 4])
    assert stored[:768] == (bytes(range(256)) * 16)[:768]
    assert stored[784:] == (bytes(range(256)) * 16)[784:]


@pytest.mark.parametrize("key", ["", "/", "../mine", "/a/b", "/.hidden", "mine\n", "/" + "x" * 200, "/müll"])
def test_a_key_that_is_no_plain_name_is_refused(regions: Regions, tmp_path: Path, key: str) -> None:
    region_file(tmp_path)
    assert reason_of(lambda: regions.register(A, name="r", key=key, offset=0, byte_size=16)) == "InvalidRequest"


@pytest.mark.parametrize("name", ["triton_python_backend_shm_region_1", "blurfleet_gateway_x_1", "sem.lock"])
def test_tritons_regions_and_our_own_are_nobodys(regions: Regions, tmp_path: Path, name: str) -> None:
    region_file(tmp_path, name)
    assert reason_of(lambda: regions.register(A, name="r", key=f"/{name}", offset=0, byte_size=16)) == "Forbidden"


def test_a_link_a_folder_a_pipe_and_a_socket_are_no_shared_memory(regions: Regions, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(region_file(tmp_path))
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(tmp_path / "socket"))
        for name in ("link", "folder", "pipe", "socket"):
            said = reason_of(lambda name=name: regions.register(A, name="r", key=name, offset=0, byte_size=16))
            assert said in {"Forbidden", "InvalidRequest"}
    assert reason_of(lambda: regions.register(A, name="r", key="none", offset=0, byte_size=16)) == "NotFound"


@pytest.mark.parametrize(
    ("mode", "outcome"), [(0o600, "Forbidden"), (0o640, "Forbidden"), (0o644, "read"), (0o666, "written")]
)
def test_another_users_region_is_used_as_far_as_everybody_may(
    regions: Regions, tmp_path: Path, mode: int, outcome: str
) -> None:
    path = region_file(tmp_path, mode=mode)
    another = Neighbour(client="a", user=path.stat().st_uid + 1)

    def register() -> None:
        regions.register(another, name="r", key="/mine", offset=0, byte_size=64)

    if outcome == "Forbidden":
        assert reason_of(register) == "Forbidden"
        return
    register()
    ref = RegionRef(name="r", offset=0, byte_size=4)
    assert bytes(regions.read(another, ref)) == bytes([0, 1, 2, 3])
    if outcome == "read":
        assert reason_of(lambda: regions.check(another, ref)) == "Forbidden"
    else:
        regions.check(another, ref)


def test_a_client_whose_user_is_unknown_shares_only_what_is_open_to_everybody(regions: Regions, tmp_path: Path) -> None:
    nobody = Neighbour(client="anyone", user=None)
    region_file(tmp_path, "mine")
    region_file(tmp_path, "everybodys", mode=0o666)
    assert reason_of(lambda: regions.register(nobody, name="r", key="mine", offset=0, byte_size=64)) == "Forbidden"
    regions.register(nobody, name="r", key="everybodys", offset=0, byte_size=64)
    regions.check(nobody, RegionRef(name="r", offset=0, byte_size=4))


@pytest.mark.parametrize(("offset", "size"), [(0, 4097), (4096, 1), (-1, 10), (0, 0), (10, -5), (1 << 40, 16)])
def test_a_region_lies_within_its_file(regions: Regions, tmp_path: Path, offset: int, size: int) -> None:
    region_file(tmp_path)
    assert reason_of(lambda: regions.register(A, name="r", key="mine", offset=offset, byte_size=size)) == (
        "InvalidRequest"
    )


@pytest.mark.parametrize(("offset", "size"), [(0, 65), (64, 1), (-1, 8), (60, 8), (0, 0)])
def test_a_piece_lies_within_its_region(regions: Regions, tmp_path: Path, offset: int, size: int) -> None:
    region_file(tmp_path)
    regions.register(A, name="r", key="mine", offset=0, byte_size=64)
    ref = RegionRef(name="r", offset=offset, byte_size=size)
    assert reason_of(lambda: regions.read(A, ref)) == "InvalidRequest"
    assert reason_of(lambda: regions.check(A, ref)) == "InvalidRequest"
    assert reason_of(lambda: regions.write(A, ref, np.float32([[1]]))) == "InvalidRequest"


def test_a_file_that_shrinks_is_an_error_and_does_not_grow_again(regions: Regions, tmp_path: Path) -> None:
    path = region_file(tmp_path)
    regions.register(A, name="r", key="mine", offset=0, byte_size=4096)
    os.truncate(path, 100)
    ref = RegionRef(name="r", offset=2048, byte_size=16)
    assert reason_of(lambda: regions.read(A, ref)) == "InvalidRequest"
    assert reason_of(lambda: regions.write(A, ref, np.float32([[1, 2]]))) == "InvalidRequest"
    assert path.stat().st_size == 100


def test_a_client_sees_only_its_own_regions(regions: Regions, tmp_path: Path) -> None:
    region_file(tmp_path)
    a_of_another_user = Neighbour(client="a", user=os.geteuid() + 1)
    assert reason_of(lambda: regions.read(a_of_another_user, RegionRef(name="r", offset=0, byte_size=4))) == "NotFound"
    for who in (A, B):
        regions.register(who, name="r", key="mine", offset=0, byte_size=64)
    regions.unregister(A, "r")
    ref = RegionRef(name="r", offset=0, byte_size=4)
    assert reason_of(lambda: regions.read(A, ref)) == "NotFound"
    assert len(regions.read(B, ref)) == 4
    assert regions.status(A) == regions.status(a_of_another_user) == []
    assert reason_of(lambda: regions.status(A, "r")) == "NotFound"


def test_regions_are_bounded_and_closed_files_are_given_back(regions: Regions, tmp_path: Path) -> None:
    region_file(tmp_path)
    before = psutil.Process().num_fds()
    clients = [Neighbour(client=f"c{number}", user=A.user) for number in range(MAX_REGIONS // MAX_OF_ONE)]
    for number in range(MAX_OF_ONE):
        regions.register(clients[0], name=f"r{number}", key="mine", offset=0, byte_size=64)
    for name in ("x", "r0"):
        assert reason_of(
            lambda name=name: regions.register(clients[0], name=name, key="mine", offset=0, byte_size=64)
        ) == ("InvalidRequest")
    for who in clients[1:]:
        for number in range(MAX_OF_ONE):
            regions.register(who, name=f"r{number}", key="mine", offset=0, byte_size=64)
    assert reason_of(lambda: regions.register(B, name="x", key="mine", offset=0, byte_size=64)) == "InvalidRequest"
    for who in clients:
        regions.unregister(who)
    assert psutil.Process().num_fds() == before


def test_a_tensor_and_its_matte_pass_through_the_clients_memory(rig: Rig, client: httpx.Client) -> None:
    spec = contract_at(rig.size)
    rgb = np.random.default_rng(7).integers(0, 256, (rig.size, rig.size, 3), dtype=np.uint8)
    tensor, matte_bytes = to_tensor(rgb, spec), 4 * rig.size**2
    name = f"test_regions_{os.getpid()}"
    shared = memory.create_shared_memory_region(name, f"/{name}", tensor.nbytes + matte_bytes)
    try:
        memory.set_shared_memory_region(shared, [tensor])
        with triton.InferenceServerClient(f"{client.base_url.host}:{client.base_url.port}") as v2:
            v2.register_system_shared_memory(name, f"/{name}", tensor.nbytes + matte_bytes)
            assert [r["name"] for r in v2.get_system_shared_memory_status()] == [name]
            sent = triton.InferInput("image", list(tensor.shape), "FP32")
            sent.set_shared_memory(name, tensor.nbytes)
            wish = triton.InferRequestedOutput("matte")
            wish.set_shared_memory(name, matte_bytes, tensor.nbytes)
            headers = {"x-blurfleet-contract": contract_hash(spec)}
            answer = v2.infer("bokeh", [sent], outputs=[wish], headers=headers)
            v2.unregister_system_shared_memory(name)
            assert v2.get_system_shared_memory_status() == []
        assert answer.get_output("matte")["parameters"]["shared_memory_region"] == name
        got = memory.get_contents_as_numpy(shared, np.float32, [1, 1, rig.size, rig.size], tensor.nbytes)
        np.testing.assert_array_equal(got, rig.matte("subject")[None, None])
        np.testing.assert_array_equal(rig.engines.tensors[0], tensor)
    finally:
        memory.destroy_shared_memory_region(shared)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_the_kernel_says_whose_a_connection_is(host: str) -> None:
    other = 65534 if os.geteuid() == 0 else os.geteuid()  # only root may start another user's process
    with socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as door:
        port = door.getsockname()[1]
        script = f"exec 3<>/dev/tcp/{host}/{port}; read -u 3 _"
        theirs = subprocess.Popen(["bash", "-c", script], user=other, cwd="/")
        accepted, peer = door.accept()
        with accepted, socket.create_connection((host, port)) as mine:
            assert user_of(peer[0], peer[1], port) == other
            assert user_of(host, mine.getsockname()[1], port) == os.geteuid()
            assert user_of(host, peer[1], port + 1) is None
            assert user_of(host, port, peer[1] + 1) is None  # a socket listens there
            left = mine.getsockname()[1]
        assert user_of(host, left, port) is None
        theirs.wait(60)


def test_an_ipv4_connection_of_an_ipv6_socket_is_known_at_either_end() -> None:
    with socket.create_server(("127.0.0.1", 0)) as door, socket.socket(socket.AF_INET6) as mine:
        port = door.getsockname()[1]
        mine.connect(("::ffff:127.0.0.1", port))
        for host in ("127.0.0.1", "::ffff:127.0.0.1"):
            assert user_of(host, mine.getsockname()[1], port) == os.geteuid()


def test_another_user_of_the_machine_neither_registers_nor_uses_what_is_not_its_own(
    rig: Rig, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = contract_at(rig.size)
    tensor = to_tensor(np.zeros((rig.size, rig.size, 3), np.uint8), spec)
    name = f"test_regions_other_{os.getpid()}"
    shared = memory.create_shared_memory_region(name, f"/{name}", tensor.nbytes)
    with triton.InferenceServerClient(f"{client.base_url.host}:{client.base_url.port}") as v2:
        try:
            v2.register_system_shared_memory("r", f"/{name}", tensor.nbytes)
            monkeypatch.setattr(neighbours, "user_of", lambda *_: os.geteuid() + 1)
            sent = triton.InferInput("image", list(tensor.shape), "FP32")
            sent.set_shared_memory("r", tensor.nbytes)
            with pytest.raises(InferenceServerException, match="no region 'r' is registered"):
                v2.infer("bokeh", [sent], headers={"x-blurfleet-contract": contract_hash(spec)})
            assert v2.get_system_shared_memory_status() == []
            with pytest.raises(InferenceServerException, match="belongs to another user"):
                v2.register_system_shared_memory("r", f"/{name}", tensor.nbytes)
        finally:
            memory.destroy_shared_memory_region(shared)


def test_other_machines_may_not_name_this_ones_memory(rig: Rig) -> None:
    app = build_app(exchange_over(rig), Readiness(rig.gateway, cache_s=60))
    body = json.dumps({"key": "/mine", "byte_size": 16}).encode()
    for host, status in (("10.0.0.9", 403), ("127.0.0.1", 404), ("::ffff:127.0.0.1", 404), ("::1", 404)):
        answer = asyncio.run(post_from(host, app, "/v2/systemsharedmemory/region/r/register", body))
        assert (host, answer.status_code) == (host, status)
