"""The gateway's process before a real Triton: bad engines, slow ones, hang-ups, memory, and an orderly stop."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path

import cv2
import httpx
import numpy as np
import psutil
import pytest
from tests.gateway.test_deadlines import post, raw
from tests.gateway.test_gateway_process import SIZE, SPEC, Process, photo, start

from blurfleet.cache import cache_dir
from blurfleet.deadline import came_true
from blurfleet.identity import digest_bytes, engine_name
from blurfleet.pixels import decode, to_tensor
from blurfleet.serving.frames import FrameReceiver
from blurfleet.serving.routing import ROUTING_FILE, Route, RoutedEngine, RoutingTable, write_routing
from blurfleet_agent.config_text import engine_config
from blurfleet_agent.tritonenv import ensure_environment
from blurfleet_cli.swap_bench import SwapBench
from blurfleet_cli.tiny_engines import ARTIFACT, tiny_record

DEADLINE_S = 30.0
MIB = 1 << 20
KINDS = ("sound", "dim", "nan", "large", "flat", "slow")
# The artifact says what is wrong with the engine, and where a slow one notes what it does until it is let go.
MODEL_PY = '''"""Matte = red channel, wrong in the way its artifact says."""

import os
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        folder = os.path.join(args["model_repository"], args["model_version"])
        with open(os.path.join(folder, "scale.txt")) as handle:
            self.kind, self.notes = handle.read().split("|")

    def note(self, text):
        with open(self.notes, "a") as handle:
            handle.write(text + "\\n")

    def execute(self, requests):
        answers = []
        for request in requests:
            image = pb_utils.get_input_tensor_by_name(request, "image").as_numpy()
            matte = np.ascontiguousarray(image[:, :1])
            if self.kind == "dim":
                matte = matte * np.float32(0.5)
            elif self.kind == "nan":
                matte[0, 0, 3, 4] = np.nan
            elif self.kind == "large":
                matte = matte + np.float32(1.0)
            elif self.kind == "flat":
                matte = np.full_like(matte, 0.25)
            elif self.kind == "slow":
                self.note("begun")
                end, pause = time.monotonic() + 20, threading.Event()
                while time.monotonic() < end and not os.path.exists(self.notes + ".go"):
                    if request.is_cancelled():
                        self.note("cancelled")
                        break
                    pause.wait(0.01)
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("matte", matte)]))
        return answers
'''


class Bench:
    """A Triton with one engine of each kind; every gateway over it has a folder of its own."""

    def __init__(self, swap: SwapBench) -> None:
        self.swap = swap
        self.notes = swap.folder / "notes"
        self.engines: dict[str, RoutedEngine] = {}
        self.epoch = 0
        self.gateways = 0
        model = swap.folder / "kinds.py"
        model.write_text(MODEL_PY)
        for kind in KINDS:
            text = f"{kind}|{self.notes}"
            artifact, digest = swap.folder / f"{kind}.txt", digest_bytes(text.encode())
            artifact.write_text(text)
            record = tiny_record(digest, size=SIZE)
            name = engine_name(swap.alias, digest)
            swap.repository.publish_engine(name, engine_config(record, name), {ARTIFACT: artifact, "model.py": model})
            swap.repository.ensure_loadable(name)
            swap.control.load(name, timeout_s=DEADLINE_S)
            self.engines[kind] = RoutedEngine(engine=name, digest=digest, precision="FP32")

    def serve(self, primary: str, fallback: str | None) -> None:
        self.epoch += 1
        route = Route(
            alias=self.swap.alias, epoch=self.epoch, serving="Primary", primary=self.engines[primary],
            fallback=None if fallback is None else self.engines[fallback], contract=SPEC,
        )  # fmt: skip
        for folder in [self.swap.folder, *self.swap.folder.glob("gateway-*")]:
            write_routing(folder / ROUTING_FILE, RoutingTable(simulated=True).with_route(route))

    def noted(self, what: str) -> int:
        return self.notes.read_text().split().count(what) if self.notes.exists() else 0

    def let_go(self) -> None:
        Path(f"{self.notes}.go").touch()

    def hold(self) -> None:
        self.notes.unlink(missing_ok=True)
        Path(f"{self.notes}.go").unlink(missing_ok=True)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with SwapBench(ensure_environment(cache_dir()), tmp_path_factory.mktemp("triton"), size=SIZE) as running:
        yield Bench(running)
        running.server.kill()  # a stop in order takes 1 to 3 s, and has tests of its own


@contextlib.contextmanager
def gateway_of(bench: Bench, **settings: str) -> Iterator[Process]:
    bench.gateways += 1
    folder = bench.swap.folder / f"gateway-{bench.gateways}"
    folder.mkdir()
    (folder / ROUTING_FILE).write_bytes((bench.swap.folder / ROUTING_FILE).read_bytes())
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(f"BLURFLEET_{name.upper()}", value)
        process = start(folder, bench.swap.server.grpc_address)
    try:
        yield process
    finally:
        process.client.close()
        if process.popen.poll() is None:
            assert process.stop() == 0


@pytest.fixture(scope="module")
def gateway(bench: Bench) -> Iterator[Process]:
    bench.serve("sound", "dim")
    with gateway_of(bench) as process:
        yield process


def red(seed: int = 1) -> np.ndarray:
    return to_tensor(decode(photo(seed), SPEC).rgb, SPEC)[0, 0]


def matte_of(response: httpx.Response) -> np.ndarray:
    return np.load(BytesIO(response.content), allow_pickle=False)


@pytest.mark.parametrize(
    ("primary", "withheld"), [("nan", "NonFiniteOutput"), ("large", "OutOfRangeOutput"), ("flat", "CollapsedOutput")]
)
def test_a_real_engines_bad_matte_is_replaced_by_the_fallbacks(
    bench: Bench, gateway: Process, primary: str, withheld: str
) -> None:
    bench.serve(primary, "dim")
    response = gateway.client.post("/v1/matte?format=npy", content=photo())
    assert (response.status_code, response.headers["x-blurfleet-withheld"]) == (200, withheld)
    assert response.headers["x-blurfleet-engine"] == bench.engines["dim"].engine
    np.testing.assert_array_equal(matte_of(response), red() * np.float32(0.5))


@pytest.mark.parametrize(
    ("primary", "fallback", "reason"),
    [
        ("nan", "large", "NonFiniteOutput"),
        ("large", "nan", "OutOfRangeOutput"),
        ("nan", None, "NonFiniteOutput"),
        ("large", None, "OutOfRangeOutput"),
    ],
)
def test_two_bad_mattes_are_502_and_no_picture(
    bench: Bench, gateway: Process, primary: str, fallback: str | None, reason: str
) -> None:
    bench.serve(primary, fallback)
    for path in ("/v1/matte?format=npy", "/v1/matte", "/v1/blur"):
        response = gateway.client.post(path, content=photo())
        assert (response.status_code, response.json()["reason"]) == (502, reason)
        assert response.headers["content-type"] == "application/problem+json"


def test_a_collapsed_matte_beside_a_broken_fallback_is_served_and_only_suspect(bench: Bench, gateway: Process) -> None:
    bench.serve("flat", "nan")
    response = gateway.client.post("/v1/matte?format=npy", content=photo())
    assert response.status_code == 200
    assert "x-blurfleet-withheld" not in response.headers
    np.testing.assert_array_equal(matte_of(response), np.full((SIZE, SIZE), 0.25, np.float32))
    assert 'blurfleet_frames_suspect_total{reason="CollapsedOutput"}' in gateway.client.get("/metrics").text


def hung_up(gateway: Process) -> float:
    lines = gateway.client.get("/metrics").text.splitlines()
    found = [line for line in lines if line.startswith('blurfleet_requests_total{status="499"}')]
    return float(found[0].split()[1]) if found else 0.0


def test_triton_hears_that_a_client_hung_up(bench: Bench, gateway: Process) -> None:
    bench.serve("slow", None)
    bench.hold()
    before = hung_up(gateway)
    running = raw(gateway.client, post(photo()))
    assert came_true(lambda: bench.noted("begun") == 1, DEADLINE_S)
    running.close()
    assert came_true(lambda: bench.noted("cancelled") == 1, DEADLINE_S)
    assert came_true(lambda: hung_up(gateway) == before + 1, DEADLINE_S)
    bench.let_go()
    assert gateway.client.post("/v1/matte", content=photo(3)).status_code == 200
    assert (bench.noted("begun"), bench.noted("cancelled")) == (2, 1)


def test_what_waits_in_triton_for_nobody_ends_as_soon_as_it_begins(bench: Bench, gateway: Process) -> None:
    bench.serve("slow", None)
    bench.hold()
    before = hung_up(gateway)
    running = raw(gateway.client, post(photo()))
    assert came_true(lambda: bench.noted("begun") == 1, DEADLINE_S)
    raw(gateway.client, post(photo(2))).close()
    assert came_true(lambda: hung_up(gateway) == before + 1, DEADLINE_S)
    running.close()
    began = time.monotonic()
    bench.serve("sound", None)
    assert gateway.client.post("/v1/matte", content=photo(3)).status_code == 200
    bench.serve("slow", None)
    assert came_true(lambda: bench.noted("cancelled") >= 1, DEADLINE_S)
    bench.let_go()
    assert gateway.client.post("/v1/matte", content=photo(4)).status_code == 200
    assert time.monotonic() - began < 10, "neither is waited for"
    # Triton 2.6x runs what it has queued though it is cancelled (no dynamic batching): the engine ends it itself.
    assert bench.noted("cancelled") == bench.noted("begun") - 1


def test_triton_hears_a_deadline(bench: Bench, gateway: Process) -> None:
    bench.serve("slow", "dim")
    bench.hold()
    began = time.monotonic()
    late = gateway.client.post("/v1/matte", content=photo(), headers={"x-blurfleet-deadline-ms": "400"})
    took = time.monotonic() - began
    assert (late.status_code, late.json()["reason"]) == (504, "DeadlineExceeded")
    assert 0.4 <= took < 4
    assert came_true(lambda: bench.noted("cancelled") == 1, DEADLINE_S)
    bench.let_go()


def test_a_fleet_without_evidence_says_so_of_every_frame(bench: Bench) -> None:
    bench.serve("sound", "dim")
    with gateway_of(bench, evidence="false") as quiet, FrameReceiver(quiet.folder / "frames.sock") as receiver:

        def heard() -> bool:
            quiet.client.post("/v1/matte", content=photo(), headers={"x-blurfleet-evidence": "yes"})
            frame = receiver.receive(0.2)
            return frame is not None and not frame.evidence_allowed

        assert came_true(heard, DEADLINE_S)


def rss(process: Process) -> int:
    return int(psutil.Process(process.popen.pid).memory_info().rss)


@contextlib.contextmanager
def peak(process: Process) -> Iterator[Callable[[], int]]:
    """Watch the process's memory; what is yielded returns the most, in bytes above where it began."""
    stop, start_at = threading.Event(), rss(process)
    most = [start_at]

    def watch() -> None:
        while not stop.wait(0.005):
            most[0] = max(most[0], rss(process))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield lambda: most[0] - start_at
    finally:
        stop.set()
        thread.join()


def test_many_large_pictures_at_once_take_the_memory_of_those_that_fit(bench: Bench) -> None:
    large = bytes(cv2.imencode(".png", np.zeros((2500, 2400, 3), np.uint8))[1])  # 6 million pixels in 20 kB
    bench.serve("sound", None)
    with gateway_of(bench, picture_bytes=str(80 * MIB)) as tight, ThreadPoolExecutor(6) as pool:
        assert tight.client.post("/v1/matte?format=npy", content=photo()).status_code == 200

        def ask(_: int) -> int:
            return tight.client.post("/v1/matte?format=npy", content=large, timeout=60).status_code

        with peak(tight) as most:
            codes = list(pool.map(ask, range(12)))
        assert set(codes) == {200}
        assert most() < 100 * MIB, f"{most() / MIB:.0f} MiB; six decoded pictures alone are 103, at their peak 217"


def test_memory_is_steady_over_two_thousand_requests(bench: Bench) -> None:
    bodies = [photo(n) for n in range(4)] + [photo()[:900], b"junk", b""]
    bench.serve("sound", "dim")
    with gateway_of(bench) as steady, ThreadPoolExecutor(4) as pool:

        def ask(count: int) -> None:
            codes = list(
                pool.map(lambda n: steady.client.post("/v1/matte", content=bodies[n % 7]).status_code, range(count))
            )
            assert codes.count(200) == sum(n % 7 < 4 for n in range(count))

        ask(700)
        before = rss(steady)
        ask(2100)
        grown = rss(steady) - before
    assert grown < 6 * MIB, f"{grown / MIB:.1f} MiB more after 2100 requests"


def test_a_stop_under_load_is_unready_first_and_loses_no_request(bench: Bench) -> None:
    bench.serve("sound", "dim")
    with gateway_of(bench, drain_s="6") as leaving, ThreadPoolExecutor(6) as pool:
        told, lost, answered = threading.Event(), list[str](), [0, 0]

        def client() -> None:
            with httpx.Client(base_url=leaving.client.base_url, timeout=20, trust_env=False) as mine:
                while not told.is_set():
                    try:
                        response = mine.post("/v1/matte", content=photo())
                    except httpx.HTTPError as error:
                        lost.append(repr(error))
                        return
                    answered[0] += response.status_code == 200
                    answered[1] += response.headers.get("connection") == "close"
                    if response.status_code != 200:
                        lost.append(response.text)

        clients = [pool.submit(client) for _ in range(6)]
        assert came_true(lambda: answered[0] > 20, DEADLINE_S)
        leaving.popen.terminate()
        unready = [httpx.Response(200)]

        def not_ready() -> bool:
            unready[0] = leaving.client.get("/readyz")
            return unready[0].status_code == 503

        assert came_true(not_ready, 5.0)
        assert unready[0].json()["reason"] == "Draining"
        assert leaving.client.get("/healthz").status_code == 200
        count = answered[0]
        assert came_true(lambda: answered[0] > count + 5, 5.0), "it goes on answering"
        assert came_true(lambda: answered[1] > 0, 5.0), "and asks its clients to come by another connection"
        told.set()  # as a balancer would that has seen the node go
        for each in clients:
            each.result(DEADLINE_S)
        assert leaving.popen.wait(DEADLINE_S) == 0
    assert lost == []
    assert not (leaving.folder / "gateway.json").exists()


def test_a_stop_answers_what_is_under_way(bench: Bench) -> None:
    bench.serve("slow", None)
    bench.hold()
    with gateway_of(bench) as leaving, ThreadPoolExecutor(1) as pool:
        held = pool.submit(leaving.client.post, "/v1/matte?format=npy", content=photo())
        assert came_true(lambda: bench.noted("begun") == 1, DEADLINE_S)
        leaving.popen.terminate()
        port = json.loads((leaving.folder / "gateway.json").read_text())["address"].rpartition(":")[2]

        def closed() -> bool:
            try:
                httpx.get(f"http://127.0.0.1:{port}/healthz", trust_env=False)
            except httpx.TransportError:
                return True
            return False

        assert came_true(closed, DEADLINE_S)
        bench.let_go()
        response = held.result(DEADLINE_S)
        np.testing.assert_array_equal(matte_of(response), red())
        assert leaving.popen.wait(DEADLINE_S) == 0
