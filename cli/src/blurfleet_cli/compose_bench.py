"""The compose bench: a 1080p JPEG to a finished JPEG with a blurred background, everything but the network.

The matte is given. Ours and the recipe of most tutorials take turns on one core; times are processor time of one
thread. Halo and glow are measured on composites whose truth is known, before the JPEG is written.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import cv2
import numpy as np

from blurfleet.api.contract import ContractSpec
from blurfleet.pixels import decode, to_tensor
from blurfleet_cli.composites import (
    PAIRS,
    RADIUS,
    Composite,
    composite,
    glow_energy,
    halo_energy,
    soft_recipe,
    usual_recipe,
)
from blurfleet_cli.contract_bench import Stage, in_turns, one_core
from blurfleet_preprocess.compositing.look import Look
from blurfleet_preprocess.picture import composed, encode

_LOOK = Look(radius=RADIUS)
_MEAN = np.array((0.485, 0.456, 0.406), np.float32)
_STD = np.array((0.229, 0.224, 0.225), np.float32)
_QUALITY = 92
_SMALL_KERNEL = 45  # pixels across: what "GaussianBlur 45" says; its sigma is 7.1, that of a radius of 45 is 22.5
Way = Callable[[bytes, Any], Any]


def run(rounds: int) -> dict[str, Any]:
    """Return median milliseconds by way and by stage of ours, ratios pair by pair in one round, and the halo figures.

    `usual` blurs with a 45x45 kernel, which is the least that could be meant by 45; `usual_as_soft` as softly as ours.
    `ours_linear` is ours under a contract with the recipe's own resize kernel.
    """
    made = [composite(*pair) for pair in PAIRS]
    with tempfile.TemporaryDirectory(prefix="blurfleet-compose-") as name, one_core():
        mattes = {}
        for pair, one in zip(PAIRS, made, strict=True):
            file = Path(name) / f"{pair[0]}.jpg"
            file.write_bytes(encode(one.picture, "jpeg"))
            mattes[file] = one.small
        stages: dict[str, list[float]] = {}
        ways = {
            "ours": _timed(_ours(ContractSpec(), stages), mattes),
            "ours_linear": _timed(_ours(ContractSpec(resize="linear"), {}), mattes),
            "usual": _timed(lambda data, matte: _usual(data, matte, (_SMALL_KERNEL, _SMALL_KERNEL), 0), mattes),
            "usual_as_soft": _timed(lambda data, matte: _usual(data, matte, (0, 0), RADIUS / 2), mattes),
        }
        seconds = in_turns(ways, list(mattes), rounds)
    return {
        "rounds": rounds,
        "load_average": round(os.getloadavg()[0], 2),
        "ms": {way: _ms(values) for way, values in seconds.items()},
        "best_ms": {way: round(1e3 * min(values), 2) for way, values in seconds.items()},
        "stages_ms": {stage: _ms(values) for stage, values in stages.items()},
        "times_faster": {
            f"{mine}_over_{other}": round(median(t / o for t, o in zip(seconds[other], seconds[mine], strict=True)), 2)
            for mine in ("ours", "ours_linear")
            for other in ("usual", "usual_as_soft")
        },
        "quality": {"-before-".join(pair): _quality(one) for pair, one in zip(PAIRS, made, strict=True)},
    }


def _ours(spec: ContractSpec, stages: dict[str, list[float]]) -> Way:
    def way(data: bytes, matte: Any) -> bytes:
        marks = [time.thread_time()]
        rgb = decode(data, spec, whole=True).rgb
        marks.append(time.thread_time())
        to_tensor(rgb, spec)
        marks.append(time.thread_time())
        picture = composed(rgb, matte, spec, _LOOK)
        marks.append(time.thread_time())
        written = encode(picture, "jpeg")
        marks.append(time.thread_time())
        for name, first, last in zip(("decode", "contract", "compose", "encode"), marks, marks[1:], strict=False):
            stages.setdefault(name, []).append(last - first)
        return written

    return way


def _usual(data: bytes, matte: Any, kernel: tuple[int, int], sigma: float) -> bytes:
    """Do as most tutorials do: plain linear resize, blur at full size, np.where."""
    bgr: Any = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    small = cv2.resize(cv2.cvtColor(bgr, cv2.COLOR_BGR2RGB), (320, 320)).astype(np.float32) / 255
    np.ascontiguousarray(((small - _MEAN) / _STD).transpose(2, 0, 1)[None])
    mask = cv2.resize(matte, (bgr.shape[1], bgr.shape[0]))
    out = np.where(mask[..., None] > 0.5, bgr, cv2.GaussianBlur(bgr, kernel, sigma))
    return bytes(cv2.imencode(".jpg", out, [cv2.IMWRITE_JPEG_QUALITY, _QUALITY])[1])


def _timed(way: Way, mattes: dict[Path, Any]) -> Stage:
    def measured(file: Path) -> float:
        data = file.read_bytes()
        started = time.thread_time()
        way(data, mattes[file])
        return time.thread_time() - started

    return measured


def _quality(made: Composite) -> dict[str, dict[str, float]]:
    """Return mean squared levels from the truth: `halo` around the edge, `glow` where nothing of the subject is."""
    results = {
        "ours": composed(made.picture, made.small, ContractSpec(), _LOOK),
        "usual": usual_recipe(made.picture, made.small),
        "soft": soft_recipe(made.picture, made.small),
    }
    return {
        name: {"halo": round(halo_energy(result, made), 1), "glow": round(glow_energy(result, made), 1)}
        for name, result in results.items()
    }


def _ms(values: list[float]) -> float:
    return round(1e3 * median(values), 2)
