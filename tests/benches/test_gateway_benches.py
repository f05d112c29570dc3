"""How the gateway's benches judge what they timed; the timing itself is theirs to do on a quiet machine."""

from collections.abc import Iterator
from pathlib import Path

import cv2
import httpx
import numpy as np
import pytest

from blurfleet.api.contract import ContractSpec, contract_at
from blurfleet.errors import EngineError
from blurfleet.pixels import decode, to_tensor
from blurfleet_cli import contract_bench, service_bench
from blurfleet_cli.rivals import matte_quality as quality
from blurfleet_cli.rivals.photographs import as_jpeg, photographs
from blurfleet_cli.rivals.recipes import opencv, pillow
from blurfleet_cli.service_bench import Part, compared


@pytest.fixture(scope="module")
def jpeg() -> bytes:
    return as_jpeg(photographs()["china"])


def test_the_photographs_are_1080p_jpegs_of_a_cameras_size(jpeg: bytes) -> None:
    assert {picture.shape for picture in photographs().values()} == {(1080, 1920, 3)}
    assert 200_000 < len(jpeg) < 1_000_000


def test_the_recipes_make_what_the_contract_makes_with_their_kernels(jpeg: bytes) -> None:
    for recipe, kernel in ((pillow, "linear-antialias"), (opencv, "linear")):
        spec = contract_at(320, ContractSpec.model_validate({"resize": kernel}))
        ours = to_tensor(decode(jpeg, spec).rgb, spec)
        theirs = recipe(jpeg, 320)
        assert (theirs.dtype, theirs.shape) == (np.float32, ours.shape)
        np.testing.assert_allclose(theirs, ours, atol=1.01 / 255 / 0.224)  # a level: OpenCV rounds twice


def test_a_tensor_that_is_not_the_contracts_own_stops_the_bench(jpeg: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    contract_bench.check_bytes(jpeg)
    spec = contract_at(320)
    shifted = to_tensor(decode(jpeg, spec).rgb[1:], spec)
    monkeypatch.setattr(contract_bench, "contract_stage", lambda _: lambda _: shifted)
    with pytest.raises(EngineError):
        contract_bench.check_bytes(jpeg)


def test_every_way_does_every_round_and_ratios_are_taken_within_one() -> None:
    done: list[str] = []

    def way(name: str, *seconds: float) -> contract_bench.Stage:
        times: Iterator[float] = iter((9.0, *seconds))  # the first call warms up

        def stage(_: Path) -> float:
            done.append(name)
            return next(times)

        return stage

    ways = {"linear": way("linear", 1, 2, 4), "slow": way("slow", 4, 8, 16), "fast": way("fast", 2, 3, 8)}
    seconds = contract_bench.in_turns(ways, [Path("a"), Path("b")], 3)
    assert done[3:] == ["linear", "slow", "fast", "slow", "fast", "linear", "fast", "linear", "slow"]
    made = contract_bench.report(seconds, ("linear",))
    assert made["ms"] == {"linear": 2000, "slow": 8000, "fast": 3000}
    assert made["times_faster"]["linear"] == {"slow": 4, "fast": 2, "over_fastest": 2, "over_slowest": 4}


def part(latencies: tuple[float, ...], length_s: float, cpu_s: float, memory: int = 2**20) -> Part:
    return Part(latencies=latencies, length_s=length_s, cpu_s=cpu_s, memory=memory)


def test_throughput_is_compared_turn_by_turn() -> None:
    made = compared(
        {
            "gateway": [part((0.1, 0.3), 1.0, 0.2), part((0.2, 0.2, 0.2, 0.2), 1.0, 0.4, 3 * 2**20)],
            "rembg": [part((1.0,), 1.0, 0.5), part((0.5, 0.5), 1.0, 1.0)],
        }
    )
    assert made["times_throughput"] == 2.0
    assert made["times_cpu"] == 5.0
    assert made["gateway"] == {
        "requests": 6, "requests_per_s": 3.0, "p50_ms": 200.0, "p99_ms": 295.0, "cpu_ms_per_request": 100.0,
        "memory_mib": 3,
    }  # fmt: skip


def test_a_refused_picture_stops_the_bench() -> None:
    with pytest.raises(EngineError, match="busy"):
        service_bench.checked(httpx.Response(503, text="busy"))


def test_matte_errors_are_those_of_the_whole_picture() -> None:
    wanted = np.zeros((20, 20), np.float32)
    wanted[:, :10] = 1.0
    off = np.zeros((20, 20), np.uint8)
    off[:, :5] = 255
    png = bytes(cv2.imencode(".png", off)[1])
    assert quality._errors(quality.matte_of, [(png, wanted)]) == {"mae": 0.25, "iou": 0.5}
