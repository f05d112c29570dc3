"""The metrics bench: what judging one 320x320 matte costs on one core."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from blurfleet.quality.metrics import measure

SIZE = 320
ROUNDS = 200


def measure_metrics(*, rounds: int = ROUNDS) -> dict[str, Any]:
    """Time max abs + p99.9 + DEER with and without SSIM on a soft-edged matte; milliseconds, one OpenCV thread."""
    reference, candidate = _pair()
    threads = cv2.getNumThreads()
    cv2.setNumThreads(1)
    try:
        all_of_them = _time(lambda: measure(reference, candidate, ssim=True), rounds)
        without_ssim = _time(lambda: measure(reference, candidate, ssim=False), rounds)
    finally:
        cv2.setNumThreads(threads)
    return {
        "size": SIZE,
        "with_ssim_p50_ms": all_of_them[0],
        "with_ssim_p99_ms": all_of_them[1],
        "without_ssim_p50_ms": without_ssim[0],
        "without_ssim_p99_ms": without_ssim[1],
    }


def _pair() -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Return a disc with a soft edge, and the same with noise of 0.002 as reduced precision leaves it."""
    y, x = np.mgrid[0:SIZE, 0:SIZE].astype(np.float32)
    reference = np.clip((120.0 - np.hypot(x - 160.0, y - 160.0)) / 8.0 + 0.5, 0.0, 1.0).astype(np.float32)
    noise = np.random.default_rng(0).normal(0.0, 0.002, reference.shape).astype(np.float32)
    return reference, np.clip(reference + noise, 0.0, 1.0).astype(np.float32)


def _time(call: Callable[[], object], rounds: int) -> tuple[float, float]:
    spent = []
    for _ in range(rounds):
        began = time.perf_counter()
        call()
        spent.append((time.perf_counter() - began) * 1e3)
    p50, p99 = np.percentile(spent, [50, 99])
    return round(float(p50), 3), round(float(p99), 3)
