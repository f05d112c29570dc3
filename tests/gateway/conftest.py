"""A gateway over stand-in engines: only the engines are not real, so that each fault can be had at will."""

import contextlib
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import cv2
import httpx
import numpy as np
import pytest
from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from blurfleet.api.contract import ContractSpec, contract_at
from blurfleet.errors import EngineError, EngineTimeout
from blurfleet.pixels import Tensor
from blurfleet.reasons import Reason
from blurfleet.serving.frames import FrameSample
from blurfleet.serving.life import RequestLife
from blurfleet.serving.routing import Route, RoutedEngine, RoutingTable
from blurfleet.serving.triton import InferResult
from blurfleet_preprocess.access import Access
from blurfleet_preprocess.bodies import Bodies, BodyLimits
from blurfleet_preprocess.dataplane import Caller, Gateway
from blurfleet_preprocess.exchange import Exchange
from blurfleet_preprocess.limits import Limits
from blurfleet_preprocess.metrics import GatewayMetrics
from blurfleet_preprocess.readiness import Readiness
from blurfleet_preprocess.rest import build_app
from blurfleet_preprocess.room import Room, large_at_once
from blurfleet_preprocess.server import Server, Stop, config_of
from blurfleet_preprocess.stream_session import StreamLimits
from blurfleet_preprocess.streams import Streams, Ticket
from blurfleet_preprocess.wire import WireLimits
from blurfleet_preprocess.work import Workers

SIZE = 32
PRIMARY = RoutedEngine(engine="bokeh__aaaaaaaaaaaa", digest="sha256:" + "a" * 64, precision="Mixed")
FALLBACK = RoutedEngine(engine="bokeh__ffffffffffff", digest="sha256:" + "f" * 64, precision="FP32")
Behaviour = Callable[[Tensor], Tensor]


def subject(tensor: Tensor) -> Tensor:
    """A sound matte: a disc in the middle."""
    disc = cv2.circle(np.zeros((SIZE, SIZE), np.float32), (SIZE // 2, SIZE // 2), SIZE // 4, 1.0, -1)
    return disc[None, None]


def shifted(tensor: Tensor) -> Tensor:
    """Another sound matte, told apart by its value."""
    return subject(tensor) * np.float32(0.9)


def with_nan(tensor: Tensor) -> Tensor:
    matte = subject(tensor).copy()
    matte[0, 0, 3, 4] = np.nan
    return matte


def too_large(tensor: Tensor) -> Tensor:
    return subject(tensor) * np.float32(1.5)


def all_zero(tensor: Tensor) -> Tensor:
    return np.zeros((1, 1, SIZE, SIZE), np.float32)


def missing(tensor: Tensor) -> Tensor:
    raise EngineError(Reason.TRITON_UNREACHABLE, "no such model", where="stand-in")


def late(tensor: Tensor) -> Tensor:
    raise EngineTimeout(Reason.INFER_TIMEOUT, "no answer before the deadline", where="stand-in")


def wrong_shape(tensor: Tensor) -> Tensor:
    return np.zeros((1, 3, SIZE, SIZE), np.float32)


BEHAVIOURS: dict[str, Behaviour] = {
    "subject": subject,
    "shifted": shifted,
    "with NaN": with_nan,
    "too large": too_large,
    "all zero": all_zero,
    "missing": missing,
    "late": late,
    "wrong shape": wrong_shape,
}


@dataclass
class StandInEngines:
    """Engines that live in this process: a behaviour for each name, and what was asked of whom."""

    behaviours: dict[str, Behaviour] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    lives: list[RequestLife | None] = field(default_factory=list)
    timeouts: list[float] = field(default_factory=list)

    def infer(
        self,
        model: str,
        image: Tensor,
        *,
        timeout_s: float,
        headers: Mapping[str, str] | None = None,
        life: RequestLife | None = None,
    ) -> InferResult:
        if life is not None:
            life.check()
            timeout_s = life.within(timeout_s)
        self.asked.append(model)
        self.lives.append(life)
        self.timeouts.append(timeout_s)
        self.headers.append(dict(headers or {}))
        self.tensors.append(image)
        matte = self.behaviours.get(model, missing)(image)
        return InferResult(matte=matte, model_name=model, model_version=1)


@dataclass
class Told:
    """Collects what the agent would hear."""

    samples: list[FrameSample] = field(default_factory=list)

    def offer(self, sample: FrameSample) -> None:
        self.samples.append(sample)


@dataclass
class Rig:
    """A gateway with everything around it in reach."""

    engines: StandInEngines = field(default_factory=StandInEngines)
    told: Told = field(default_factory=Told)
    table: RoutingTable = field(default_factory=RoutingTable)
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    on_look: Callable[[], None] = lambda: None
    primary: RoutedEngine = PRIMARY
    fallback: RoutedEngine = FALLBACK
    size: int = SIZE

    def __post_init__(self) -> None:
        self.metrics = GatewayMetrics(self.registry)
        self.gateway = Gateway(
            routing=self._look, engines=self.engines, frames=self.told, metrics=self.metrics, alias="bokeh",
            infer_timeout_s=1.0, clock=lambda: 1000.0,
        )  # fmt: skip
        self.looks = 0
        self.route()

    def _look(self) -> RoutingTable:
        self.looks += 1
        self.on_look()
        return self.table

    def route(
        self,
        *,
        serving: str = "Primary",
        epoch: int = 7,
        primary: RoutedEngine = PRIMARY,
        fallback: RoutedEngine | None = FALLBACK,
        contract: ContractSpec | None = None,
    ) -> None:
        route = Route.model_validate(
            {"alias": "bokeh", "epoch": epoch, "serving": serving, "primary": primary, "fallback": fallback,
             "contract": contract or contract_at(SIZE)}
        )  # fmt: skip
        self.table = RoutingTable(simulated=True).with_route(route)

    def engines_behave(self, primary: str, fallback: str = "shifted") -> None:
        self.engines.behaviours = {
            PRIMARY.engine: BEHAVIOURS[primary],
            FALLBACK.engine: BEHAVIOURS[fallback],
            "bokeh": BEHAVIOURS[primary],
        }

    def matte(self, behaviour: str) -> Tensor:
        return BEHAVIOURS[behaviour](np.zeros((1, 3, SIZE, SIZE), np.float32))[0, 0]

    def forget(self) -> None:
        """Let go of what was collected, which grows with every request."""
        for kept in (self.engines.asked, self.engines.headers, self.engines.tensors, self.engines.lives):
            kept.clear()
        self.engines.timeouts.clear()
        self.told.samples.clear()

    def count(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(name, labels) or 0.0


@pytest.fixture
def rig() -> Rig:
    made = Rig()
    made.engines_behave("subject")
    return made


@pytest.fixture
def photo() -> bytes:
    rgb = np.random.default_rng(2).integers(0, 256, (24, 40, 3), dtype=np.uint8)
    return bytes(cv2.imencode(".png", rgb)[1])


@pytest.fixture
def caller() -> Caller:
    return Caller(ticket=Ticket(stream="g/1", frame_id=5))


@contextlib.contextmanager
def http(app: FastAPI, limits: WireLimits | None = None) -> Iterator[httpx.Client]:
    """Serve `app` on a free loopback port by the server that production uses."""
    server = Server(config_of(app, limits or WireLimits()), Stop(), 0)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        base = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with httpx.Client(base_url=base, timeout=20, trust_env=False) as client:
            yield client
        server.should_exit = True
        thread.join(20)


@pytest.fixture
def serve() -> Callable[..., contextlib.AbstractContextManager[httpx.Client]]:
    """Serve a rig's gateway over HTTP, with limits to be chosen."""

    def over(
        rig: Rig,
        *,
        workers: int = 4,
        waiting: int = 16,
        max_body_bytes: int = 1 << 20,
        held_body_bytes: int = 1 << 24,
        body_grace_s: float = 10.0,
        evidence: bool = True,
        access: Access | None = None,
        limits: Limits | None = None,
        streams: StreamLimits | None = None,
        wire: WireLimits | None = None,
        picture_bytes: int = 1 << 30,
    ) -> contextlib.AbstractContextManager[httpx.Client]:
        exchange = Exchange(
            gateway=rig.gateway,
            streams=Streams("test.1"),
            metrics=rig.metrics,
            workers=Workers(workers, waiting),
            max_body_bytes=max_body_bytes,
            bodies=Bodies(BodyLimits(held_bytes=held_body_bytes, grace_s=body_grace_s)),
            room=Room(picture_bytes, large=large_at_once(workers)),
            evidence=evidence,
            access=access or Access(),
            limits=limits or Limits(),
        )
        return http(build_app(exchange, Readiness(rig.gateway, cache_s=60), streams), wire)

    return over


@pytest.fixture
def client(rig: Rig, serve: Callable[..., contextlib.AbstractContextManager[httpx.Client]]) -> Iterator[httpx.Client]:
    with serve(rig) as made:
        yield made


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 and localhost, and its key."""
    return make_certificate(tmp_path, "door")


@pytest.fixture
def new_certificate() -> Callable[[Path, str], tuple[Path, Path]]:
    """Make a certificate and key `NAME.crt` and `NAME.key` in a folder."""
    return make_certificate


def make_certificate(folder: Path, name: str) -> tuple[Path, Path]:
    cert, key = folder / f"{name}.crt", folder / f"{name}.key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost",
         "-keyout", str(key), "-out", str(cert)],
        check=True, capture_output=True,
    )  # fmt: skip
    return cert, key
