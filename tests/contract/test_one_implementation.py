"""One contract: gateway, the agent's golden pictures and forge's calibration make the same bytes of the same file."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry
from tests.diagnosis.frames import PHOTOS, picture_file

from blurfleet.api.contract import ContractSpec, contract_at
from blurfleet.errors import ContractRefused
from blurfleet.pixels import Tensor
from blurfleet.reasons import Reason
from blurfleet.serving.routing import Route, RoutedEngine, RoutingTable
from blurfleet.serving.triton import InferResult
from blurfleet_agent import golden
from blurfleet_forge import frames
from blurfleet_forge.recipe import FrameSets
from blurfleet_preprocess.dataplane import Caller, Gateway
from blurfleet_preprocess.metrics import GatewayMetrics
from blurfleet_preprocess.streams import Ticket

CASES = Path(__file__).parents[1] / "cases" / "img"
REFUSED = ("empty.jpg", "trunc_base.jpg", "trunc_prog.jpg")
PICTURES = [p for p in sorted(CASES.iterdir()) if p.suffix in (".jpg", ".png") and p.name not in REFUSED]
PICTURES += [picture_file(name) for name in PHOTOS]
ENGINE = RoutedEngine(engine="bokeh__aaaaaaaaaaaa", digest="sha256:" + "a" * 64, precision="FP32")
CONTRACTS = {
    "the default": contract_at(96),
    "BGR, channels last, area, letterbox": contract_at(
        96, ContractSpec(color_order="BGR", layout="NHWC", resize="area", fit="letterbox", background=(10, 200, 30))
    ),
    "tags ignored": contract_at(64, ContractSpec(orientation="ignore", resize="lanczos")),
    "JPEGs at a reduced size": contract_at(96, ContractSpec(resize="linear-antialias-reduced")),
    "JPEGs at a reduced size, cropped": contract_at(15, ContractSpec(resize="linear-antialias-reduced", fit="crop")),
}


class Listening:
    """An engine that answers a sound matte and keeps what it was asked."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []

    def infer(self, model: str, image: Tensor, **_: Any) -> InferResult:
        self.tensors.append(image)
        return InferResult(matte=np.eye(8, dtype=np.float32)[None, None], model_name=model, model_version=1)

    def offer(self, sample: object) -> None:
        """Samples for the agent are not looked at here."""


def by_gateway(data: bytes, spec: ContractSpec) -> Tensor:
    route = Route.model_validate(
        {"alias": "bokeh", "epoch": 1, "serving": "Primary", "primary": ENGINE, "contract": spec}
    )
    table, engine = RoutingTable().with_route(route), Listening()
    gateway = Gateway(
        routing=lambda: table,
        engines=engine,
        frames=engine,
        metrics=GatewayMetrics(CollectorRegistry()),
        alias="bokeh",
        infer_timeout_s=1.0,
    )
    gateway.picture(Caller(ticket=Ticket(stream="g/1", frame_id=1)), data)
    return engine.tensors[0]


def by_forge(file: Path, spec: ContractSpec, monkeypatch: pytest.MonkeyPatch) -> Tensor:
    """As a calibration frame, read by name in the view that leaves it whole, and as a golden one: they are the same."""
    monkeypatch.setattr(frames, "picture_path", lambda _: file)
    sets = FrameSets(golden=(file.name,))
    (golden_one,) = frames.tensors(frames.golden(sets, spec), spec)
    calibrated = frames.tensors(frames.calibration(sets, spec), spec)[0]
    assert golden_one.tobytes() == calibrated.tobytes()
    return calibrated


@pytest.mark.parametrize("contract", CONTRACTS)
@pytest.mark.parametrize("file", PICTURES, ids=lambda p: p.name)
def test_gateway_agent_and_forge_make_identical_bytes(
    file: Path, contract: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, data = CONTRACTS[contract], file.read_bytes()
    served, calibrated = by_gateway(data, spec), by_forge(file, spec, monkeypatch)
    assert served.tobytes() == calibrated.tobytes()
    assert (served.shape, served.dtype) == (calibrated.shape, calibrated.dtype)
    known = golden.GoldenFrames(names=("x",), tensors=(served,), references=(), pictures=(data,))
    monkeypatch.setattr(golden, "PICTURE_TOLERANCE", 0.0)
    assert golden.pictures_differ(known, spec) == ""


def test_the_agent_notices_one_level_in_one_pixel_at_no_tolerance(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison above is one: the smallest difference there is shows in it."""
    data, spec = picture_file("coffee.png").read_bytes(), CONTRACTS["the default"]
    other = by_gateway(data, spec).copy()
    other[0, 1, 5, 7] = np.nextafter(other[0, 1, 5, 7], np.float32(9))
    known = golden.GoldenFrames(names=("x",), tensors=(other,), references=(), pictures=(data,))
    assert golden.pictures_differ(known, spec) == ""
    monkeypatch.setattr(golden, "PICTURE_TOLERANCE", 0.0)
    assert "golden picture x misses its tensor" in golden.pictures_differ(known, spec)


@pytest.mark.parametrize("name", REFUSED)
def test_what_one_refuses_all_refuse_with_the_same_reason(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, file = CONTRACTS["the default"], CASES / name
    reasons: list[Reason] = []
    for make in (lambda: by_gateway(file.read_bytes(), spec), lambda: by_forge(file, spec, monkeypatch)):
        with pytest.raises(ContractRefused) as refused:
            make()
        reasons.append(refused.value.reason)
    assert reasons[0] is reasons[1]
    known = golden.GoldenFrames(
        names=("x",), tensors=(np.zeros((1, 3, 96, 96), np.float32),), references=(), pictures=(file.read_bytes(),)
    )
    assert "refused by the contract" in golden.pictures_differ(known, spec)
